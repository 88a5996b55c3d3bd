//! Which pods of this node take part: the kubelet asks for the slot of each, as a volume of it, and says how each is.
//!
//! A volume's pod is named by the kubelet, and held against the pod of that UID; its group is what the pod's annotation
//! said when the volume came. From then on the volume is the pod's membership: it is on record, so that this daemon's next life knows it without
//! the kubelet, and ends when the kubelet takes it down, or says that the pod is gone.
//!
//! | concern | file |
//! |---|---|
//! | a volume: whose it is, its slot, its record | [`volume`], [`records`] |
//! | its mount | [`mounts`] |
//! | what is said of its pod | [`news`] |
//! | the group that a pod asks for | [`group`] |
//! | what the node's status tells of all this | [`seen`] |
//! | what is found out and said of it when it starts | [`start`] |
//! | what it shares with its group beside buffers | [`shared`] |
//! | volumes on record, at the daemon's start and later | [`again`] |
//! | the range of process numbers that a member has | [`numbers`] |
//! | what could not be done, and is tried again | [`undone`] |
//! | volumes of pods that nobody has told of yet | [`unknown`] |

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpu_handoff_kubelet::csi::{Answer, Command, PodName, Publish, Refusal, Unpublish};
use gpu_handoff_kubelet::pods::PodFacts;
use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::SlotId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::devices::Asker;
use super::events::{About, Events, Kind, Notice};
use super::groups::Groups;
use super::parts::{Planner, Plans};
use super::pids::Settled;
use super::slots::{Change, JoinError};
use crate::members::Member;
use crate::pace::{now, sleep_until};
use crate::registry::Topology;

mod again;
mod group;
mod mounts;
mod news;
mod numbers;
mod records;
mod seen;
mod shared;
mod start;
mod undone;
mod unknown;
mod volume;

pub(super) use again::one_of_each_pod;
use news::containers;
pub(super) use records::Records;
pub(super) use seen::{Seen, Teller, Wait};
use start::{Looked, Start};
use undone::Undone;
use unknown::Waiters;
pub(super) use volume::Volume;

/// What is known of pods and their volumes. One task has it.
#[derive(Debug)]
pub(super) struct Membership {
    changes: mpsc::Sender<Change>,
    policies: watch::Receiver<Arc<Policy>>,
    events: Events,
    records: Records,
    /// By the volume's id.
    volumes: BTreeMap<String, Served>,
    /// By UID.
    pods: HashMap<String, PodFacts>,
    unknown: Waiters,
    /// What is tried again.
    undone: Vec<Undone>,
    seen: Teller,
    /// What members' containers are to get: of each volume on record whose pod is not gone.
    plans: Planner,
    /// Who has groups share what those plans say; `None`: nobody does.
    groups: Option<Groups>,
    /// Who finds out what pods hold; `None`: nobody does.
    asker: Option<Asker>,
    /// What is being found out.
    looks: JoinSet<Looked>,
    /// Which members have their process numbers; `None`: it is not waited for any.
    settled: Option<Settled>,
    /// What the driver says of the GPUs.
    topology: watch::Receiver<Option<Topology>>,
}

/// A volume that is there.
#[derive(Debug)]
struct Served {
    volume: Volume,
    /// The broker knows that its pod is being deleted.
    ending: bool,
    /// What was found out and said of it when it started.
    start: Start,
}

/// The node is about to end.
#[derive(Debug)]
struct Stopping;

impl Membership {
    /// With volumes that are on record, one of a pod; their members have joined, and have their plans.
    pub(super) fn new(
        changes: mpsc::Sender<Change>,
        events: Events,
        records: Records,
        volumes: Vec<Volume>,
        policies: watch::Receiver<Arc<Policy>>,
        seen: Teller,
    ) -> Self {
        let plans = Planner::new(volumes.iter().map(Volume::plan));
        let served =
            |volume: Volume| (volume.id.clone(), Served { volume, ending: false, start: Start::of_before() });
        let volumes = volumes.into_iter().map(served).collect();
        Self {
            changes,
            events,
            policies,
            records,
            volumes,
            pods: HashMap::new(),
            unknown: Waiters::new(),
            undone: Vec::new(),
            seen,
            plans,
            groups: None,
            asker: None,
            looks: JoinSet::new(),
            settled: None,
            topology: watch::channel(None).1,
        }
    }

    /// What members' containers are to get.
    pub(super) fn plans(&self) -> watch::Receiver<Arc<Plans>> {
        self.plans.subscribe()
    }

    /// Has it found out what pods hold, by this asker, and held against what the driver says of the GPUs.
    pub(super) fn finding_out(mut self, asker: Asker, topology: watch::Receiver<Option<Topology>>) -> Self {
        (self.asker, self.topology) = (Some(asker), topology);
        self
    }

    /// Does what the kubelet asks, and passes on what it says of pods, until the node ends. May be cut off anywhere: what is on
    /// record is what there is.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut pods: gpu_handoff_kubelet::pods::Pods,
    ) {
        if let Err(Stopping) = self.mount_all_again().await {
            return;
        }
        loop {
            let again = self.next_look().into_iter().chain(self.next_try()).chain(self.next_answer()).min();
            let done = tokio::select! {
                () = sleep_until(again) => {
                    self.look_again(now());
                    self.answer_unknown(now());
                    self.try_again(now()).await
                }
                Some(command) = commands.recv() => self.take(command).await,
                Some(looked) = self.looks.join_next() => match looked {
                    Ok(looked) => self.looked(looked).await,
                    Err(e) => {
                        warn!(error = %e, "finding out what a pod holds broke off");
                        Ok(())
                    }
                },
                // Where nobody writes policies any more, the one in force stays.
                Ok(()) = self.policies.changed() => self.weigh_all().await,
                Ok(()) = self.topology.changed() => self.weigh_all().await,
                changed = shared::changed(&mut self.groups) => match changed {
                    Ok(()) => {
                        self.plan_again().await;
                        Ok(())
                    }
                    // Nothing could be shared any more: the node ends, and starts again.
                    Err(ended) => {
                        warn!("{ended}");
                        return;
                    }
                },
                event = pods.next() => match event {
                    Some(event) => self.hear(event).await,
                    // Nobody would be told of any more, and those that go would stay: the node ends, and starts again.
                    None => {
                        let why = "what tells of this node's pods has broken off";
                        self.seen.broke_off(why);
                        warn!("{why}");
                        return;
                    }
                },
            };
            if let Err(Stopping) = done {
                return;
            }
        }
    }

    async fn take(&mut self, command: Command) -> Result<(), Stopping> {
        match command {
            Command::Publish(publish, asker) => self.publish(publish, asker).await,
            Command::Unpublish(unpublish, asker) => {
                let answer = self.unpublish(&unpublish).await?;
                // The kubelet asks again where it did not wait for it.
                let _ = asker.send(answer);
                Ok(())
            }
        }
    }

    async fn publish(&mut self, publish: Publish, asker: oneshot::Sender<Answer>) -> Result<(), Stopping> {
        if !self.pods.contains_key(&publish.pod.uid) && !self.volumes.contains_key(&publish.volume) {
            self.wait_for_pod(publish, asker);
            return Ok(());
        }
        let answer = self.answer(publish).await?;
        let _ = asker.send(answer);
        Ok(())
    }

    /// Has the volume there; where it cannot be, the pod's owner reads why.
    async fn answer(&mut self, publish: Publish) -> Result<Answer, Stopping> {
        let PodName { namespace, name, uid } = publish.pod.clone();
        let answer = self.serve(publish.clone()).await?;
        self.seen.answered(&publish, &answer);
        if let Err(refusal) = &answer
            && !matches!(refusal, Refusal::NotYet(_))
        {
            let about = About { namespace, name, uid };
            self.events.tell(Notice::new(about, Kind::Warning, "SlotRefused", &refusal.to_string()));
        }
        Ok(answer)
    }

    async fn serve(&mut self, publish: Publish) -> Result<Answer, Stopping> {
        if let Some(served) = self.volumes.get(&publish.volume) {
            let volume = served.volume.clone();
            return Ok(volume.is_asked_for_by(&publish).and_then(|()| self.mount(&volume)));
        }
        let volume = match self.admit(&publish) {
            Ok(admitted) => admitted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match self.join(volume.member()).await? {
            Ok(()) => {}
            Err(e @ (JoinError::NoSlot { .. } | JoinError::Unclosed { .. })) => {
                return Ok(Err(Refusal::NoSlot(e.to_string())));
            }
            Err(e) => return Ok(Err(Refusal::Internal(format!("{:#}", anyhow::Error::new(e))))),
        }
        drop(self.is_seen_to(&volume.id));
        // On record first: what is mounted and not on record would stay for ever.
        let slot = volume.slot.clone();
        let done = match self.share(&volume).await {
            Ok(()) => match self.records.write(&volume) {
                Ok(()) => self.mount(&volume),
                Err(e) => Err(Refusal::Internal(format!("the volume cannot be put on record: {e}"))),
            },
            Err(refusal) => Err(refusal),
        };
        if done.is_err() {
            self.forget(&volume);
            self.records.remove(&slot);
            self.leave(slot).await?;
        } else {
            info!(%slot, pod = %volume.pod, uid = %volume.uid, group = %volume.group, "the pod takes part");
            let note = format!("the pod is a member of group {} on this node", volume.group);
            self.events.tell(Notice::new(volume.about(), Kind::Normal, "TakesPart", &note));
            self.takes_part(volume, Start::new(self.asker.is_some())).await?;
        }
        Ok(done)
    }

    /// A volume is there: its pod takes part, as far as it is known.
    async fn takes_part(&mut self, volume: Volume, start: Start) -> Result<(), Stopping> {
        let (uid, group) = (volume.uid.to_string(), volume.group.clone());
        self.volumes.insert(volume.id.clone(), Served { volume, ending: false, start });
        if let Some(pod) = self.pods.get(&uid).cloned() {
            self.tell_of(&pod).await?;
        }
        self.weigh_held_back(&group).await
    }

    /// Whether the pod may take part, and as what.
    fn admit(&self, publish: &Publish) -> Result<Volume, Refusal> {
        let Some(pod) = self.pods.get(&publish.pod.uid) else {
            return Err(Refusal::NotYet(self.seen.not_known(&publish.pod)));
        };
        let (mut volume, asks) = Volume::of(publish, pod)?;
        // The kubelet asks again: another policy may let it in.
        let policy = Arc::clone(&self.policies.borrow());
        let member = volume.member();
        let uninvited = policy.may_be_member(&member.party()).err();
        let mut denied = policy.denied_of(&member.party(), asks).into_iter();
        if let Some(refusal) = uninvited.or_else(|| denied.next()) {
            return Err(Refusal::Invalid(refusal.to_string()));
        }
        // One that waits for its slot is the pod's as well.
        let mut others = self.volumes.values().map(|served| &served.volume).chain(self.left_out());
        if let Some(other) = others.find(|other| other.uid == volume.uid && other.id != volume.id) {
            return Err(Refusal::Invalid(again::one_is_enough(other)));
        }
        // Where it is found out what the pod holds, its processes are let in when that is known.
        if self.asker.is_none() {
            volume.containers = containers(pod);
        }
        Ok(self.with_range(volume))
    }

    fn mount(&self, volume: &Volume) -> Answer {
        let folder = self.records.slot_folder(&volume.slot);
        mounts::mount(&folder, &volume.target).map_err(|e| {
            Refusal::Internal(format!("the slot cannot be mounted at {}: {e}", volume.target.display()))
        })
    }

    async fn unpublish(&mut self, unpublish: &Unpublish) -> Result<Answer, Stopping> {
        self.seen.gone(&unpublish.volume);
        let of_another = |served: &&Served| served.volume.uid.as_str() != unpublish.pod_uid;
        if let Some(served) = self.volumes.get(&unpublish.volume).filter(of_another) {
            let (pod, uid) = (&served.volume.pod, &served.volume.uid);
            return Ok(Err(Refusal::Invalid(format!("the volume is pod {pod}'s, of UID {uid}"))));
        }
        if let Err(e) = mounts::unmount(&unpublish.target) {
            let target = unpublish.target.display();
            return Ok(Err(Refusal::Internal(format!("the slot at {target} cannot be unmounted: {e}"))));
        }
        if let Some(volume) = self.is_seen_to(&unpublish.volume) {
            self.forget(&volume);
            self.records.remove(&volume.slot);
        }
        if let Some(Served { volume, .. }) = self.volumes.remove(&unpublish.volume) {
            self.end(&volume, "its volume is taken down").await?;
            self.records.remove(&volume.slot);
        }
        Ok(Ok(()))
    }

    /// The member of a volume that is not there any more.
    async fn end(&mut self, volume: &Volume, why: &'static str) -> Result<(), Stopping> {
        info!(slot = %volume.slot, pod = %volume.pod, why, "the pod takes part no longer");
        self.forget(volume);
        self.leave(volume.slot.clone()).await?;
        self.weigh_held_back(&volume.group).await
    }

    async fn join(&self, member: Member) -> Result<Result<(), JoinError>, Stopping> {
        let (asker, answer) = oneshot::channel();
        self.say(Change::Join(member, asker)).await?;
        Ok(answer.await.map_err(|_| Stopping)?.map(drop))
    }

    async fn leave(&self, slot: SlotId) -> Result<(), Stopping> {
        let (asker, answer) = oneshot::channel();
        self.say(Change::Leave(slot, asker)).await?;
        answer.await.map_err(|_| Stopping)
    }

    async fn say(&self, change: Change) -> Result<(), Stopping> {
        self.changes.send(change).await.map_err(|_| Stopping)
    }
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
