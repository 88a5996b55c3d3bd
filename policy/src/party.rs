//! Who asks, as far as a policy can name it.

use gpu_handoff_protocol::{GroupKey, Namespace, ServiceAccount};

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
