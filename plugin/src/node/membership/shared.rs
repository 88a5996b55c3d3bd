//! What members share with their groups beside buffers, as they come and go: their plans have it from before the kubelet is
//! answered.

use std::sync::Arc;

use gpu_handoff_inject::{Ipc, Shm};
use gpu_handoff_kubelet::csi::Refusal;
use gpu_handoff_protocol::{Code, Refusal as Refused};

use super::{Membership, Volume};
use crate::node::groups::{Ended, EnterError, Groups, OnRecord, Shared, Thing, Wish};
use crate::node::parts::plan::{Pin, Place, Plan};

impl Volume {
    /// Its pod, as a member of a group that shares something.
    pub(in crate::node) fn sharer(&self) -> OnRecord {
        let Self { group, uid, parts, .. } = self;
        let wish = Wish { shm: parts.shm == Shm::Group, size: parts.shm_size, ipc: parts.ipc == Ipc::Group };
        (group.clone(), uid.clone(), wish)
    }

    /// What its pod's containers are to get, where its group shares this. What was granted and cannot be given is said, and
    /// then none is created.
    fn plan_with(&self, shared: Shared) -> Plan {
        let (.., wish) = self.sharer();
        let Shared { shm, ipc } = shared;
        let lacks = |asked: bool, thing: &Option<Thing>, what| (asked && thing.is_none()).then_some(what);
        let missing = lacks(wish.shm, &shm, "/dev/shm").or(lacks(wish.ipc, &ipc, "IPC namespace"));
        let refused = missing.map(|what| {
            let wanted = format!("that of group {}", self.group);
            Refused::new(Code::NotAdjusted)
                .compared_with(what, wanted, "it cannot be made on this node for now")
                .with_remedy("look at the node daemon's log: it tries again and says what stands in the way")
        });
        Plan {
            refused,
            shm: shm.map(|Thing { path, number }| Place { path, device: number }),
            ipc: ipc.map(|Thing { path, number }| Pin { path, inode: number }),
            ..self.plan()
        }
    }
}

impl Membership {
    /// Has groups share what their members were granted. Those on record do already.
    pub(in crate::node) async fn sharing(mut self, groups: Option<Groups>) -> Self {
        self.groups = groups;
        self.plan_again().await;
        self
    }

    /// Writes the plan of a pod that comes, with what its group shares, which is there then.
    pub(super) async fn share(&self, volume: &Volume) -> Result<(), Refusal> {
        let sharer = volume.sharer();
        if !sharer.2.is_some() {
            // It waits for nobody who shares something.
            self.plans.put(volume.plan());
            return Ok(());
        }
        let Some(groups) = &self.groups else {
            let why = "groups can share nothing beside buffers on this node: the log of the daemon's start says why";
            return Err(Refusal::Internal(why.to_owned()));
        };
        let policy = Arc::clone(&self.policies.borrow());
        match groups.enter(policy, sharer).await {
            Ok(shared) => {
                self.plans.put(volume.plan_with(shared));
                Ok(())
            }
            Err(e @ (EnterError::Refused(_) | EnterError::Full)) => Err(Refusal::NoSlot(e.to_string())),
            Err(e @ EnterError::Ending) => Err(Refusal::NotYet(e.to_string())),
            Err(e @ EnterError::Failed { .. }) => {
                Err(Refusal::Internal(format!("{:#}", anyhow::Error::new(e))))
            }
        }
    }

    /// Has no plan any more for a pod that had this volume, and nothing shared with it.
    pub(super) fn forget(&self, volume: &Volume) {
        let (group, uid, wish) = volume.sharer();
        if self.plans.remove(&volume.uid, &volume.slot)
            && wish.is_some()
            && let Some(groups) = &self.groups
        {
            drop(groups.leave(group, uid));
        }
    }

    /// Writes the plans anew: what groups share is something else.
    pub(super) async fn plan_again(&self) {
        let Some(groups) = &self.groups else { return };
        for volume in self.volumes.values().map(|served| &served.volume).chain(self.left_out()) {
            let (group, _, wish) = volume.sharer();
            if wish.is_some() {
                self.plans.put(volume.plan_with(groups.shared(group, wish).await));
            }
        }
    }
}

/// Comes back when what groups share is something else, or nobody looks after it any more. Never, where nobody was to.
pub(super) async fn changed(groups: &mut Option<Groups>) -> Result<(), Ended> {
    match groups {
        Some(groups) => groups.changed().await,
        None => std::future::pending().await,
    }
}
