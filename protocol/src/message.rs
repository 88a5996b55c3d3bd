//! What is said, as types. The rules of the conversation stand in `proto/handoff.proto`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{BufferFacts, BufferInfo};
use crate::ids::{BootTag, BufferId, BufferName, GroupKey, LeaseId, PodRef};
use crate::limits;
use crate::refusal::Refusal;

/// The number that ties an answer to its request. 0 marks what nobody asked for.
pub type RequestId = u64;

/// A protocol version: (major, minor).
pub type Version = (u32, u32);

/// What carries a buffer's memory from process to process.
#[derive(Debug, Clone)]
pub enum Carrier {
    /// The descriptor of a vmm or timeline buffer.
    Descriptor(Arc<OwnedFd>),
    /// The handle of a legacy buffer.
    Legacy([u8; limits::LEGACY_HANDLE_BYTES]),
}

/// Application to broker.
#[derive(Debug)]
pub struct ClientMessage {
    /// Number of the request; not 0.
    pub request: RequestId,
    /// What is asked.
    pub body: ClientBody,
}

/// What an application asks.
#[derive(Debug)]
pub enum ClientBody {
    /// The first message of a connection.
    Hello {
        /// The version that the client speaks.
        version: Version,
        /// Name of the client program, for logs.
        program: String,
    },
    /// Publish buffers.
    Publish(Vec<Publication>),
    /// Acquire leases.
    Acquire {
        /// What is wanted.
        items: Vec<Wanted>,
        /// How long to wait for what is not there yet; zero: do not wait.
        wait: Duration,
    },
    /// Give leases back.
    Release(Vec<LeaseId>),
    /// Retire a buffer.
    Retire {
        /// The buffer.
        id: BufferId,
        /// How long its holders may keep their leases; zero: revoke.
        deadline: Duration,
    },
    /// Watch the group's buffers.
    Watch,
    /// End a waiting acquire or a watch.
    Cancel {
        /// The request that made it.
        request: RequestId,
    },
}

/// A buffer to publish.
#[derive(Debug, Clone)]
pub struct Publication {
    /// What the publisher states of it.
    pub facts: BufferFacts,
    /// Its memory.
    pub carrier: Carrier,
}

/// A buffer that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Which one.
    pub target: Target,
    /// By name: only a generation above this one will do; 0: any.
    pub newer_than: u64,
}

/// How a wanted buffer is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By identity.
    Id(BufferId),
    /// By name: its newest generation.
    Name(BufferName),
}

/// Broker to application.
#[derive(Debug, Clone)]
pub struct BrokerMessage {
    /// The request that this answers, or 0.
    pub request: RequestId,
    /// What is said.
    pub body: BrokerBody,
}

/// What the broker says.
#[derive(Debug, Clone)]
pub enum BrokerBody {
    /// The answer to a hello.
    Welcome(Welcome),
    /// Outcomes of a publish, in order of its items.
    Published(Vec<Result<PublishedAs, Refusal>>),
    /// Outcomes of an acquire, in order of its items.
    Acquired(Vec<Result<Grant, Refusal>>),
    /// Outcomes of a release, in order of its items.
    Released(Vec<Result<(), Refusal>>),
    /// Outcome of a retire: the leases that were left at that moment.
    Retired(Result<u32, Refusal>),
    /// Something happened.
    Event(Event),
    /// A watch ended on request.
    Cancelled,
    /// The request as a whole, or the connection, is refused.
    Refused(Refusal),
}

/// Who the application is taken for, and what the node can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version that the broker speaks.
    pub version: Version,
    /// The pod of the connection, as the node found out.
    pub pod: PodRef,
    /// The pod's group.
    pub group: GroupKey,
    /// The node's boot.
    pub boot: BootTag,
    /// Whether this node's driver passed the self-test of the process-number word of legacy handles.
    pub legacy_pid_word_proven: bool,
}

/// What a buffer was published as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedAs {
    /// Its identity.
    pub id: BufferId,
    /// Its version, see [`BufferInfo::generation`].
    pub generation: u64,
}

/// A lease was given.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The lease.
    pub lease: LeaseId,
    /// The buffer.
    pub buffer: BufferInfo,
    /// Its memory.
    pub carrier: Carrier,
    /// Legacy only: the importer's process number equals the handle's, so that word must be rewritten first.
    pub rewrite_pid_word: bool,
}

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
            Self::Other => "other",
        }
    }
}

/// Sidecar to broker.
#[derive(Debug)]
pub struct SidecarMessage {
    /// Number of the request; not 0.
    pub request: RequestId,
    /// What is said.
    pub body: SidecarBody,
}

/// What a sidecar says.
#[derive(Debug)]
pub enum SidecarBody {
    /// The first message of a connection.
    Hello {
        /// The version that the sidecar speaks.
        version: Version,
    },
    /// An application's accepted connection.
    HandOn(OwnedFd),
}

/// Broker to sidecar.
#[derive(Debug, Clone)]
pub struct SlotMessage {
    /// The request that this answers, or 0.
    pub request: RequestId,
    /// What is said.
    pub body: SlotBody,
}

/// What the broker says to a sidecar.
#[derive(Debug, Clone)]
pub enum SlotBody {
    /// The answer to a hello: whose door this is.
    Welcome {
        /// The version that the broker speaks.
        version: Version,
        /// The pod that the slot is bound to.
        pod: PodRef,
        /// Its group.
        group: GroupKey,
    },
    /// Whether the connection handed on is served.
    HandedOn(Result<(), Refusal>),
    /// The message as a whole, or the connection, is refused.
    Refused(Refusal),
}
