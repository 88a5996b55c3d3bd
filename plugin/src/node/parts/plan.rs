//! What each member's containers are to get when they are created.
//!
//! The node's own task writes the plans; whoever creates containers reads a snapshot, and waits for nobody.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use gpu_handoff_protocol::{GroupKey, PodRef, PodUid, Refusal, SlotId};
use tokio::sync::watch;

use super::Parts;

/// The plan of each member. A pod that is not among them is no member.
pub(in crate::node) type Plans = BTreeMap<PodUid, Arc<Plan>>;

/// What the containers of a member are to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Plan {
    /// The slot that this comes with.
    pub(in crate::node) slot: SlotId,
    pub(in crate::node) pod: PodRef,
    /// Which of all pods of that name it is.
    pub(in crate::node) uid: PodUid,
    pub(in crate::node) group: GroupKey,
    /// What the pod asked for, and was granted.
    pub(in crate::node) parts: Parts,
    /// Which range of process numbers it has; `None`: what the kernel gives.
    pub(in crate::node) range: Option<u32>,
    /// Why none of its containers may be created as it is; `None`: they may.
    pub(in crate::node) refused: Option<Refusal>,
    /// What is mounted at `/dev/shm`; `None`: what the runtime mounts.
    pub(in crate::node) shm: Option<Place>,
    /// The IPC namespace; `None`: the pod's own.
    pub(in crate::node) ipc: Option<Pin>,
    /// What containers get that have GPUs, by their names.
    pub(in crate::node) devices: BTreeMap<String, Grant>,
    /// Variables for all containers that do not have them, with their values.
    pub(in crate::node) env: BTreeMap<String, String>,
}

/// A folder of the node, by which a container can be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Place {
    pub(in crate::node) path: PathBuf,
    /// Its file system, as `stat` numbers it.
    pub(in crate::node) device: u64,
}

/// A namespace that a file keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Pin {
    pub(in crate::node) path: PathBuf,
    /// Which it is, as `/proc/PID/ns` names it.
    pub(in crate::node) inode: u64,
}

/// What a container gets of GPUs that were given to others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::node) struct Grant {
    /// Their device nodes, at the same paths.
    pub(in crate::node) nodes: Vec<PathBuf>,
    /// Variables that it is to have, whatever it says itself.
    pub(in crate::node) env: BTreeMap<String, String>,
}

/// Writes the plans. Only one has it.
#[derive(Debug)]
pub(in crate::node) struct Planner(watch::Sender<Arc<Plans>>);

impl Planner {
    /// With the plans of those that are members already.
    pub(in crate::node) fn new(plans: impl IntoIterator<Item = Plan>) -> Self {
        let plans = plans.into_iter().map(|plan| (plan.uid.clone(), Arc::new(plan))).collect();
        Self(watch::Sender::new(Arc::new(plans)))
    }

    /// For whoever creates containers.
    pub(in crate::node) fn subscribe(&self) -> watch::Receiver<Arc<Plans>> {
        self.0.subscribe()
    }

    /// A pod is a member, or is to get something else from now on.
    pub(in crate::node) fn put(&self, plan: Plan) {
        self.0.send_modify(|plans| drop(Arc::make_mut(plans).insert(plan.uid.clone(), Arc::new(plan))));
    }

    /// The pod that had this slot is no member any more. Whether it was one with this slot.
    pub(in crate::node) fn remove(&self, uid: &PodUid, slot: &SlotId) -> bool {
        self.0.send_if_modified(|plans| {
            let has = plans.get(uid).is_some_and(|plan| plan.slot == *slot);
            if has {
                Arc::make_mut(plans).remove(uid);
            }
            has
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::membership::testing::volume;

    #[test]
    fn a_snapshot_stays_as_it_is_and_the_next_has_what_was_put_and_removed() {
        let (first, second) = (volume("csi-1").plan(), volume("csi-2").plan());
        let uid = first.uid.clone();
        assert_eq!(uid, second.uid, "one pod, a volume after the other");
        let planner = Planner::new([first.clone()]);
        let told = planner.subscribe();
        let snapshot = Arc::clone(&told.borrow());
        planner.put(second.clone());
        assert_eq!(*snapshot[&uid], first);
        assert_eq!(*told.borrow()[&uid], second);
        // The end of the volume that was the pod's before is not the end of this one.
        planner.remove(&uid, &first.slot);
        assert_eq!(*told.borrow()[&uid], second);
        planner.remove(&uid, &second.slot);
        assert!(told.borrow().is_empty());
    }
}
