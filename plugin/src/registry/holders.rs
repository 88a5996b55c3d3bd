//! Processes that had something and have not reattached: each is a session that hears nothing, until it claims its own,
//! dies, or its time is over.

use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::message::{Carrier, EndReason, SeatEnd};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{BufferId, BufferInfo, LeaseId};

use super::lasting::Publisher;
use super::past::{Awaits, Overdue};
use super::{Effect, Keepable, MemberId, Purpose, Registry, Session, SessionFacts, SessionId};
use crate::journal::{Record, Tag};

/// Sessions with a number from here on are processes that have not reattached; connections have smaller ones.
pub(super) const FIRST_HOLDER: u64 = 1 << 63;
/// The member of buffers whose pod is not on this node any more.
pub(super) const NOBODY: MemberId = MemberId(u32::MAX);

impl Registry {
    /// The session that stands for a process until it comes back.
    pub(super) fn holder(
        &mut self,
        member: MemberId,
        process: ProcessKey,
        own_pid: u32,
        now: Instant,
    ) -> SessionId {
        if let Some(known) = self.holders.get(&(member, process)) {
            return *known;
        }
        self.last_holder += 1;
        let holder = SessionId(self.last_holder);
        let tag = self.member_tag(member);
        self.holders.insert((member, process), holder);
        if let Some(m) = self.members.get_mut(&member) {
            m.sessions.insert(holder);
        }
        self.sessions.insert(
            holder,
            Session::new(SessionFacts {
                member,
                own_pid,
                process,
                hears_announcements: false,
                reachable: None,
            }),
        );
        self.expected.await_holder(tag, holder, now);
        self.effects.push(Effect::AwaitEnd(member, holder, process));
        holder
    }

    /// Whether this session stands for a process that has not come back.
    #[allow(clippy::unused_self, reason = "a question to the registry, however it is answered")]
    pub(super) fn is_away(&self, session: SessionId) -> bool {
        session.0 >= FIRST_HOLDER
    }

    /// Gives a buffer its owner, who may take the place of one that stood for it. What outlives its process has none, and its
    /// publisher hears of it.
    pub(super) fn own(&mut self, id: BufferId, owner: SessionId) {
        if self.buffers.get(&id).is_some_and(|b| b.lasts()) {
            return self.give(id, owner);
        }
        let before = self.buffers.get_mut(&id).and_then(|b| b.owner.replace(owner));
        if let Some(s) = self.sessions.get_mut(&owner) {
            s.published.insert(id);
        }
        let Some(before) = before.filter(|before| *before != owner) else { return };
        let Some(s) = self.sessions.get_mut(&before) else { return };
        s.published.remove(&id);
        if s.published.is_empty() && self.is_away(before) {
            self.forget_holder(before);
        }
    }

    /// A process that stood for nothing any more.
    fn forget_holder(&mut self, holder: SessionId) {
        let Some(s) = self.sessions.remove(&holder) else { return };
        if let Some(member) = self.members.get_mut(&s.facts.member) {
            member.sessions.remove(&holder);
        }
        self.holder_is_gone(holder, s.facts);
    }

    /// What is left to do when a session that stood for a process is no more.
    pub(super) fn holder_is_gone(&mut self, holder: SessionId, facts: SessionFacts) {
        self.holders.remove(&(facts.member, facts.process));
        self.expected.holder_settled(self.member_tag(facts.member), holder);
        self.effects.push(Effect::AwaitNoMore(facts.member, holder));
    }

    pub(super) fn session_tag(&self, session: SessionId) -> Tag {
        self.sessions.get(&session).map_or(Tag(0), |s| self.member_tag(s.facts.member))
    }

    pub(super) fn member_of(&self, tag: Tag) -> MemberId {
        self.members.iter().find(|(_, m)| m.tag == tag).map_or(NOBODY, |(id, _)| *id)
    }

    /// Ends what was expected of members for too long.
    pub(super) fn expire_expected(&mut self, now: Instant) {
        if self.expected.is_over() {
            return;
        }
        for overdue in self.expected.take_overdue(now) {
            self.expected.overdue.push_back(Overdue::new(overdue, EndReason::OwnerDied));
        }
    }

    /// Nothing more is expected of a member: what has not come back ends.
    pub(super) fn end_expected(&mut self, member: Tag, reason: EndReason) {
        if let Some(awaited) = self.expected.members.remove(&member) {
            self.expected.overdue.push_back(Overdue::new(awaited, reason));
        }
    }

    /// Ends so much of what is overdue. What has come back meanwhile stays.
    pub(super) fn end_overdue(&mut self, steps: &mut usize, now: Instant) {
        let mut any = false;
        while let Some(overdue) = self.expected.overdue.front_mut() {
            any = true;
            let reason = overdue.reason;
            let Some(next) = overdue.next() else {
                self.expected.overdue.pop_front();
                self.waits.stir_restoring();
                self.set_waits.stir_restoring();
                continue;
            };
            match next {
                Awaits::Holder(holder) => self.leave(holder, reason),
                Awaits::Lease(lease) if self.expected.leases.contains_key(&lease) => {
                    self.end_expected_lease(lease);
                }
                Awaits::Buffer(id) if self.expected.takes_leases(id) => {
                    self.end_expected_buffer(id, reason, now);
                }
                Awaits::Lease(_) | Awaits::Buffer(_) => {}
            }
            *steps -= 1;
            if *steps == 0 {
                break;
            }
        }
        if any {
            self.settle_stirred_waits();
        }
    }

    /// A lease that is expected ends.
    pub(super) fn end_expected_lease(&mut self, lease: LeaseId) {
        let alive = self.expected.lease_settled(lease);
        self.end_unclaimed(lease, alive.map(|l| l.buffer));
    }

    /// A buffer that is expected ends; its leases may still be claimed.
    pub(super) fn end_expected_buffer(&mut self, id: BufferId, reason: EndReason, now: Instant) {
        if self.buffers.contains_key(&id) {
            self.expected.buffer_settled(id);
            self.end_buffer(id, reason, None, now);
        } else {
            self.expected.buffer_ends(id, reason);
            self.records.push(Record::Retiring { id, reason, until: None });
            self.end_if_unheld(id);
        }
        self.waits.buffer_settled(id);
    }

    /// Ends a lease that nobody claimed.
    fn end_unclaimed(&mut self, lease: LeaseId, buffer: Option<BufferId>) {
        if self.leases.contains_key(&lease) {
            self.end_lease(lease, NOBODY, SeatEnd::Died);
            return;
        }
        self.records.push(Record::LeaseEnded { lease });
        if let Some(id) = buffer {
            self.end_if_unheld(id);
        }
    }

    /// A buffer that is not there and takes no leases is over with the last lease that may still be claimed.
    fn end_if_unheld(&mut self, id: BufferId) {
        let Some(alive) = self.expected.buffers.get(&id) else { return };
        let Some((reason, _)) = alive.retiring else { return };
        if self.expected.leases_of.contains_key(&id) {
            return;
        }
        let group = alive.group;
        self.expected.buffer_settled(id);
        self.records.push(Record::BufferEnded { id, reason, group });
        match self.groups.iter_mut().find(|(key, _)| Tag::of_group(key) == group) {
            Some((_, g)) => g.ended.remember(id, reason),
            None => self.expected.ended.entry(group).or_default().push((id, reason)),
        }
    }

    /// The sidecar of its member is to keep a live buffer.
    pub(super) fn keep(&mut self, id: BufferId, purpose: Purpose) {
        if let Some((member, kept)) = self.keepable(id, purpose) {
            self.effects.push(Effect::Keep(member, Box::new(kept)));
        }
    }

    fn keepable(&self, id: BufferId, purpose: Purpose) -> Option<(MemberId, Keepable)> {
        let buffer = self.buffers.get(&id)?;
        let Publisher { process, own_pid } = match buffer.owner {
            Some(owner) => self.as_publisher(owner)?,
            None => self.members.get(&buffer.member)?.lasting.publisher(id)?,
        };
        let kept = Keepable {
            info: Arc::clone(&buffer.info),
            process,
            own_pid,
            carrier: buffer.carrier.clone()?,
            purpose,
        };
        Some((buffer.member, kept))
    }

    /// The publisher of a set's buffer is about to be answered; nobody else is to know of it yet.
    pub(super) fn receipt_for_publisher(
        &mut self,
        session: SessionId,
        info: &Arc<BufferInfo>,
        carrier: &Carrier,
    ) {
        let Some(facts) = self.sessions.get(&session).map(|s| s.facts.clone()) else { return };
        let (info, carrier) = (Arc::clone(info), carrier.clone());
        let (process, own_pid, purpose) = (facts.process, facts.own_pid, Purpose::Answer);
        let kept = Keepable { info, process, own_pid, carrier, purpose };
        self.effects.push(Effect::Keep(facts.member, Box::new(kept)));
    }

    /// A sidecar has offered all that it had: it is to keep all that its pod has, and is told of it piece by piece.
    pub(super) fn offer_done(&mut self, member: MemberId, now: Instant) {
        self.expected.offered(self.member_tag(member), now);
        let Some(m) = self.members.get(&member) else { return };
        let sessions = m.sessions.iter().filter_map(|s| self.sessions.get(s));
        self.keeping.extend(sessions.flat_map(|s| s.published.iter().copied()).chain(m.lasting.ids()));
        self.take_apart(now);
    }

    /// Tells sidecars to keep so much of what they are to.
    pub(super) fn keep_some(&mut self, steps: &mut usize) {
        let some = (*steps).min(self.keeping.len());
        *steps -= some;
        let some: Vec<BufferId> = self.keeping.drain(..some).collect();
        for id in some {
            self.keep(id, Purpose::Keep);
        }
    }
}
