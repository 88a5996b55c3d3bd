//! What a member has beside its slot, where it asks for it and the policy grants it: its group's `/dev/shm`, its group's IPC
//! namespace, process numbers of its own, device nodes of its group's GPUs. All of it comes into a container when that is
//! created, and is decided before: the [`Plan`] of each member is there as long as its volume is on record, before the kubelet is
//! answered for that, and after a restart of the daemon before anybody can ask.
//!
//! | concern | file |
//! |---|---|
//! | the plans, and who may read them | [`plan`] |

use gpu_handoff_inject::{Devices, Ipc, Pids, Profile, Shm, Wishes};
use serde::{Deserialize, Serialize};

pub(in crate::node) mod plan;

pub(in crate::node) use plan::{Plan, Planner, Plans};

/// What a pod asked for when its volume came, and was granted: it is on the volume's record, and nobody changes it by changing an
/// annotation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
// A later version may write more, and be taken back; a record of an earlier one says less.
#[serde(rename_all = "kebab-case", default)]
pub(in crate::node) struct Parts {
    /// Which kind of program runs in it.
    pub(in crate::node) profile: Profile,
    /// Whether its group shares `/dev/shm`.
    pub(in crate::node) shm: Shm,
    /// How large that is, in bytes; `None`: as the policy says.
    pub(in crate::node) shm_size: Option<u64>,
    /// Whether its group shares an IPC namespace.
    pub(in crate::node) ipc: Ipc,
    /// Whether process numbers differ within its group.
    pub(in crate::node) pids: Pids,
    /// Whose GPUs its containers have device nodes of.
    pub(in crate::node) devices: Devices,
    /// How many members its group has.
    pub(in crate::node) group_size: Option<u32>,
}

impl From<&Wishes> for Parts {
    fn from(wishes: &Wishes) -> Self {
        Self {
            profile: wishes.profile,
            shm: wishes.shm,
            shm_size: wishes.shm_size,
            ipc: wishes.ipc,
            pids: wishes.pids,
            devices: wishes.devices,
            group_size: wishes.group_size,
        }
    }
}
