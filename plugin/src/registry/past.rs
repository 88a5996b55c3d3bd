//! What an earlier daemon of this boot left alive and nobody has shown the receipt of yet.
//!
//! It is expected until its sidecar offers it or its process claims it, and for no longer than
//! [`limits::REATTACH_TIME`] after the sidecar has offered all that it has (or, where none comes,
//! [`limits::SIDECAR_PATIENCE`] more): then it ends as by death. An offer that comes may take [`limits::OFFER_TIME`] to be
//! checked, and is waited for, until [`limits::OFFERING_TIME`] at most, and so is memory that a process brings; a process has [`limits::REATTACH_TIME`] from when the
//! first of its buffers is there, at least. What is expected cannot be acquired, but an acquire of
//! it waits, and its name is its member's.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::EndReason;
use gpu_handoff_protocol::{BufferId, LeaseId};

use super::SessionId;
use super::reserved::Reserved;
use crate::journal::{AliveBuffer, AliveLease, Found, Record, SinceBoot, Tag};
use crate::limits;

/// Translates between the clock of this daemon and the one that goes on when it ends.
#[derive(Debug, Clone, Copy)]
pub struct BootClock {
    /// A moment.
    pub instant: Instant,
    /// The same moment, since the boot.
    pub since_boot: Duration,
}

impl BootClock {
    pub(super) fn since_boot(&self, at: Instant) -> SinceBoot {
        let time = match at.checked_duration_since(self.instant) {
            Some(later) => self.since_boot.saturating_add(later),
            None => self.since_boot.saturating_sub(self.instant.saturating_duration_since(at)),
        };
        SinceBoot(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The moment, if it is still to come.
    pub(super) fn instant(&self, at: SinceBoot) -> Option<Instant> {
        Duration::from_nanos(at.0).checked_sub(self.since_boot).map(|left| self.instant + left)
    }
}

/// What the journal told, and how its times are to be read.
#[derive(Debug)]
pub struct Past {
    /// What was alive.
    pub found: Found,
    /// The clock.
    pub clock: BootClock,
}

impl Past {
    /// Nothing was alive.
    #[must_use]
    pub fn none(now: Instant) -> Self {
        let found = Found { life: 1, ..Found::default() };
        Self { found, clock: BootClock { instant: now, since_boot: Duration::ZERO } }
    }
}

/// What is expected of one member.
#[derive(Debug)]
pub(super) struct Awaited {
    /// Until when.
    pub(super) until: Instant,
    /// Its sidecar has offered all that it has.
    offered: bool,
    /// Buffers that take leases and are not there yet.
    pub(super) buffers: HashSet<BufferId>,
    /// Those of them whose memory has come and is being checked, each until when that is waited for.
    checked: HashMap<BufferId, Instant>,
    /// Leases that nobody has claimed yet.
    pub(super) leases: HashSet<LeaseId>,
    /// Processes whose buffers are there and that have not reattached yet, each with the time of its own: it begins when the
    /// first of its buffers comes, however late that is.
    pub(super) holders: BTreeMap<SessionId, Instant>,
}

impl Awaited {
    fn new(until: Instant) -> Self {
        let (buffers, leases, holders) = (HashSet::new(), HashSet::new(), BTreeMap::new());
        Self { until, offered: false, buffers, checked: HashMap::new(), leases, holders }
    }

    fn is_over(&self) -> bool {
        self.buffers.is_empty() && self.leases.is_empty() && self.holders.is_empty()
    }

    /// When the first of it is not waited for any longer.
    fn due(&self) -> Option<Instant> {
        let others = self.buffers.len() > self.checked.len() || !self.leases.is_empty();
        let own = self.holders.values().chain(self.checked.values());
        own.map(|own| self.until.max(*own)).chain(others.then_some(self.until)).min()
    }

    /// Takes out what is not waited for any longer.
    fn take_overdue(&mut self, now: Instant) -> Self {
        let mut overdue = Self::new(self.until);
        if self.until > now {
            return overdue;
        }
        self.checked.retain(|_, own| *own > now);
        let checked = self.checked.keys().copied().collect();
        overdue.buffers = std::mem::replace(&mut self.buffers, checked);
        overdue.buffers.retain(|id| !self.buffers.contains(id));
        overdue.leases = std::mem::take(&mut self.leases);
        overdue.holders =
            self.holders.iter().filter(|(_, own)| **own <= now).map(|(h, own)| (*h, *own)).collect();
        self.holders.retain(|_, own| *own > now);
        overdue
    }
}

/// What was expected for too long, and ends piece by piece. It may come back until its turn comes.
#[derive(Debug)]
pub(super) struct Overdue {
    pub(super) reason: EndReason,
    holders: Vec<SessionId>,
    leases: Vec<LeaseId>,
    buffers: Vec<BufferId>,
}

/// One thing that was expected.
pub(super) enum Awaits {
    Holder(SessionId),
    Lease(LeaseId),
    Buffer(BufferId),
}

impl Overdue {
    pub(super) fn new(awaited: Awaited, reason: EndReason) -> Self {
        let Awaited { buffers, leases, holders, .. } = awaited;
        let (holders, leases) = (holders.into_keys().collect(), leases.into_iter().collect());
        Self { reason, holders, leases, buffers: buffers.into_iter().collect() }
    }

    /// What ends next.
    pub(super) fn next(&mut self) -> Option<Awaits> {
        let holder = self.holders.pop().map(Awaits::Holder);
        let lease = || self.leases.pop().map(Awaits::Lease);
        holder.or_else(lease).or_else(|| self.buffers.pop().map(Awaits::Buffer))
    }
}

/// All that is expected.
#[derive(Debug)]
pub(super) struct Expected {
    /// Buffers that are not there yet, and those whose end only waits for leases that nobody has claimed yet.
    pub(super) buffers: HashMap<BufferId, AliveBuffer>,
    pub(super) leases: HashMap<LeaseId, AliveLease>,
    /// The expected leases of each buffer.
    pub(super) leases_of: HashMap<BufferId, BTreeSet<LeaseId>>,
    pub(super) members: HashMap<Tag, Awaited>,
    pub(super) overdue: VecDeque<Overdue>,
    /// Until when offers may move deadlines.
    latest: Instant,
    /// Expected buffers that take leases, by group and name, then version. A set has many of one.
    names: HashMap<(Tag, Tag), BTreeSet<(u64, BufferId)>>,
    /// Buffers that ended, by group, until the group has a member.
    pub(super) ended: HashMap<Tag, Vec<(BufferId, EndReason)>>,
    pub(super) generations: HashMap<Tag, u64>,
    /// Room for it in the members' quotas.
    pub(super) reserved: Reserved,
}

impl Expected {
    /// Expects what was found, and says what of it has no ground to stand on and is over at once.
    pub(super) fn new(found: Found, now: Instant) -> (Self, Vec<Record>) {
        let until = now + limits::SIDECAR_PATIENCE + limits::REATTACH_TIME;
        let mut this = Self {
            buffers: HashMap::new(),
            leases: HashMap::new(),
            leases_of: HashMap::new(),
            members: HashMap::new(),
            overdue: VecDeque::new(),
            latest: now + limits::OFFERING_TIME,
            names: HashMap::new(),
            ended: HashMap::new(),
            generations: found.alive.generations,
            reserved: Reserved::default(),
        };
        let mut over: Vec<Record> =
            found.left.into_iter().map(|lease| Record::LeaseEnded { lease }).collect();
        for (id, group, reason) in found.alive.ended {
            this.ended.entry(group).or_default().push((id, reason));
        }
        let buffers = found.alive.buffers;
        for (lease, alive) in found.alive.leases {
            if !buffers.contains_key(&alive.buffer) {
                over.push(Record::LeaseEnded { lease });
                continue;
            }
            this.await_of(alive.holder, until).leases.insert(lease);
            this.leases_of.entry(alive.buffer).or_default().insert(lease);
            this.leases.insert(lease, alive);
        }
        for (id, alive) in buffers {
            match alive.retiring {
                Some((reason, _)) if !this.leases_of.contains_key(&id) => {
                    over.push(Record::BufferEnded { id, reason, group: alive.group });
                    this.ended.entry(alive.group).or_default().push((id, reason));
                    continue;
                }
                Some(_) => {}
                None => {
                    this.await_of(alive.member, until).buffers.insert(id);
                    let versions = this.names.entry((alive.group, alive.name)).or_default();
                    versions.insert((alive.generation, id));
                }
            }
            this.reserved.keep(id, &alive);
            this.buffers.insert(id, alive);
        }
        (this, over)
    }

    fn await_of(&mut self, member: Tag, until: Instant) -> &mut Awaited {
        self.members.entry(member).or_insert_with(|| Awaited::new(until))
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.members.values().filter_map(Awaited::due).min()
    }

    /// Takes out what is not waited for any longer.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<Awaited> {
        let overdue =
            self.members.values_mut().map(|m| m.take_overdue(now)).filter(|o| !o.is_over()).collect();
        self.members.retain(|_, m| !m.is_over());
        overdue
    }

    /// The newest expected version of a name.
    pub(super) fn newest(&self, group: Tag, name: Tag) -> Option<(u64, &AliveBuffer)> {
        let (generation, id) = self.names.get(&(group, name))?.last()?;
        Some((*generation, self.buffers.get(id)?))
    }

    /// Whether anything of this is expected at all: mostly nothing is.
    pub(super) fn is_over(&self) -> bool {
        self.members.is_empty() && !self.is_overdue()
    }

    /// Whether some of it is about to end.
    pub(super) fn is_overdue(&self) -> bool {
        !self.overdue.is_empty()
    }

    /// Whether this is a buffer that is expected and would take leases.
    pub(super) fn takes_leases(&self, id: BufferId) -> bool {
        self.buffers.get(&id).is_some_and(|alive| alive.retiring.is_none())
    }

    /// The sidecar offers something that is being checked; what that brings is to have its time, too.
    pub(super) fn offering(&mut self, member: Tag, now: Instant) {
        if let Some(awaited) = self.members.get_mut(&member).filter(|m| !m.offered) {
            let until = (now + limits::OFFER_TIME + limits::REATTACH_TIME).min(self.latest);
            awaited.until = awaited.until.max(until);
        }
    }

    /// The memory of these has come and is being checked, whoever brought it: they are waited for until that is done, though
    /// not for ever.
    pub(super) fn checking(&mut self, member: Tag, ids: &[BufferId], now: Instant) {
        let Some(awaited) = self.members.get_mut(&member) else { return };
        let until = (now + limits::OFFER_TIME).min(self.latest);
        for id in ids.iter().filter(|id| awaited.buffers.contains(*id)) {
            awaited.checked.insert(*id, until);
        }
    }

    /// The sidecar has offered all that it has. Only the first word counts, or a sidecar could keep others waiting.
    pub(super) fn offered(&mut self, member: Tag, now: Instant) {
        if let Some(awaited) = self.members.get_mut(&member).filter(|m| !m.offered) {
            awaited.offered = true;
            awaited.until = now + limits::REATTACH_TIME;
        }
    }

    /// A buffer is not expected any more: it is there, or it will never be.
    pub(super) fn buffer_settled(&mut self, id: BufferId) -> Option<AliveBuffer> {
        let alive = self.buffers.remove(&id)?;
        self.reserved.settle(id);
        self.unname(id, &alive);
        Some(alive)
    }

    /// A buffer that is not there ends; its leases may still be claimed.
    pub(super) fn buffer_ends(&mut self, id: BufferId, reason: EndReason) {
        let Some(mut alive) = self.buffers.get(&id).copied() else { return };
        self.unname(id, &alive);
        alive.retiring = Some((reason, None));
        self.buffers.insert(id, alive);
    }

    fn unname(&mut self, id: BufferId, alive: &AliveBuffer) {
        if let Some(versions) = self.names.get_mut(&(alive.group, alive.name)) {
            versions.remove(&(alive.generation, id));
            if versions.is_empty() {
                self.names.remove(&(alive.group, alive.name));
            }
        }
        if let Some(awaited) = self.members.get_mut(&alive.member) {
            awaited.buffers.remove(&id);
            awaited.checked.remove(&id);
        }
        self.forget_if_over(alive.member);
    }

    /// A lease is not expected any more: it was claimed, or never will be.
    pub(super) fn lease_settled(&mut self, lease: LeaseId) -> Option<AliveLease> {
        let alive = self.leases.remove(&lease)?;
        if let Some(leases) = self.leases_of.get_mut(&alive.buffer) {
            leases.remove(&lease);
            if leases.is_empty() {
                self.leases_of.remove(&alive.buffer);
            }
        }
        if let Some(awaited) = self.members.get_mut(&alive.holder) {
            awaited.leases.remove(&lease);
        }
        self.forget_if_over(alive.holder);
        Some(alive)
    }

    /// A process whose buffer is there is waited for, as long as its member's other things are, and for its own time.
    pub(super) fn await_holder(&mut self, member: Tag, holder: SessionId, now: Instant) {
        let until = now + limits::REATTACH_TIME;
        self.await_of(member, until).holders.insert(holder, until);
    }

    pub(super) fn holder_settled(&mut self, member: Tag, holder: SessionId) {
        if let Some(awaited) = self.members.get_mut(&member) {
            awaited.holders.remove(&holder);
        }
        self.forget_if_over(member);
    }

    fn forget_if_over(&mut self, member: Tag) {
        if self.members.get(&member).is_some_and(Awaited::is_over) {
            self.members.remove(&member);
        }
    }
}
