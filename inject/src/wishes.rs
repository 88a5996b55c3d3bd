//! What a pod asks for: its annotations, read and checked.

use std::collections::BTreeMap;

use gpu_handoff_policy::Asks;
use gpu_handoff_protocol::{GroupKey, Namespace};

use crate::denial::{Denial, Reasons};
use crate::keys::{Key, PREFIX};
use crate::reader::Reader;
use crate::words::{Access, Colocate, Devices, Ipc, OnFailure, Pids, Profile, Shm};
use crate::{group, support};

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wishes {
    /// The group that it is a member of.
    pub group: GroupKey,
    /// Which kind of program runs in it; what the parts below are where nobody says.
    pub profile: Profile,
    /// Whether the group shares `/dev/shm`.
    pub shm: Shm,
    /// How large that is, in bytes.
    pub shm_size: Option<u64>,
    /// Whether the group shares an IPC namespace.
    pub ipc: Ipc,
    /// Whether process numbers differ within the group.
    pub pids: Pids,
    /// Whose GPUs its containers have device nodes of.
    pub devices: Devices,
    /// How many members the group has.
    pub group_size: Option<u32>,
    /// What it may do with others' buffers.
    pub access: Access,
    /// Whether the group's pods must be on one node.
    pub colocate: Colocate,
    /// The containers that get the socket; `None`: all but the init containers.
    pub containers: Option<Vec<String>>,
    /// What happens to the applications where the pod's start fails; `None`: as the policy says.
    pub on_failure: Option<OnFailure>,
}

impl Wishes {
    /// Reads what a pod of this namespace asks for; `None` where it has no annotation of ours.
    ///
    /// # Errors
    /// Every annotation that does not exist, has a value that it cannot have, or asks for what this version cannot do.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        labels: &BTreeMap<String, String>,
        namespace: &Namespace,
    ) -> Result<Option<Self>, Denial> {
        if !annotations.keys().any(|key| key.starts_with(PREFIX)) {
            return Ok(None);
        }
        let mut reader = Reader::new(annotations);
        reader.refuse_unknown();
        let group = group::read(&mut reader, labels, namespace);
        let wishes = Self::parts(&mut reader, group);
        let mut reasons: Reasons = reader.into_reasons();
        if let Some(wishes) = &wishes {
            support::check(wishes, annotations, &mut reasons);
        }
        reasons.into_result()?;
        Ok(wishes)
    }

    /// What of it a policy grants.
    #[must_use]
    pub fn asks(&self) -> Asks {
        let shares = self.shm != Shm::None || self.ipc != Ipc::None || self.pids != Pids::Own;
        Asks { profile: self.profile, shares, devices: self.devices, on_failure: self.on_failure }
    }

    /// Reads the rest, whether or not there is a group: a user wants to know all that is wrong.
    fn parts(reader: &mut Reader<'_>, group: Option<GroupKey>) -> Option<Self> {
        let profile: Profile = reader.word(Key::Profile).unwrap_or_default();
        let (shm, pids, devices) = defaults(profile);
        let ipc = reader.word(Key::Ipc).unwrap_or_default();
        // A shared IPC namespace without a shared /dev/shm is half a thing.
        let shm = if ipc == Ipc::Group { Shm::Group } else { shm };
        let shm = reader.word(Key::Shm).unwrap_or(shm);
        let shm_size = reader.bytes(Key::ShmSize);
        let pids = reader.word(Key::Pids).unwrap_or(pids);
        let devices = reader.word(Key::Devices).unwrap_or(devices);
        let group_size = reader.group_size();
        let access = reader.word(Key::Access).unwrap_or_default();
        let colocate = reader.word(Key::Colocate).unwrap_or_default();
        let containers = reader.containers();
        let on_failure = reader.word(Key::OnFailure);
        Some(Self {
            group: group?,
            profile,
            shm,
            shm_size,
            ipc,
            pids,
            devices,
            group_size,
            access,
            colocate,
            containers,
            on_failure,
        })
    }
}

/// What a profile sets.
const fn defaults(profile: Profile) -> (Shm, Pids, Devices) {
    match profile {
        Profile::Client => (Shm::None, Pids::Own, Devices::Own),
        Profile::Torch => (Shm::Group, Pids::Distinct, Devices::Own),
        Profile::Nccl => (Shm::Group, Pids::Distinct, Devices::Group),
    }
}

#[cfg(test)]
mod tests;
