//! What could not be done for a volume, and is tried again: making the slot of one that is on record, and taking down the mount of one
//! whose pod is gone. Its record stays until then, so that the daemon's next life goes on with it.

use std::time::Instant;

use tracing::{error, warn};

use super::start::Start;
use super::{Membership, Stopping, Volume, mounts};
use crate::limits;
use crate::node::events::{Kind, Notice};
use crate::pace::{self, now};

/// What is to be done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Join,
    TakeDown,
}

/// A volume for which it could not be.
#[derive(Debug)]
pub(super) struct Undone {
    pub(super) volume: Volume,
    deed: Deed,
    tries: u32,
    at: Instant,
}

impl Membership {
    /// With volumes that are on record and have no slot, and why: they are left out until they have one. Their containers get
    /// what they are to get.
    pub(in crate::node) fn leaving_out(mut self, volumes: Vec<(Volume, String)>) -> Self {
        for (volume, why) in volumes {
            self.plans.put(volume.plan());
            self.leave_out(volume, &why);
        }
        self
    }

    pub(super) fn leave_out(&mut self, volume: Volume, why: &str) {
        let note = format!(
            "the pod is no member for now: after a restart of the node daemon its slot cannot be made again, which is tried \
             again and again: {why}"
        );
        self.events.tell(Notice::new(volume.about(), Kind::Warning, "SlotRefused", &note));
        self.put_off(volume, Deed::Join, 0, why);
    }

    fn put_off(&mut self, volume: Volume, deed: Deed, tries: u32, why: &str) {
        let again_in = pace::doubled(limits::UNDONE_PAUSE, tries, limits::UNDONE_LONGEST_PAUSE);
        let (slot, pod, target) = (&volume.slot, &volume.pod, volume.target.display());
        match deed {
            Deed::Join => {
                error!(%slot, %pod, why, ?again_in, "the slot of a pod cannot be made again: the pod is no member until then");
                self.seen.waits(&volume.publish(), why);
            }
            Deed::TakeDown => {
                warn!(%slot, %pod, %target, why, ?again_in, "the slot of a pod that is gone cannot be unmounted");
            }
        }
        if self.undone.len() >= limits::UNDONE_VOLUMES {
            warn!(%slot, %pod, "so much is to be tried again that this is left for the daemon's next start");
            return;
        }
        self.undone.push(Undone { volume, deed, tries, at: now() + again_in });
    }

    /// When something is to be tried again.
    pub(super) fn next_try(&self) -> Option<Instant> {
        self.undone.iter().map(|undone| undone.at).min()
    }

    /// Tries what is to be tried again by now.
    pub(super) async fn try_again(&mut self, now: Instant) -> Result<(), Stopping> {
        let due: Vec<_> = self.undone.extract_if(.., |undone| undone.at <= now).collect();
        for Undone { volume, deed, tries, .. } in due {
            match deed {
                Deed::Join => self.join_again(volume, tries + 1).await?,
                Deed::TakeDown => self.take_down(volume, tries + 1),
            }
        }
        Ok(())
    }

    async fn join_again(&mut self, volume: Volume, tries: u32) -> Result<(), Stopping> {
        if let Err(e) = self.join(volume.member()).await? {
            self.put_off(volume, Deed::Join, tries, &format!("{:#}", anyhow::Error::new(e)));
            return Ok(());
        }
        if let Err(why) = self.mount_again(&volume).await? {
            self.put_off(volume, Deed::Join, tries, &why);
            return Ok(());
        }
        self.seen.gone(&volume.id);
        self.takes_part(volume, Start::of_before()).await
    }

    /// Has nothing left of a volume whose pod is gone.
    pub(super) fn take_down(&mut self, volume: Volume, tries: u32) {
        match mounts::unmount(&volume.target) {
            Ok(()) => self.records.remove(&volume.slot),
            Err(e) => self.put_off(volume, Deed::TakeDown, tries, &e.to_string()),
        }
    }

    /// Those that have no slot.
    pub(super) fn left_out(&self) -> impl Iterator<Item = &Volume> {
        self.undone.iter().filter(|undone| undone.deed == Deed::Join).map(|undone| &undone.volume)
    }

    /// Those that have no slot, and whose pods are gone.
    pub(super) fn without_slot(&mut self, is_gone: impl Fn(&Volume) -> bool) -> Vec<Volume> {
        let gone = self.undone.extract_if(.., |undone| undone.deed == Deed::Join && is_gone(&undone.volume));
        gone.map(|undone| undone.volume).collect()
    }

    /// The kubelet sees to a volume itself: nothing of it is to be tried again.
    pub(super) fn is_seen_to(&mut self, id: &str) -> Option<Volume> {
        self.undone.extract_if(.., |undone| undone.volume.id == id).next().map(|undone| undone.volume)
    }
}
