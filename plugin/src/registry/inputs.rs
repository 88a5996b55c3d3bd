//! What the registry is told.

use std::time::{Duration, Instant};

use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::message::{EndReason, Publication, RequestId, Wanted};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{
    BufferId, BufferName, DeviceUuid, GroupKey, LeaseId, PodRef, PodUid, Refusal, ServiceAccount, SetPart,
    SlotId,
};

use super::{MemberId, SessionId, Shown, Topology, WantedSet};
use crate::members::Holds;

/// What the registry is told.
#[derive(Debug)]
pub enum Input {
    /// A pod takes part from now on.
    MemberJoined(MemberId, MemberFacts),
    /// The GPUs that a member holds have become known, or unknown.
    MemberHolds(MemberId, Holds),
    /// A pod is being deleted and will be gone by then: it publishes nothing more, and what it has published is retired.
    MemberEnding(MemberId, Instant),
    /// A pod is gone, and all of its processes with it.
    MemberLeft(MemberId),
    /// A process of a member connected and said hello.
    SessionOpened(SessionId, SessionFacts),
    /// The connection ended, or its process did.
    SessionEnded(SessionId, EndReason),
    /// A process asks for something.
    Ask(SessionId, RequestId, Ask),
    /// A member's sidecar has begun to offer: what it offers is being checked.
    Offering(MemberId),
    /// The memory of these buffers of a member has come, by its sidecar or a process, and is being checked.
    Checking(MemberId, Vec<BufferId>),
    /// A member's sidecar offers what it keeps: receipts of this node, with the memory that came along. The answer bears
    /// the same number.
    Offered(MemberId, u64, Vec<Result<Shown, Refusal>>),
    /// A member's sidecar has offered all that it keeps.
    OfferDone(MemberId),
    /// Time has passed: see [`Registry::next_deadline`].
    Tick,
    /// There is time for more of what ended sessions had: see [`Registry::has_more`].
    ///
    /// [`Registry::has_more`]: super::Registry::has_more
    GoOn,
    /// The self-test of legacy handles has ended: whether this driver's process-number word may be rewritten.
    PidWordProven(bool),
    /// The driver has said what GPUs there are, and which reach each other.
    Surveyed(Topology),
    /// Another policy is in force.
    NewPolicy(Box<Policy>),
}

/// What is known of a member.
#[derive(Debug, Clone)]
pub struct MemberFacts {
    /// The pod.
    pub pod: PodRef,
    /// Its slot.
    pub slot: SlotId,
    /// Which of all pods of that name it is.
    pub uid: PodUid,
    /// Its group.
    pub group: GroupKey,
    /// The pod's service account, where one is known.
    pub service_account: Option<ServiceAccount>,
    /// The GPUs it holds.
    pub holds: Holds,
}

/// What is known of a session.
#[derive(Debug, Clone)]
pub struct SessionFacts {
    /// The member it belongs to.
    pub member: MemberId,
    /// The process's number in its own PID namespace, which legacy handles carry.
    pub own_pid: u32,
    /// Which process it is.
    pub process: ProcessKey,
    /// Whether it understands that what it waits for is announced.
    pub hears_announcements: bool,
    /// The GPUs whose device nodes it has in its `/dev`; `None`: that was not looked at.
    pub reachable: Option<Vec<DeviceUuid>>,
}

/// What a process asks for.
#[derive(Debug)]
pub enum Ask {
    /// Publish buffers; those that the edges refused already come as refusals, to be answered in order.
    Publish(Vec<Result<Vetted, Refusal>>),
    /// Publish a part of a set; its items are as those of a publish.
    PublishSet(SetPart, Vec<Result<Vetted, Refusal>>),
    /// Acquire leases of all buffers of a set.
    AcquireSet {
        /// Which one.
        wanted: WantedSet,
        /// Until when to wait for it; `None`: do not wait.
        until: Option<Instant>,
    },
    /// Acquire leases.
    Acquire {
        /// What is wanted.
        items: Vec<Wanted>,
        /// Until when to wait for what is not there; `None`: do not wait.
        until: Option<Instant>,
        /// The GPU that they are to be mapped on; `None`: any that the pod holds.
        device: Option<DeviceUuid>,
    },
    /// Give leases back.
    Release(Vec<LeaseId>),
    /// Retire a buffer.
    Retire {
        /// Which one.
        id: BufferId,
        /// Until when its holders may keep their leases; `None`: they should be gone already.
        until: Option<Instant>,
    },
    /// Watch the group.
    Watch,
    /// End a waiting acquire or a watch.
    Cancel(RequestId),
    /// Buffers of these names are about to be published.
    Announce(Vec<BufferName>),
    /// Claim what another daemon gave: receipts of this node, those that the edges refused as refusals.
    Reattach(Vec<Result<Shown, Refusal>>),
}

/// A publication that the edges have checked as far as it can be.
#[derive(Debug)]
pub struct Vetted {
    /// Drawn for it.
    pub id: BufferId,
    /// What was stated, and the memory.
    pub publication: Publication,
    /// How long it took to have device and size checked by a GPU worker; `None`: that cannot be done.
    pub checked: Option<Duration>,
}
