//! What the kubelet says of pods, passed on to the broker as far as it concerns members.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use gpu_handoff_kubelet::pods::{PodEvent, PodFacts};
use tracing::{info, warn};

use super::{Membership, Served, Stopping, Volume};
use crate::identity::cgroup::ContainerId;
use crate::limits;
use crate::node::events::{Kind, Notice};
use crate::node::slots::Change;

impl Membership {
    pub(super) async fn hear(&mut self, event: PodEvent) -> Result<(), Stopping> {
        self.seen.hear(&event);
        match event {
            PodEvent::Source(source) => info!(%source, "the pods of this node are told of"),
            PodEvent::Away(why) => warn!(why, "nobody tells of pods: known ones are served, new ones wait"),
            PodEvent::Added(pod) | PodEvent::Changed(pod) => {
                let uid = pod.uid.clone();
                self.pods.insert(uid.clone(), pod.as_ref().clone());
                self.tell_of(&pod).await?;
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
        let gone = self.volumes.extract_if(.., |_, served| is_gone(&served.volume));
        let mut gone: Vec<Volume> = gone.map(|(_, Served { volume, .. })| volume).collect();
        gone.extend(self.without_slot(is_gone));
        for volume in gone {
            self.end(&volume, "the pod is gone").await?;
            self.take_down(volume, 0);
        }
        Ok(())
    }

    /// Tells the broker what has changed of a pod that takes part.
    pub(super) async fn tell_of(&mut self, pod: &PodFacts) -> Result<(), Stopping> {
        let containers = containers(pod);
        let end = ending(pod, SystemTime::now(), Instant::now());
        let (mut news, mut changed, mut begins) = (Vec::new(), Vec::new(), false);
        for served in self.volumes.values_mut().filter(|served| served.volume.uid.as_str() == pod.uid) {
            let slot = &served.volume.slot;
            if served.volume.containers != containers && (self.asker.is_none() || served.start.lets_in(pod)) {
                served.volume.containers.clone_from(&containers);
                changed.push(served.volume.clone());
                news.push(Change::Containers(slot.clone(), containers.clone()));
            }
            if !containers.is_empty() && served.start.begins() {
                begins = true;
            }
            if let Some(until) = end.filter(|_| !served.ending) {
                served.ending = true;
                info!(%slot, pod = %served.volume.pod, "the pod is being deleted: what it has published is retired");
                let note = "the pod is being deleted: it publishes nothing more, and what it has published is retired";
                self.events.tell(Notice::new(served.volume.about(), Kind::Normal, "Retiring", note));
                news.push(Change::Ending(slot.clone(), until));
            }
        }
        for volume in changed {
            if let Err(e) = self.records.write(&volume) {
                warn!(slot = %volume.slot, error = %e, "the containers of a pod cannot be put on record");
            }
        }
        if begins {
            // Its processes are let in when it is known what they may use.
            self.look_into(pod);
        }
        for change in news {
            self.say(change).await?;
        }
        Ok(())
    }
}

/// The containers that the pod's status names.
pub(super) fn containers(pod: &PodFacts) -> BTreeSet<ContainerId> {
    pod.containers.iter().filter_map(|c| c.container_id.as_deref()?.parse().ok()).collect()
}

/// When a pod that is being deleted, or that the kubelet ends, will be gone. What is retired is not taken back, so that alone counts
/// which is not either.
fn ending(pod: &PodFacts, today: SystemTime, now: Instant) -> Option<Instant> {
    let left = |at: SystemTime| at.duration_since(today).unwrap_or_default().min(limits::LONGEST_END);
    match pod.deletion {
        Some(at) => Some(now + left(at)),
        None => pod.ended_by_kubelet.then_some(now),
    }
}
