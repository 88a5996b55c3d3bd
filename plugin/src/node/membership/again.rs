//! Volumes that are on record, whose members join again: at the daemon's start, and later those that could not then. A pod has one.

use tracing::{info, warn};

use super::{Membership, Records, Stopping, Volume, mounts};
use crate::node::events::{Kind, Notice};

/// Of several volumes of one pod, which nobody is given, the one whose slot its pod sees, or else the first; and the others.
pub(in crate::node) fn one_of_each_pod(
    mut volumes: Vec<Volume>,
    records: &Records,
) -> (Vec<Volume>, Vec<Volume>) {
    let is_unseen = |volume: &Volume| !is_mounted(records, volume);
    volumes.sort_by_cached_key(|volume| (volume.uid.to_string(), is_unseen(volume), volume.id.clone()));
    let (mut ones, mut others): (Vec<Volume>, Vec<Volume>) = (Vec::new(), Vec::new());
    for volume in volumes {
        match ones.last() {
            Some(one) if one.uid == volume.uid => others.push(volume),
            _ => ones.push(volume),
        }
    }
    (ones, others)
}

fn is_mounted(records: &Records, volume: &Volume) -> bool {
    mounts::is_same(&records.slot_folder(&volume.slot), &volume.target).unwrap_or(false)
}

/// What the owner of a pod is told that has a volume beside this one.
pub(super) fn one_is_enough(volume: &Volume) -> String {
    let name = &volume.name;
    format!("the pod has a slot already, as volume {name:?}: one is enough for all of its containers")
}

impl Membership {
    /// With further volumes of pods that have one, which are on record and were not given a slot: nothing is left of them.
    pub(in crate::node) fn taking_down(mut self, others: Vec<Volume>) -> Self {
        for other in others {
            let of_pod = |one: &&Volume| one.uid == other.uid;
            let one = self.volumes.values().map(|served| &served.volume).chain(self.left_out()).find(of_pod);
            let note = one.map(one_is_enough).unwrap_or_default();
            warn!(pod = %other.pod, volume = other.name, note, "a second volume of a pod is on record");
            self.events.tell(Notice::new(other.about(), Kind::Warning, "SlotRefused", &note));
            self.take_down(other, 0);
        }
        self
    }

    /// At the daemon's start: those whose members have joined are there where their pods see them.
    pub(super) async fn mount_all_again(&mut self) -> Result<(), Stopping> {
        let volumes: Vec<Volume> = self.volumes.values().map(|served| served.volume.clone()).collect();
        for volume in volumes {
            if let Err(why) = self.mount_again(&volume).await? {
                self.volumes.remove(&volume.id);
                self.leave_out(volume, &why);
            }
        }
        Ok(())
    }

    /// Has the slot of a member that has joined again where its pod sees it; a slot that it does not see is none. A mount that an
    /// earlier life of the daemon left half done is made whole. Its owner is told where another slot was there, which is the one that
    /// its containers see: where none was, an end of the daemon came before the first mount or after the last.
    pub(super) async fn mount_again(&mut self, volume: &Volume) -> Result<Result<(), String>, Stopping> {
        let is_replaced =
            !is_mounted(&self.records, volume) && mounts::is_mounted(&volume.target).unwrap_or(false);
        if let Err(refusal) = self.mount(volume) {
            self.leave(volume.slot.clone()).await?;
            return Ok(Err(refusal.to_string()));
        }
        if !is_replaced {
            info!(slot = %volume.slot, pod = %volume.pod, "the pod takes part again");
            return Ok(Ok(()));
        }
        let note = "the pod's slot was made and mounted anew: each of its containers sees it, and takes part again, when it has been \
            restarted";
        warn!(slot = %volume.slot, pod = %volume.pod, "{note}");
        self.events.tell(Notice::new(volume.about(), Kind::Warning, "SlotReplaced", note));
        Ok(Ok(()))
    }
}
