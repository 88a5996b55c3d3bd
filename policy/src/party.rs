//! Who asks, as far as a policy can name it.

use gpu_handoff_protocol::{GroupKey, Namespace, ServiceAccount};

use crate::{Devices, OnFailure, Profile};

/// A pod that takes part, by what a policy can name of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party<'a> {
    /// The pod's namespace.
    pub namespace: &'a Namespace,
    /// Its group, which may be of another namespace.
    pub group: &'a GroupKey,
    /// Its service account; `None`: it has none, or nobody knows it.
    pub service_account: Option<&'a ServiceAccount>,
}

impl Party<'_> {
    /// Whether its group is of its own namespace.
    #[must_use]
    pub fn is_at_home(&self) -> bool {
        *self.namespace == self.group.namespace
    }
}

/// What a pod asks for by its annotations and a policy grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asks {
    /// Which kind of program runs in it.
    pub profile: Profile,
    /// Whether it shares more than buffers with its group: `/dev/shm`, an IPC namespace, the space of process numbers.
    pub shares: bool,
    /// Whose GPUs its containers have device nodes of.
    pub devices: Devices,
    /// What happens to its applications where its start fails; `None`: as the policy says.
    pub on_failure: Option<OnFailure>,
}
