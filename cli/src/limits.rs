//! The command's limits, each named with its unit.

use std::time::Duration;

/// How long reaching the node daemon may take. Longer than a sidecar holds a connection while the daemon is away (10 s),
/// so that its refusal, which says more than that the time is over, comes first.
pub(crate) const CONNECT_TIME: Duration = Duration::from_secs(12);
/// After what time the user is told what is waited for.
pub(crate) const SILENT_TIME: Duration = Duration::from_secs(1);
/// Largest input of `inject`, in bytes; of YAML, also with what aliases stand for in the place of these.
#[cfg(feature = "inject")]
pub(crate) const INPUT_BYTES: u64 = 16 << 20;
/// Brackets that may be open in a YAML document: its reader takes no more within each other.
#[cfg(feature = "inject")]
pub(crate) const BRACKETS: usize = 128;
/// Most YAML or JSON documents in it.
#[cfg(feature = "inject")]
pub(crate) const DOCUMENTS: usize = 10_000;
/// Longest piece of a foreign value that a message repeats, in characters.
#[cfg(feature = "inject")]
pub(crate) const SHOWN_CHARS: usize = 100;
/// Places of one object with annotations that nobody reads there, which are told; the others are counted.
#[cfg(feature = "inject")]
pub(crate) const MISPLACED: usize = 8;
/// How long one question to the API server may take.
#[cfg(feature = "admin")]
pub(crate) const API_TIME: Duration = Duration::from_secs(5);
/// Lines of one kind that a finding names; the others are counted.
#[cfg(feature = "admin")]
pub(crate) const NAMED: usize = 3;
