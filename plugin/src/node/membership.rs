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
//! | the group that a pod asks for | [`group`] |
//! | what the node's status tells of all this | [`seen`] |

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};

use gpu_handoff_kubelet::csi::{Answer, Command, Publish, Refusal, Unpublish};
use gpu_handoff_kubelet::pods::{PodEvent, PodFacts};
use gpu_handoff_protocol::SlotId;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use super::slots::{Change, JoinError};
use crate::identity::cgroup::ContainerId;
use crate::limits;
use crate::members::Member;

mod group;
mod mounts;
mod records;
mod seen;
mod volume;

pub(super) use records::Records;
pub(super) use seen::{Seen, Teller, Wait};
pub(super) use volume::Volume;

/// What is known of pods and their volumes. One task has it.
#[derive(Debug)]
pub(super) struct Membership {
    changes: mpsc::Sender<Change>,
    records: Records,
    /// By the volume's id.
    volumes: BTreeMap<String, Served>,
    /// By UID.
    pods: HashMap<String, PodFacts>,
    /// Volumes of pods that nobody has told of yet.
    waiting: VecDeque<(Publish, oneshot::Sender<Answer>)>,
    seen: Teller,
}

/// A volume that is there.
#[derive(Debug)]
struct Served {
    volume: Volume,
    /// The broker knows that its pod is being deleted.
    ending: bool,
    /// The containers that the broker knows of.
    containers: BTreeSet<ContainerId>,
}

/// The node is about to end.
#[derive(Debug)]
struct Stopping;

impl Membership {
    /// With the volumes that are on record; their members have joined.
    pub(super) fn new(
        changes: mpsc::Sender<Change>,
        records: Records,
        volumes: Vec<Volume>,
        seen: Teller,
    ) -> Self {
        let served = |volume: Volume| {
            (volume.id.clone(), Served { volume, ending: false, containers: BTreeSet::new() })
        };
        let volumes = volumes.into_iter().map(served).collect();
        Self { changes, records, volumes, pods: HashMap::new(), waiting: VecDeque::new(), seen }
    }

    /// Does what the kubelet asks, and passes on what it says of pods, until the node ends.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut pods: gpu_handoff_kubelet::pods::Pods,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut stopped = pin!(async move { drop(stop.wait_for(|stopping| *stopping).await) });
        loop {
            let done = tokio::select! {
                () = &mut stopped => return,
                Some(command) = commands.recv() => self.take(command).await,
                event = pods.next() => match event {
                    Some(event) => self.hear(event).await,
                    // The others go on: those that are known are served.
                    None => {
                        let why = "what tells of this node's pods has broken off: no new ones are served";
                        self.seen.broke_off(why);
                        warn!("{why}");
                        std::future::pending().await
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
            // Told of in a moment, mostly. The kubelet's patience ends before this queue is of any length.
            self.seen.waits(&publish, &not_known(&publish));
            self.waiting.retain(|(_, asker)| !asker.is_closed());
            if self.waiting.len() < limits::WAITING_VOLUMES {
                self.waiting.push_back((publish, asker));
            }
            return Ok(());
        }
        self.answer(publish, asker).await
    }

    async fn answer(&mut self, publish: Publish, asker: oneshot::Sender<Answer>) -> Result<(), Stopping> {
        let answer = self.serve(publish.clone()).await?;
        self.seen.answered(&publish, &answer);
        let _ = asker.send(answer);
        Ok(())
    }

    /// Has the volume there.
    async fn serve(&mut self, publish: Publish) -> Result<Answer, Stopping> {
        if let Some(served) = self.volumes.get(&publish.volume) {
            let volume = served.volume.clone();
            return Ok(volume.is_asked_for_by(&publish).and_then(|()| self.mount(&volume)));
        }
        let (volume, containers) = match self.admit(&publish) {
            Ok(admitted) => admitted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut member = volume.member();
        member.containers = Some(containers.clone());
        match self.join(member).await? {
            Ok(()) => {}
            Err(e @ JoinError::NoSlot) => return Ok(Err(Refusal::NoSlot(e.to_string()))),
            Err(e) => return Ok(Err(Refusal::Internal(e.to_string()))),
        }
        // On record first: what is mounted and not on record would stay for ever.
        let slot = volume.slot.clone();
        let done = match self.records.write(&volume) {
            Ok(()) => self.mount(&volume),
            Err(e) => Err(Refusal::Internal(format!("the volume cannot be put on record: {e}"))),
        };
        if done.is_err() {
            self.records.remove(&slot);
            self.leave(slot).await?;
        } else {
            info!(%slot, pod = %volume.pod, uid = %volume.uid, group = %volume.group, "the pod takes part");
            self.volumes.insert(volume.id.clone(), Served { volume, ending: false, containers });
        }
        Ok(done)
    }

    /// Whether the pod may take part, and as what.
    fn admit(&self, publish: &Publish) -> Result<(Volume, BTreeSet<ContainerId>), Refusal> {
        let Some(pod) = self.pods.get(&publish.pod.uid) else {
            return Err(Refusal::NotYet(not_known(publish)));
        };
        let volume = Volume::of(publish, pod)?;
        if let Some(other) = self.volumes.values().find(|served| served.volume.uid == volume.uid) {
            return Err(Refusal::Invalid(format!(
                "the pod has a slot already, as volume {:?}: one is enough for all of its containers",
                other.volume.name
            )));
        }
        Ok((volume, containers(pod)))
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
        if let Some(Served { volume, .. }) = self.volumes.remove(&unpublish.volume) {
            self.end(volume, "its volume is taken down").await?;
        }
        Ok(Ok(()))
    }

    /// A volume that is not there any more, and its member.
    async fn end(&mut self, volume: Volume, why: &'static str) -> Result<(), Stopping> {
        info!(slot = %volume.slot, pod = %volume.pod, why, "the pod takes part no longer");
        self.leave(volume.slot.clone()).await?;
        self.records.remove(&volume.slot);
        Ok(())
    }

    async fn hear(&mut self, event: PodEvent) -> Result<(), Stopping> {
        self.seen.hear(&event);
        match event {
            PodEvent::Source(source) => info!(%source, "the pods of this node are told of"),
            PodEvent::Away(why) => warn!(why, "nobody tells of pods: known ones are served, new ones wait"),
            PodEvent::Added(pod) | PodEvent::Changed(pod) => {
                let uid = pod.uid.clone();
                self.tell_of(&pod).await?;
                self.pods.insert(uid.clone(), *pod);
                self.serve_waiting(&uid).await?;
            }
            PodEvent::Deleted(gone) => {
                self.pods.remove(&gone.uid);
                self.reclaim(|volume| volume.uid.as_str() == gone.uid).await?;
            }
            PodEvent::Synced => {
                let known: BTreeSet<String> = self.pods.keys().cloned().collect();
                self.reclaim(|volume| !known.contains(volume.uid.as_str())).await?;
            }
        }
        self.seen.knows(self.pods.len());
        Ok(())
    }

    /// Pods that are gone, and whose volumes nobody has taken down: the kubelet will, if it still knows of them.
    async fn reclaim(&mut self, is_gone: impl Fn(&Volume) -> bool) -> Result<(), Stopping> {
        let gone = self.volumes.extract_if(.., |_, served| is_gone(&served.volume)).collect::<Vec<_>>();
        for (_, Served { volume, .. }) in gone {
            if let Err(e) = mounts::unmount(&volume.target) {
                warn!(target = %volume.target.display(), error = %e, "the slot of a pod that is gone cannot be unmounted");
            }
            self.end(volume, "the pod is gone").await?;
        }
        Ok(())
    }

    /// Tells the broker what has changed of a pod that takes part.
    async fn tell_of(&mut self, pod: &PodFacts) -> Result<(), Stopping> {
        let containers = containers(pod);
        let end = ending(pod, SystemTime::now(), Instant::now());
        let mut news = Vec::new();
        for served in self.volumes.values_mut().filter(|served| served.volume.uid.as_str() == pod.uid) {
            let slot = &served.volume.slot;
            if served.containers != containers {
                served.containers.clone_from(&containers);
                news.push(Change::Containers(slot.clone(), containers.clone()));
            }
            if let Some(until) = end.filter(|_| !served.ending) {
                served.ending = true;
                info!(%slot, pod = %served.volume.pod, "the pod is being deleted: what it has published is retired");
                news.push(Change::Ending(slot.clone(), until));
            }
        }
        for change in news {
            self.say(change).await?;
        }
        Ok(())
    }

    async fn serve_waiting(&mut self, uid: &str) -> Result<(), Stopping> {
        let (ours, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(p, _)| p.pod.uid == uid);
        self.waiting = others.into();
        for (publish, asker) in ours {
            if !asker.is_closed() {
                self.answer(publish, asker).await?;
            }
        }
        Ok(())
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

fn not_known(publish: &Publish) -> String {
    format!("pod {} is not known of yet", publish.pod)
}

/// The containers that the pod's status names.
fn containers(pod: &PodFacts) -> BTreeSet<ContainerId> {
    pod.containers.iter().filter_map(|c| c.container_id.as_deref()?.parse().ok()).collect()
}

/// When a pod that is being deleted or evicted will be gone.
fn ending(pod: &PodFacts, today: SystemTime, now: Instant) -> Option<Instant> {
    let left = |at: SystemTime| at.duration_since(today).unwrap_or_default().min(limits::LONGEST_END);
    match pod.deletion {
        Some(at) => Some(now + left(at)),
        None => pod.disrupted.then_some(now + Duration::ZERO),
    }
}

#[cfg(test)]
mod tests;
