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
//! | what it is told, what is to be done | [`inputs`], [`effects`] |
//! | what there is: members, sessions, buffers, groups | [`state`] |
//! | members and sessions come and go | [`sessions`] |
//! | what ended sessions had ends; what is done in pieces | [`leaving`] |
//! | a buffer appears | [`publish`] |
//! | a lease is given, waited for, given back | [`acquire`] |
//! | buffers appear together, and are leased together | [`sets`] |
//! | the words of a buffer's order; seats of its leases | [`seats`] |
//! | a buffer ends; what happens to its leases | [`ending`] |
//! | buffers that outlive their process | [`lasting`] |
//! | who leases what is over, and for how long | [`overstays`] |
//! | what an earlier daemon left alive | [`past`] |
//! | its receipts are shown: offers and claims | [`claims`] |
//! | processes that have not come back | [`holders`] |
//! | whether what comes back is allowed still | [`today`] |
//! | another policy is in force | [`new_policy`] |
//! | who sees whose buffers | [`sight`] |
//! | room that is kept for it | [`reserved`] |
//! | what the journal is to know | [`records`] |
//! | what is found by a name | [`named`] |
//! | who waits for a name, and is looked at again | [`waiters`] |
//! | who was ever given a buffer | [`given`] |
//! | who is told of it | [`notices`] |
//! | a watch begins | [`listings`] |
//! | whether a process reaches the GPU of a buffer | [`reach`] |
//! | what was answered so far | [`counters`] |
//! | maps by the daemon's own numbers | [`drawn`] |

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::RandomState;
use std::time::Instant;

use gpu_handoff_policy::{Policy, Usage};
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, RequestId};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{BootTag, BufferId, Code, GroupKey, LeaseId, Refusal};

use crate::journal::Record;
use crate::limits;

mod acquire;
mod claims;
mod counters;
mod drawn;
mod effects;
mod ending;
mod given;
mod holders;
mod inputs;
mod lasting;
mod lease_numbers;
mod leaving;
mod listings;
mod named;
mod new_policy;
mod notices;
mod overstays;
mod past;
mod publish;
pub mod reach;
mod records;
mod reserved;
mod seats;
mod sessions;
mod sets;
mod sight;
mod state;
#[cfg(test)]
mod tests;
mod today;
mod waiters;

pub use claims::Shown;
pub use counters::Counters;
pub use drawn::DrawnMap;
pub use effects::{Effect, Keepable, Note, Overstay, Purpose};
pub use inputs::{Ask, Input, MemberFacts, SessionFacts, Vetted};
use lease_numbers::LeaseNumbers;
use notices::NOTICE;
use past::Expected;
pub use past::{BootClock, Past};
pub(crate) use publish::{check_range, list};
pub use reach::Topology;
pub use sets::WantedSet;
use state::{Buffer, Group, Importer, Member, Session};

/// A member's number on this node, for as long as the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// One connection of one process of a member, for as long as the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Limits that come from the process, not from the policy.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Descriptors that buffers may keep open, all members together.
    pub descriptors: u64,
}

/// The state of one node. See the module's documentation.
#[derive(Debug)]
pub struct Registry {
    policy: Policy,
    changing: new_policy::Changing,
    capacity: Capacity,
    boot: BootTag,
    pid_word_proven: bool,
    members: DrawnMap<MemberId, Member>,
    groups: HashMap<GroupKey, Group>,
    sessions: DrawnMap<SessionId, Session>,
    /// Boxed: a map keeps room for twice as many, and moves all when it grows.
    buffers: DrawnMap<BufferId, Box<Buffer>>,
    /// The buffer of each active lease.
    leases: DrawnMap<LeaseId, BufferId>,
    lease_numbers: LeaseNumbers,
    descriptors: u64,
    topology: Option<Topology>,
    counters: Counters,
    waits: acquire::Waits,
    set_waits: sets::Waits,
    staging: sets::Staging,
    seating: seats::Seating,
    deadlines: BTreeSet<(Instant, BufferId)>,
    overstays: overstays::Overstays,
    expected: Expected,
    clock: BootClock,
    /// Sessions that stand for processes which have not reattached.
    holders: HashMap<(MemberId, ProcessKey), SessionId>,
    last_holder: u64,
    /// What is left of sessions that have ended.
    leaving: VecDeque<leaving::Leaving>,
    /// Buffers that sidecars are to be told to keep.
    keeping: VecDeque<BufferId>,
    listings: listings::Listings,
    effects: Vec<Effect>,
    records: Vec<Record>,
}

impl Registry {
    /// A registry without members, that expects back what the past tells of. Lease numbers are drawn by `keys`.
    #[must_use]
    pub fn new(policy: Policy, capacity: Capacity, boot: BootTag, keys: RandomState, past: Past) -> Self {
        let Past { found, clock } = past;
        let life = found.life;
        let (expected, records) = Expected::new(found, clock.instant);
        Self {
            policy,
            changing: new_policy::Changing::default(),
            capacity,
            boot,
            pid_word_proven: false,
            members: DrawnMap::default(),
            groups: HashMap::new(),
            sessions: DrawnMap::default(),
            buffers: DrawnMap::default(),
            leases: DrawnMap::default(),
            lease_numbers: LeaseNumbers::new(life, keys),
            descriptors: 0,
            topology: None,
            counters: Counters::default(),
            waits: acquire::Waits::default(),
            set_waits: sets::Waits::default(),
            staging: sets::Staging::default(),
            seating: seats::Seating::default(),
            deadlines: BTreeSet::new(),
            overstays: overstays::Overstays::default(),
            expected,
            clock,
            holders: HashMap::new(),
            last_holder: holders::FIRST_HOLDER,
            leaving: VecDeque::new(),
            keeping: VecDeque::new(),
            listings: listings::Listings::default(),
            effects: Vec::new(),
            records,
        }
    }

    /// Takes in what happened and returns what must be done, in order.
    pub fn apply(&mut self, input: Input, now: Instant) -> Vec<Effect> {
        match input {
            Input::MemberJoined(member, facts) => self.member_joined(member, facts),
            Input::MemberHolds(member, holds) => self.member_holds(member, holds),
            Input::MemberEnding(member, until) => self.member_ending(member, until, now),
            Input::MemberLeft(member) => self.member_left(member, now),
            Input::SessionOpened(session, facts) => self.session_opened(session, facts),
            Input::SessionEnded(session, reason) => self.session_ended(session, reason, now),
            Input::Ask(session, request, ask) => self.ask(session, request, ask, now),
            Input::Offering(member) => self.expected.offering(self.member_tag(member), now),
            Input::Checking(member, ids) => self.expected.checking(self.member_tag(member), &ids, now),
            Input::Offered(member, token, items) => self.offered(member, token, items, now),
            Input::OfferDone(member) => self.offer_done(member, now),
            Input::Tick => self.tick(now),
            Input::GoOn => self.take_apart(now),
            Input::PidWordProven(proven) => self.pid_word_proven = proven,
            Input::Surveyed(topology) => self.topology = Some(topology),
            Input::NewPolicy(policy) => self.new_policy(*policy, now),
        }
        std::mem::take(&mut self.effects)
    }

    /// When the next [`Input::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let buffer = self.deadlines.first().map(|(at, _)| *at);
        let buffer = buffer.into_iter().chain(self.overstays.next_deadline()).min();
        let sets = [self.set_waits.next_deadline(), self.staging.next_deadline()];
        let sets = sets.into_iter().chain([self.listings.next_deadline()]);
        let waits = [self.waits.next_deadline(), self.expected.next_deadline()];
        [buffer, self.changing.next_deadline()].into_iter().chain(waits).chain(sets).flatten().min()
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
            Ask::Publish(items) => self.publish(session, request, items, now),
            Ask::PublishSet(part, items) => self.publish_set(session, request, &part, items, now),
            Ask::AcquireSet { wanted, until } => self.acquire_set(session, request, wanted, until, now),
            Ask::Acquire { items, until, device } => {
                self.acquire(Importer { session, device }, request, items, until, now)
            }
            Ask::Release(leases) => self.release(session, request, &leases),
            Ask::Retire { id, until } => self.retire(session, request, id, until, now),
            Ask::Watch => self.watch(session, request, now),
            Ask::Cancel(target) => self.cancel(session, target),
            Ask::Announce(names) => self.announce(session, &names),
            Ask::Reattach(items) => self.reattach(session, request, items, now),
        }
    }

    fn tick(&mut self, now: Instant) {
        self.expire_buffers(now);
        self.name_overstays(now);
        self.expire_expected(now);
        self.take_apart(now);
        self.go_by_policy(now);
        self.expire_waits(now);
        self.expire_set_waits(now);
        self.expire_staged(now);
        self.begin_due_watch(now);
    }

    /// A lease number that is not in use.
    fn draw_lease(&mut self) -> LeaseId {
        loop {
            let lease = self.lease_numbers.draw();
            if !self.leases.contains_key(&lease) && !self.expected.leases.contains_key(&lease) {
                return lease;
            }
        }
    }

    fn reply(&mut self, session: SessionId, request: RequestId, body: BrokerBody) {
        self.counters.count(&body);
        if self.is_away(session) {
            return; // A process that has not come back hears nothing.
        }
        self.effects.push(Effect::Send(session, BrokerMessage { request, body }));
    }

    /// The group of a session, for as long as the session is known.
    fn group_of(&self, session: SessionId) -> Option<&GroupKey> {
        let member = self.sessions.get(&session)?.facts.member;
        self.members.get(&member).map(|m| &m.facts.group)
    }

    /// Changes what a member and its group hold; whether there is such a member.
    fn account(&mut self, member: MemberId, change: impl Fn(&mut Usage)) -> bool {
        let Some(m) = self.members.get_mut(&member) else { return false };
        change(&mut m.usage);
        if let Some(group) = self.groups.get_mut(&m.facts.group) {
            change(&mut group.usage);
        }
        true
    }

    /// Registers a request that stays open, unless the session has too much open or the number is in use.
    fn open_request(&mut self, session: SessionId, request: RequestId, items: u64) -> Result<(), Refusal> {
        let limit = self.party_of(session).map_or(0, |party| self.policy.quota_of(&party).requests);
        let Some(s) = self.sessions.get_mut(&session) else { return Ok(()) };
        let Some(m) = self.members.get_mut(&s.facts.member) else { return Ok(()) };
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
        if m.waited + items > limits::WAITED_OF_MEMBER {
            let wanted = format!("at most {} open items", limits::WAITED_OF_MEMBER);
            let found = format!("{} open, {items} more", m.waited);
            return Err(Refusal::new(Code::TooManyRequests).compared_with(
                "requests of the pod",
                wanted,
                found,
            ));
        }
        s.open.insert(request, items);
        m.waited += items;
        Ok(())
    }

    fn close_request(&mut self, session: SessionId, request: RequestId) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        let closed = s.open.remove(&request).unwrap_or_default();
        if let Some(m) = self.members.get_mut(&s.facts.member) {
            m.waited -= closed;
        }
    }
}
