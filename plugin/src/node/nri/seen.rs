//! How this is, for whoever administers the node.

use std::path::PathBuf;

use gpu_handoff_nri::State;
use tokio::sync::watch;

/// What the node's status tells of it.
#[derive(Debug, Clone)]
pub(in crate::node) struct Views {
    /// The runtime's.
    pub(in crate::node) socket: PathBuf,
    pub(in crate::node) state: watch::Receiver<State>,
    pub(in crate::node) counts: watch::Receiver<Counts>,
}

/// What was done to containers of members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::node) struct Counts {
    /// They got something.
    pub(in crate::node) adjusted: u64,
    /// They were not made, or not let start.
    pub(in crate::node) refused: u64,
    /// They had been made without us.
    pub(in crate::node) killed: u64,
    /// Whether the runtime's own validator is on, as far as it is known.
    pub(in crate::node) default_validator: Option<bool>,
}
