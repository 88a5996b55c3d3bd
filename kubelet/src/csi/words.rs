//! What is asked of whoever has the slots, and what may be answered.

use std::fmt;
use std::path::PathBuf;

use tokio::sync::oneshot;

/// How a command went.
pub type Answer = Result<(), Refusal>;

/// A pod, as the kubelet names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which another pod may have had before.
    pub name: String,
    /// Its UID, which no other pod ever has.
    pub uid: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

/// A pod's volume is to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The volume's id, the kubelet's: one for each volume of each pod.
    pub volume: String,
    /// Whose it is. The UID is that of the target path; see [`crate::csi`] for the rest.
    pub pod: PodName,
    /// The pod's service account.
    pub service_account: String,
    /// The volume's name in the pod.
    pub name: String,
    /// Where it is to be mounted, read-only. It may be there already; its folder is.
    pub target: PathBuf,
}

/// A pod's volume is to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublish {
    /// The volume's id.
    pub volume: String,
    /// The UID of the pod in whose folder it is.
    pub pod_uid: String,
    /// Where it is mounted, or was.
    pub target: PathBuf,
}

/// What the kubelet asks. An answer that is dropped is told as "not yet"; the kubelet comes back.
#[derive(Debug)]
pub enum Command {
    /// A pod's volume is to be there.
    Publish(Publish, oneshot::Sender<Answer>),
    /// A pod's volume is to be gone.
    Unpublish(Unpublish, oneshot::Sender<Answer>),
}

/// Why a command was not done. The text is shown in an event of the pod: what was seen, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All slots are taken (`RESOURCE_EXHAUSTED`).
    #[error("{0}")]
    NoSlot(String),
    /// Something must happen before (`UNAVAILABLE`).
    #[error("{0}")]
    NotYet(String),
    /// It can never be done (`INVALID_ARGUMENT`).
    #[error("{0}")]
    Invalid(String),
    /// It should have been possible (`INTERNAL`).
    #[error("{0}")]
    Internal(String),
}
