//! What a watch tells, in a form that fits on a line.

use gpu_handoff_client::Event;
use serde::{Deserialize, Serialize};

/// An event and when it was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// `appeared`, `snapshot-done`, `retiring`, `orphaned` or `gone`.
    pub what: String,
    /// The buffer, where it is about one.
    pub id: Option<String>,
    /// Why the buffer ended.
    pub reason: Option<String>,
    /// Leases left.
    pub leases: Option<u32>,
    /// When it was told, on the machine's monotonic clock.
    pub at_ns: u64,
}

impl Told {
    pub(super) fn new(event: &Event, at_ns: u64) -> Self {
        let told = |what: &str, id: Option<String>| Self {
            what: what.to_owned(),
            id,
            reason: None,
            leases: None,
            at_ns,
        };
        match event {
            Event::Appeared(info) => told("appeared", Some(info.id.to_string())),
            Event::SnapshotDone => told("snapshot-done", None),
            Event::Retiring { id, .. } => told("retiring", Some(id.to_string())),
            Event::Orphaned { id, reason, leases } => Self {
                reason: Some(reason.as_str().to_owned()),
                leases: Some(*leases),
                ..told("orphaned", Some(id.to_string()))
            },
            Event::Seated { id, .. } => told("seated", Some(id.to_string())),
            Event::Unseated { id, how, .. } => {
                Self { reason: Some(how.as_str().to_owned()), ..told("unseated", Some(id.to_string())) }
            }
            Event::Gone { id, reason } => {
                Self { reason: Some(reason.as_str().to_owned()), ..told("gone", Some(id.to_string())) }
            }
        }
    }
}
