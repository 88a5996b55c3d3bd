//! What there is: members, their sessions, buffers and groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_policy::Usage;
use gpu_handoff_protocol::message::{Carrier, RequestId};
use gpu_handoff_protocol::{BufferId, BufferInfo, BufferName, DeviceUuid, GroupKey, LeaseId};

use super::ending::{Ended, Ending};
use super::given::Given;
use super::named::Named;
use super::{MemberFacts, MemberId, SessionFacts, SessionId, lasting, sets};
use crate::journal::Tag;

/// A pod that takes part.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) facts: MemberFacts,
    /// Its group, for its buffers.
    pub(super) group: Arc<GroupKey>,
    /// What it and its group are called in the journal.
    pub(super) tag: Tag,
    pub(super) group_tag: Tag,
    pub(super) usage: Usage,
    /// Items that its sessions wait for.
    pub(super) waited: u64,
    /// From when on another listing of all that its group has costs nobody anything; `None`: since ever.
    pub(super) lists_from: Option<Instant>,
    pub(super) sessions: BTreeSet<SessionId>,
    /// Its pod is being deleted.
    pub(super) is_ending: bool,
    /// What its processes published and is its own.
    pub(super) lasting: lasting::Lasting,
}

/// Who acquires, and the GPU that it names for that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Importer {
    pub(super) session: SessionId,
    pub(super) device: Option<DeviceUuid>,
}

/// A connection of one of its processes.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) facts: SessionFacts,
    pub(super) published: BTreeSet<BufferId>,
    pub(super) leases: BTreeSet<LeaseId>,
    /// Requests that wait for an answer, watches included, and how many items each has.
    pub(super) open: BTreeMap<RequestId, u64>,
}

impl Session {
    pub(super) fn new(facts: SessionFacts) -> Self {
        Self { facts, published: BTreeSet::new(), leases: BTreeSet::new(), open: BTreeMap::new() }
    }
}

/// A buffer that is there, or leased.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) info: Arc<BufferInfo>,
    pub(super) group: Arc<GroupKey>,
    /// `None`: it [outlives](lasting) its process, or nobody has shown its receipt, only leases of it are known.
    pub(super) owner: Option<SessionId>,
    pub(super) member: MemberId,
    /// `None` once the buffer is ending, and while it is awaited.
    pub(super) carrier: Option<Carrier>,
    pub(super) ending: Option<Ending>,
    /// How many there are.
    pub(super) leases: u32,
    pub(super) given: Given,
    /// Its place among all in the order in which they were there anew, published or restored; 0: while it is awaited.
    pub(super) appeared: u64,
}

impl Buffer {
    /// Known from a lease alone: it was alive, but nobody has brought it back yet.
    pub(super) fn is_awaited(&self) -> bool {
        self.carrier.is_none() && self.ending.is_none()
    }
}

/// A group that has members.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) members: u32,
    /// What its members hold together.
    pub(super) usage: Usage,
    pub(super) last_generation: u64,
    /// Live buffers of each name, by generation.
    pub(super) names: HashMap<BufferName, Named>,
    /// Live buffers of each name of a set.
    pub(super) sets: HashMap<BufferName, sets::Versions>,
    pub(super) ended: Ended,
    pub(super) watchers: BTreeSet<(SessionId, RequestId)>,
}

impl Group {
    /// Its live buffers.
    pub(super) fn buffers(&self) -> impl Iterator<Item = BufferId> + '_ {
        let named = self.names.values().flat_map(Named::buffers);
        named.chain(self.sets.values().flat_map(sets::Versions::buffers))
    }
}
