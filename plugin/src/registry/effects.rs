//! What the edges must do for the registry.

use std::sync::Arc;

use gpu_handoff_policy::Orphans;
use gpu_handoff_protocol::message::{BrokerMessage, Carrier, EndReason};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{BufferId, BufferInfo, LeaseId, PodRef, Refusal, SlotId};

use super::{MemberId, SessionId};

/// What the edges must do.
#[derive(Debug)]
pub enum Effect {
    /// Send this to the session.
    Send(SessionId, BrokerMessage),
    /// Close the carrier, in the lane of the member that sent it.
    Dispose(MemberId, Carrier),
    /// End the session's connection.
    EndSession(SessionId),
    /// Let the member's sidecar keep a buffer, or its publisher have its receipt; then it is said before the answer that
    /// names it.
    Keep(MemberId, Box<Keepable>),
    /// Close the memory of a buffer that ends, and let the member's sidecar keep it no longer.
    Forget(MemberId, BufferId, Carrier),
    /// Answer an offer of the member's sidecar.
    Offered(MemberId, u64, Vec<Result<(), Refusal>>),
    /// Watch a process that has not reattached; its end is the end of the session that stands for it.
    AwaitEnd(MemberId, SessionId, ProcessKey),
    /// Watch it no longer.
    AwaitNoMore(MemberId, SessionId),
    /// A process leases what is over, and by its namespace's policy it is not to be left at that.
    Overstays(Box<Overstay>),
    /// Something worth a log line and a metric.
    Note(Note),
}

/// What a receipt of a buffer is made of, and its memory.
#[derive(Debug, Clone)]
pub struct Keepable {
    /// The buffer.
    pub info: Arc<BufferInfo>,
    /// The process that published it.
    pub process: ProcessKey,
    /// That process's number in its own PID namespace.
    pub own_pid: u32,
    /// Its memory.
    pub carrier: Carrier,
    /// Who is to have it.
    pub purpose: Purpose,
}

/// A process that leases a buffer whose time is over, for longer than it may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overstay {
    /// Its member.
    pub member: MemberId,
    /// The member's slot.
    pub slot: SlotId,
    /// Its pod.
    pub pod: PodRef,
    /// The process.
    pub process: ProcessKey,
    /// One of the buffers.
    pub buffer: BufferId,
    /// What the policy says.
    pub action: Orphans,
}

/// Who is to have what proves a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Its publisher, who is about to be answered. The buffer is of a set that has not come whole.
    Answer,
    /// Its publisher, who is about to be answered, and the sidecar.
    AnswerAndKeep,
    /// The sidecar.
    Keep,
}

impl Effect {
    /// Whether this is a message to the session.
    #[must_use]
    pub fn is_said_to(&self, session: SessionId) -> bool {
        matches!(self, Self::Send(to, _) if *to == session)
    }
}

/// What happened, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A buffer was published.
    Published(Arc<BufferInfo>),
    /// A buffer of an earlier daemon is there again.
    Restored(Arc<BufferInfo>),
    /// A lease was given to a member's session.
    Leased(LeaseId, BufferId, SessionId),
    /// A buffer takes no new leases; so many are left.
    Ending(BufferId, EndReason, u32),
    /// A buffer's deadline passed with so many leases left.
    Orphaned(BufferId, EndReason, u32),
    /// A buffer is gone.
    Gone(BufferId, EndReason),
}
