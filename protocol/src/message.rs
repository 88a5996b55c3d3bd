//! What is said, as types. The rules of the conversation stand in `proto/handoff.proto`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{BufferFacts, BufferInfo};
use crate::ids::{BootTag, BufferId, BufferName, DeviceUuid, GroupKey, Instance, LeaseId, PodRef, Seat};
use crate::limits;
use crate::receipt::Receipt;
use crate::refusal::Refusal;
use crate::set::{SetInfo, SetPart};

mod event;
mod sidecar;

pub use event::{EndReason, Event, SeatEnd};
pub use sidecar::{Keepsake, SidecarBody, SidecarMessage, SlotBody, SlotMessage};

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
    /// Publish a part of a set.
    PublishSet {
        /// Which part.
        part: SetPart,
        /// Its buffers.
        items: Vec<Publication>,
    },
    /// Acquire leases.
    Acquire {
        /// What is wanted.
        items: Vec<Wanted>,
        /// How long to wait for what is not there yet; zero: do not wait.
        wait: Duration,
        /// Where it will be mapped; `None`: any GPU of the pod.
        device: Option<DeviceUuid>,
    },
    /// Acquire leases of all buffers of a set.
    AcquireSet {
        /// The set.
        name: BufferName,
        /// Only a generation above this one will do; 0: any.
        newer_than: u64,
        /// How long to wait for it; zero: do not wait.
        wait: Duration,
        /// Where it will be mapped; `None`: any GPU of the pod.
        device: Option<DeviceUuid>,
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
    /// Claim what another broker gave.
    Reattach(Vec<Claim>),
    /// Buffers of these names are about to be published.
    Announce(Vec<BufferName>),
}

/// A buffer to publish.
#[derive(Debug, Clone)]
pub struct Publication {
    /// What the publisher states of it.
    pub facts: BufferFacts,
    /// Its memory.
    pub carrier: Carrier,
}

/// A buffer or lease that another broker gave this process.
#[derive(Debug, Clone)]
pub struct Claim {
    /// What proves it.
    pub receipt: Receipt,
    /// The buffer's descriptor, where the broker asked for it.
    pub descriptor: Option<Arc<OwnedFd>>,
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
    /// All buffers of a set, in order of their index.
    AcquiredSet {
        /// The set.
        set: SetInfo,
        /// Its buffers.
        grants: Vec<Grant>,
    },
    /// Outcomes of a release, in order of its items.
    Released(Vec<Result<(), Refusal>>),
    /// Outcome of a retire: the leases that were left at that moment.
    Retired(Result<u32, Refusal>),
    /// Something happened.
    Event(Event),
    /// A watch ended on request.
    Cancelled,
    /// Outcomes of a reattach, in order of its items.
    Reattached(Vec<Result<Reattached, Refusal>>),
    /// What this acquire waits for is about to be published.
    Announced,
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
    /// Which broker this is.
    pub instance: Instance,
}

/// What a buffer was published as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedAs {
    /// Its identity.
    pub id: BufferId,
    /// Its version, see [`BufferInfo::generation`].
    pub generation: u64,
    /// What its owner shows to another broker; `None`: this broker's end will end the buffer.
    pub receipt: Option<Receipt>,
    /// How long the check of its memory took, its waits included; `None`: it was not checked.
    pub checked: Option<Duration>,
}

/// A lease was given.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The lease.
    pub lease: LeaseId,
    /// The buffer.
    pub buffer: Arc<BufferInfo>,
    /// Its memory.
    pub carrier: Carrier,
    /// Legacy only: the importer's process number equals the handle's, so that word must be rewritten first.
    pub rewrite_pid_word: bool,
    /// What its holder shows to another broker; `None`: this broker's end will end the lease.
    pub receipt: Option<Receipt>,
    /// Its seat, where the buffer has an order.
    pub seat: Option<Seat>,
}

/// What became of a claim that was not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reattached {
    /// It is as before.
    Restored,
    /// The buffer is as before once the claim comes again with the buffer's descriptor.
    DescriptorWanted,
}
