//! Who the members are: what the broker is told of each, and, where there is no Kubernetes, a file that names them
//! (`--static-members`).
//!
//! ```json
//! {
//!   "policy": { "legacy": "within-namespace" },
//!   "members": [
//!     { "slot": "a", "namespace": "demo", "pod": "producer", "group": "weights" },
//!     { "slot": "b", "namespace": "demo", "pod": "consumer", "group": "weights", "user": 1000,
//!       "devices": ["GPU-01234567-89ab-cdef-0123-456789abcdef"] }
//!   ]
//! }
//! ```
//! Each member gets the socket `slots/<slot>/slot.sock` in the daemon's run directory. Whoever can connect to that
//! socket is taken for the member's sidecar: that is root and the member's `user`, or the daemon's own user where none is
//! given.

use std::collections::{BTreeSet, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use gpu_handoff_policy::{Party, Policy};
use gpu_handoff_protocol::{
    DeviceUuid, GroupKey, GroupName, Namespace, PodName, PodRef, PodUid, ServiceAccount, SlotId,
};
use serde::{Deserialize, Serialize};

use crate::identity::cgroup::ContainerId;
use crate::limits;
use crate::node::words::Refused;

/// A pod that takes part, as the node names it to its broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Member {
    /// Its slot.
    pub slot: SlotId,
    /// The pod.
    pub pod: PodRef,
    /// Which of all pods of that name it is.
    pub uid: PodUid,
    /// Its group.
    pub group: GroupKey,
    /// The pod's service account, where one is known.
    #[serde(default)]
    pub service_account: Option<ServiceAccount>,
    /// The user whose processes speak for it; `None`: whichever can connect.
    pub user: Option<u32>,
    /// The GPUs it holds.
    #[serde(default)]
    pub holds: Holds,
    /// Why its applications are not to be started; its connections are refused with it.
    #[serde(default)]
    pub held_back: Option<Refused>,
    /// Its containers by the pod's status: whoever speaks for it is in one of them. `None`: there are no containers that the
    /// node knows of.
    pub containers: Option<BTreeSet<ContainerId>>,
}

/// Which GPUs a pod holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holds {
    /// All of the node's.
    All,
    /// These, by the word of who gave them to it.
    These(Vec<DeviceUuid>),
    /// Nobody says: each of its processes may use those whose device nodes it has.
    #[default]
    WhatItReaches,
}

/// A member as the file names it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticMember {
    /// The folder of its socket.
    pub slot: SlotId,
    /// Namespace of the pod and of its group.
    pub namespace: Namespace,
    /// The pod.
    pub pod: PodName,
    /// Which of all pods of that name it is, where that matters: what a pod left alive is not given to another. Absent:
    /// the slot's name.
    pub uid: Option<PodUid>,
    /// The group.
    pub group: GroupName,
    /// The service account, where the policy names some.
    #[serde(default)]
    pub service_account: Option<ServiceAccount>,
    /// The user whose sidecar and applications speak for it; absent: the daemon's own user's sidecar, and whichever
    /// applications can connect to that.
    pub user: Option<u32>,
    /// The GPUs it holds; absent: all of the node's.
    pub devices: Option<Vec<DeviceUuid>>,
}

impl Member {
    /// What a policy can name of it.
    #[must_use]
    pub fn party(&self) -> Party<'_> {
        let (namespace, service_account) = (&self.pod.namespace, self.service_account.as_ref());
        Party { namespace, group: &self.group, service_account }
    }
}

impl From<&StaticMember> for Member {
    fn from(member: &StaticMember) -> Self {
        Self {
            slot: member.slot.clone(),
            pod: member.pod(),
            uid: member.uid(),
            group: member.group(),
            service_account: member.service_account.clone(),
            user: member.user,
            holds: member.devices.clone().map_or(Holds::All, Holds::These),
            held_back: None,
            containers: None,
        }
    }
}

impl StaticMember {
    /// The pod by its full name.
    #[must_use]
    pub fn pod(&self) -> PodRef {
        PodRef { namespace: self.namespace.clone(), name: self.pod.clone() }
    }

    /// Which of all pods of that name it is.
    #[must_use]
    pub fn uid(&self) -> PodUid {
        self.uid.clone().unwrap_or_else(|| self.slot.clone().into())
    }

    /// The group by its full name.
    #[must_use]
    pub fn group(&self) -> GroupKey {
        GroupKey { namespace: self.namespace.clone(), name: self.group.clone() }
    }
}

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticMembers {
    /// The policy; absent: that of a file of its own, or the built-in default.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// The members.
    pub members: Vec<StaticMember>,
}

/// Why a members file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// It cannot be read.
    #[error("cannot read the members file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// It is longer than it may be.
    #[error("the members file {} is longer than {limit} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Longest length allowed, in bytes.
        limit: u64,
    },
    /// It does not read as members.
    #[error("the members file {} does not read as members", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// Two members share a slot or are one pod.
    #[error("the members file {} names the {what} {name} twice", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// What is named twice.
        what: &'static str,
        /// Its name.
        name: String,
    },
}

/// Reads and checks a members file.
///
/// # Errors
/// See [`MembersError`].
pub fn read(path: &Path) -> Result<StaticMembers, MembersError> {
    let own = || path.to_path_buf();
    let file = std::fs::File::open(path).map_err(|source| MembersError::Read { path: own(), source })?;
    let mut text = Vec::new();
    let limit = limits::MEMBERS_FILE_BYTES;
    file.take(limit + 1)
        .read_to_end(&mut text)
        .map_err(|source| MembersError::Read { path: own(), source })?;
    if text.len() as u64 > limit {
        return Err(MembersError::TooLong { path: own(), limit });
    }
    let members: StaticMembers =
        serde_json::from_slice(&text).map_err(|source| MembersError::Parse { path: own(), source })?;
    let (mut slots, mut pods) = (HashSet::new(), HashSet::new());
    for member in &members.members {
        if !slots.insert(&member.slot) {
            return Err(MembersError::Twice { path: own(), what: "slot", name: member.slot.to_string() });
        }
        if !pods.insert(member.pod()) {
            return Err(MembersError::Twice { path: own(), what: "pod", name: member.pod().to_string() });
        }
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<StaticMembers, MembersError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members.json");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_members_file_is_read_and_checked() {
        let one = r#"{"slot":"a","namespace":"n","pod":"p","group":"g"}"#;
        assert_eq!(parsed(&format!(r#"{{"members":[{one}]}}"#)).unwrap().members.len(), 1);
        let twice = parsed(&format!(r#"{{"members":[{one},{one}]}}"#)).unwrap_err();
        assert!(matches!(twice, MembersError::Twice { what: "slot", .. }));
        let misspelt =
            parsed(r#"{"members":[{"slot":"a","namespace":"n","pod":"p","gruop":"g"}]}"#).unwrap_err();
        assert!(matches!(misspelt, MembersError::Parse { .. }));
        let outside = parsed(r#"{"members":[{"slot":"../a","namespace":"n","pod":"p","group":"g"}]}"#);
        assert!(matches!(outside.unwrap_err(), MembersError::Parse { .. }));
        assert!(matches!(read(Path::new("/nonexistent")).unwrap_err(), MembersError::Read { .. }));
    }
}
