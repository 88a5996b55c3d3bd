//! What is published, who leases it, and who waits for it: a synchronous state machine without I/O.
//!
//! `apply(input, now)` changes the state and returns what the edges must do. Time is an argument, identifiers are
//! drawn by the edges, descriptors are opaque values: nothing in here waits, logs, or asks the system.
//!
//! ```text
//! buffer:   publish ──▶ live ──▶ ending ──▶ gone          lease:   acquire ──▶ active ──▶ ended
//!                        │  retire, owner closed or died,    │  release, or its session ended
//!                        │  member left: no new leases,      └── the last ended lease of an ending
//!                        │  the carrier is given up              buffer makes the buffer gone
//!                        └─ no lease left: gone at once
//! ```
//! An ending buffer whose deadline has passed while leases are left is *orphaned*: reported, never forgotten.
//!
//! | concern | file |
//! |---|---|
//! | members and sessions come and go | [`sessions`] |
//! | a buffer appears | [`publish`] |
//! | a lease is given, waited for, given back | [`acquire`] |
//! | buffers appear together, and are leased together | [`sets`] |
//! | the words of a buffer's order; seats of its leases | [`seats`] |
//! | a buffer ends; what happens to its leases | [`ending`] |
//! | who is told of it | [`notices`] |
//! | what was answered so far | [`counters`] |

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_policy::{Policy, Usage};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, EndReason, Publication, RequestId, Wanted,
};
use gpu_handoff_protocol::{
    BootTag, BufferId, BufferInfo, BufferName, Code, DeviceUuid, GroupKey, LeaseId, PodRef, Refusal, SetPart,
};

mod acquire;
mod counters;
mod ending;
mod notices;
mod publish;
mod seats;
mod sessions;
mod sets;
#[cfg(test)]
mod tests;

pub use counters::Counters;
use ending::{Ended, Ending};
pub(crate) use publish::check_range;
pub use sets::WantedSet;

/// A member's number on this node, for as long as the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// One connection of one process of a member, for as long as the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// What the registry is told.
#[derive(Debug)]
pub enum Input {
    /// A pod takes part from now on.
    MemberJoined(MemberId, MemberFacts),
    /// A pod is gone, and all of its processes with it.
    MemberLeft(MemberId),
    /// A process of a member connected and said hello.
    SessionOpened(SessionId, SessionFacts),
    /// The connection ended, or its process did.
    SessionEnded(SessionId, EndReason),
    /// A process asks for something.
    Ask(SessionId, RequestId, Ask),
    /// Time has passed: see [`Registry::next_deadline`].
    Tick,
    /// The self-test of legacy handles has ended: whether this driver's process-number word may be rewritten.
    PidWordProven(bool),
}

/// What is known of a member.
#[derive(Debug, Clone)]
pub struct MemberFacts {
    /// The pod.
    pub pod: PodRef,
    /// Its group.
    pub group: GroupKey,
    /// The GPUs it holds; `None`: it may use all of the node's.
    pub devices: Option<Vec<DeviceUuid>>,
}

/// What is known of a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionFacts {
    /// The member it belongs to.
    pub member: MemberId,
    /// The process's number in its own PID namespace, which legacy handles carry.
    pub own_pid: u32,
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
}

/// A publication that the edges have checked as far as it can be.
#[derive(Debug)]
pub struct Vetted {
    /// Drawn for it.
    pub id: BufferId,
    /// What was stated, and the memory.
    pub publication: Publication,
    /// Whether a GPU worker has checked device and size.
    pub verified: bool,
}

/// What the edges must do.
#[derive(Debug)]
pub enum Effect {
    /// Send this to the session.
    Send(SessionId, BrokerMessage),
    /// Close the carrier, in the lane of the member that sent it.
    Dispose(MemberId, Carrier),
    /// End the session's connection.
    EndSession(SessionId),
    /// Something worth a log line and a metric.
    Note(Note),
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
    /// A lease was given to a member's session.
    Leased(LeaseId, BufferId, SessionId),
    /// A buffer takes no new leases; so many are left.
    Ending(BufferId, EndReason, u32),
    /// A buffer's deadline passed with so many leases left.
    Orphaned(BufferId, EndReason, u32),
    /// A buffer is gone.
    Gone(BufferId, EndReason),
}

/// Limits that come from the process, not from the policy.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Descriptors that buffers may keep open, all members together.
    pub descriptors: u64,
}

#[derive(Debug)]
struct Member {
    facts: MemberFacts,
    usage: Usage,
    sessions: BTreeSet<SessionId>,
}

#[derive(Debug)]
struct Session {
    facts: SessionFacts,
    published: BTreeSet<BufferId>,
    leases: BTreeSet<LeaseId>,
    /// Buffers whose carrier was ever sent to this session.
    given: HashSet<BufferId>,
    /// Requests that wait for an answer, watches included, and how many items each has.
    open: BTreeMap<RequestId, u64>,
}

#[derive(Debug)]
struct Buffer {
    info: Arc<BufferInfo>,
    group: GroupKey,
    owner: SessionId,
    member: MemberId,
    /// `None` once the buffer is ending.
    carrier: Option<Carrier>,
    ending: Option<Ending>,
    leases: BTreeSet<LeaseId>,
    given: BTreeSet<SessionId>,
}

#[derive(Debug, Default)]
struct Group {
    members: u32,
    last_generation: u64,
    /// Live buffers of each name, by generation.
    names: HashMap<BufferName, BTreeMap<u64, BufferId>>,
    /// Live buffers of each name of a set.
    sets: HashMap<BufferName, sets::Versions>,
    ended: Ended,
    watchers: BTreeSet<(SessionId, RequestId)>,
}

/// The state of one node. See the module's documentation.
#[derive(Debug)]
pub struct Registry {
    policy: Policy,
    capacity: Capacity,
    boot: BootTag,
    pid_word_proven: bool,
    members: HashMap<MemberId, Member>,
    groups: HashMap<GroupKey, Group>,
    sessions: HashMap<SessionId, Session>,
    buffers: HashMap<BufferId, Buffer>,
    /// The buffer of each active lease.
    leases: HashMap<LeaseId, BufferId>,
    /// Leases given so far; their numbers are keyed hashes of this, so that nobody can count what others get.
    leases_given: u64,
    lease_numbers: RandomState,
    descriptors: u64,
    counters: Counters,
    waits: acquire::Waits,
    set_waits: sets::Waits,
    staging: sets::Staging,
    seating: seats::Seating,
    deadlines: BTreeSet<(Instant, BufferId)>,
    effects: Vec<Effect>,
}

impl Registry {
    /// An empty registry. Lease numbers are drawn by `lease_numbers`.
    #[must_use]
    pub fn new(policy: Policy, capacity: Capacity, boot: BootTag, lease_numbers: RandomState) -> Self {
        Self {
            policy,
            capacity,
            boot,
            pid_word_proven: false,
            members: HashMap::new(),
            groups: HashMap::new(),
            sessions: HashMap::new(),
            buffers: HashMap::new(),
            leases: HashMap::new(),
            leases_given: 0,
            lease_numbers,
            descriptors: 0,
            counters: Counters::default(),
            waits: acquire::Waits::default(),
            set_waits: sets::Waits::default(),
            staging: sets::Staging::default(),
            seating: seats::Seating::default(),
            deadlines: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    /// Takes in what happened and returns what must be done, in order.
    pub fn apply(&mut self, input: Input, now: Instant) -> Vec<Effect> {
        match input {
            Input::MemberJoined(member, facts) => self.member_joined(member, facts),
            Input::MemberLeft(member) => self.member_left(member, now),
            Input::SessionOpened(session, facts) => self.session_opened(session, facts),
            Input::SessionEnded(session, reason) => self.session_ended(session, reason, now),
            Input::Ask(session, request, ask) => self.ask(session, request, ask, now),
            Input::Tick => self.tick(now),
            Input::PidWordProven(proven) => self.pid_word_proven = proven,
        }
        std::mem::take(&mut self.effects)
    }

    /// When the next [`Input::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let buffer = self.deadlines.first().map(|(at, _)| *at);
        let sets = [self.set_waits.next_deadline(), self.staging.next_deadline()];
        [buffer, self.waits.next_deadline()].into_iter().chain(sets).flatten().min()
    }

    /// Buffers, leases and sessions at the moment.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.buffers.len(), self.leases.len(), self.sessions.len())
    }

    /// What was answered so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn ask(&mut self, session: SessionId, request: RequestId, ask: Ask, now: Instant) {
        if !self.sessions.contains_key(&session) {
            return; // It ended while the question was on its way; so did everything it held.
        }
        match ask {
            Ask::Publish(items) => self.publish(session, request, items),
            Ask::PublishSet(part, items) => self.publish_set(session, request, &part, items, now),
            Ask::AcquireSet { wanted, until } => self.acquire_set(session, request, wanted, until),
            Ask::Acquire { items, until } => self.acquire(session, request, items, until),
            Ask::Release(leases) => self.release(session, request, &leases),
            Ask::Retire { id, until } => self.retire(session, request, id, until, now),
            Ask::Watch => self.watch(session, request),
            Ask::Cancel(target) => self.cancel(session, target),
        }
    }

    fn tick(&mut self, now: Instant) {
        self.expire_buffers(now);
        self.expire_waits(now);
        self.expire_set_waits(now);
        self.expire_staged(now);
    }

    /// A lease number that is not in use.
    fn draw_lease(&mut self) -> LeaseId {
        loop {
            self.leases_given = self.leases_given.wrapping_add(1);
            let lease = LeaseId(self.lease_numbers.hash_one(self.leases_given));
            if !self.leases.contains_key(&lease) {
                return lease;
            }
        }
    }

    fn reply(&mut self, session: SessionId, request: RequestId, body: BrokerBody) {
        self.counters.count(&body);
        self.effects.push(Effect::Send(session, BrokerMessage { request, body }));
    }

    /// The group of a session, for as long as the session is known.
    fn group_of(&self, session: SessionId) -> Option<&GroupKey> {
        let member = self.sessions.get(&session)?.facts.member;
        self.members.get(&member).map(|m| &m.facts.group)
    }

    fn usage_mut(&mut self, member: MemberId) -> Option<&mut Usage> {
        self.members.get_mut(&member).map(|m| &mut m.usage)
    }

    /// Registers a request that stays open, unless the session has too much open or the number is in use.
    fn open_request(&mut self, session: SessionId, request: RequestId, items: u64) -> Result<(), Refusal> {
        let limit = self.policy.quota.requests;
        let Some(s) = self.sessions.get_mut(&session) else { return Ok(()) };
        let open: u64 = s.open.values().sum();
        if open + items > limit {
            let wanted = format!("at most {limit} open items");
            let found = format!("{open} open, {items} more");
            return Err(Refusal::new(Code::TooManyRequests).compared_with("requests", wanted, found));
        }
        if s.open.contains_key(&request) {
            return Err(Refusal::new(Code::Malformed).compared_with(
                "request number",
                "one not in use",
                request,
            ));
        }
        s.open.insert(request, items);
        Ok(())
    }

    fn close_request(&mut self, session: SessionId, request: RequestId) {
        if let Some(s) = self.sessions.get_mut(&session) {
            s.open.remove(&request);
        }
    }
}
