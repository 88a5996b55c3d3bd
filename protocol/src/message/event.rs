//! What happens to buffers, as it is told.

use std::sync::Arc;
use std::time::Duration;

use crate::buffer::BufferInfo;
use crate::ids::{BufferId, Seat};

/// Something that happened to a buffer of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was published (or was there when the watch began).
    Appeared(Arc<BufferInfo>),
    /// All that was there when the watch began has been told.
    SnapshotDone,
    /// It takes no new leases; holders are asked to release in time.
    Retiring {
        /// The buffer.
        id: BufferId,
        /// Time left.
        deadline: Duration,
    },
    /// It ended, and leases are left that pin its memory.
    Orphaned {
        /// The buffer.
        id: BufferId,
        /// Why it ended.
        reason: EndReason,
        /// Leases left.
        leases: u32,
    },
    /// It ended, and the broker has closed what it held of it.
    Gone {
        /// The buffer.
        id: BufferId,
        /// Why it ended.
        reason: EndReason,
    },
    /// To the owner: a lease of its buffer was given that seat.
    Seated {
        /// The buffer.
        id: BufferId,
        /// The seat.
        seat: Seat,
    },
    /// To the owner: the lease of that seat ended.
    Unseated {
        /// The buffer.
        id: BufferId,
        /// The seat.
        seat: Seat,
        /// How the lease ended.
        how: SeatEnd,
    },
}

/// How the lease of a seat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SeatEnd {
    /// Its holder released it: the seat's word is written when the holder's GPU is done.
    Released,
    /// Its holder died: it writes nothing any more.
    Died,
    /// In a way that this build does not know: nothing is certain of the seat's word.
    Other,
}

impl SeatEnd {
    /// The end in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Died => "died",
            Self::Other => "other",
        }
    }
}

/// Why a buffer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Its owner retired or revoked it.
    Retired,
    /// Its owner closed its connection.
    OwnerClosed,
    /// Its owner's process died.
    OwnerDied,
    /// Its owner's pod left the node.
    MemberLeft,
    /// It was of a set that has a later version now.
    Superseded,
    /// It was restored after a restart of the node daemon, and policy, quota, group or GPUs of its pod do not allow it any more.
    NotAllowed,
    /// A reason that this build does not know.
    Other,
}

impl EndReason {
    /// The reason in words, as metrics and logs write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retired => "retired",
            Self::OwnerClosed => "owner-closed",
            Self::OwnerDied => "owner-died",
            Self::MemberLeft => "member-left",
            Self::Superseded => "superseded",
            Self::NotAllowed => "not-allowed",
            Self::Other => "other",
        }
    }
}
