//! A buffer ends; what happens to its leases.
//!
//! Whatever ends a buffer (retire, revoke, its owner's connection, process or pod), the same happens: it takes no new
//! leases, the broker gives up its carrier at once (nobody will be given it any more), and it is gone when its last
//! lease is. What differs is only when it counts as orphaned: after the deadline of a retire, else at once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerBody, Carrier, EndReason, Event, RequestId, SeatEnd};
use gpu_handoff_protocol::{BufferId, Code, GroupKey, LeaseId, Refusal};

use super::{Effect, MemberId, Note, Registry, SessionId};
use crate::journal::Record;

/// How many ended buffers of a group are remembered, so that an acquire can say `RETIRED` and why.
const REMEMBERED: usize = 1_024;

/// How a buffer ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    reason: EndReason,
    /// Until when its holders may keep their leases; `None`: they should be gone already.
    until: Option<Instant>,
}

impl Ending {
    pub(super) const fn new(reason: EndReason, until: Option<Instant>) -> Self {
        Self { reason, until }
    }

    pub(super) const fn reason(&self) -> EndReason {
        self.reason
    }

    pub(super) const fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn refusal(self, id: BufferId) -> Refusal {
        retired(id, self.reason)
    }
}

/// The refusal for a buffer that takes no new leases.
pub(super) fn retired(id: BufferId, reason: EndReason) -> Refusal {
    Refusal::new(Code::Retired).compared_with(
        "buffer",
        format!("{id} live"),
        format!("ended: {}", reason.as_str()),
    )
}

/// The last buffers of a group that ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    order: VecDeque<BufferId>,
    reasons: HashMap<BufferId, EndReason>,
}

impl Ended {
    pub(super) fn remember(&mut self, id: BufferId, reason: EndReason) {
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.reasons.remove(&oldest);
        }
        self.order.push_back(id);
        self.reasons.insert(id, reason);
    }
}

impl Ended {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&BufferId, &EndReason)> {
        self.order.iter().filter_map(|id| Some((id, self.reasons.get(id)?)))
    }
}

impl Registry {
    /// Ids do not outlive the boot that they were drawn in.
    pub(super) fn is_of_this_boot(&self, id: BufferId) -> Result<(), Refusal> {
        if id.boot == self.boot {
            return Ok(());
        }
        let (wanted, found) = (format!("{:016x}", self.boot.0), format!("{:016x}", id.boot.0));
        Err(Refusal::new(Code::StaleHandle).compared_with("boot of the node", wanted, found))
    }

    /// How a buffer of this group ended, if it did not long ago.
    pub(super) fn ended_of(&self, id: BufferId, group: &GroupKey) -> Option<EndReason> {
        self.groups.get(group)?.ended.reasons.get(&id).copied()
    }

    pub(super) fn retire(
        &mut self,
        session: SessionId,
        request: RequestId,
        id: BufferId,
        until: Option<Instant>,
        now: Instant,
    ) {
        let outcome = self.may_retire(session, id);
        let granted = outcome.is_ok();
        self.reply(session, request, BrokerBody::Retired(outcome));
        if granted {
            self.retire_known(id, until, now);
        }
    }

    /// Retires a buffer that is there, or known from a lease: then it is not waited for any more.
    pub(super) fn retire_known(&mut self, id: BufferId, until: Option<Instant>, now: Instant) {
        if self.buffers.get(&id).is_some_and(|b| b.is_awaited()) {
            self.expected.buffer_settled(id);
            self.waits.buffer_settled(id);
        }
        self.end_buffer(id, EndReason::Retired, until, now);
    }

    /// Only the owner retires, and only once: of what outlives its process, any process of its pod. Answers with the leases left.
    fn may_retire(&self, session: SessionId, id: BufferId) -> Result<u32, Refusal> {
        self.is_of_this_boot(id)?;
        let unknown = || Refusal::new(Code::NotFound).compared_with("buffer", id, "none such");
        let group = self.group_of(session).ok_or_else(unknown)?;
        let Some(buffer) = self.buffers.get(&id) else {
            return Err(self.ended_of(id, group).map_or_else(unknown, |reason| retired(id, reason)));
        };
        if !self.sees(session, buffer) {
            return Err(unknown());
        }
        let own_member = self.sessions.get(&session).is_some_and(|s| s.facts.member == buffer.member);
        if buffer.owner != Some(session) && !(buffer.lasts() && own_member) {
            let owner = format!("a process of pod {}", buffer.info.owner);
            return Err(Refusal::new(Code::NotOwner).compared_with(
                "owner",
                owner,
                "another process or connection",
            ));
        }
        match buffer.ending {
            Some(ending) => Err(ending.refusal(id)),
            None => Ok(buffer.leases),
        }
    }

    /// Lets a live buffer take no new leases. Ending one that is ending already only takes its deadline away.
    pub(super) fn end_buffer(
        &mut self,
        id: BufferId,
        reason: EndReason,
        until: Option<Instant>,
        now: Instant,
    ) {
        let Some(buffer) = self.buffers.get_mut(&id) else { return };
        let until = until.filter(|at| *at > now);
        let leases = buffer.leases;
        if let Some(ending) = &mut buffer.ending {
            if let Some(at) = ending.until.take() {
                self.deadlines.remove(&(at, id));
                self.record_retiring(id);
                self.await_overstay(id, now);
                self.orphan(id);
            } else if ending.reason == EndReason::Superseded {
                ending.reason = reason;
                self.record_retiring(id);
                self.await_overstay(id, now);
                self.orphan(id);
            }
            return;
        }
        buffer.ending = Some(Ending { reason, until });
        let (group, info, member) = (buffer.group.clone(), Arc::clone(&buffer.info), buffer.member);
        let carrier = buffer.carrier.take();
        if let Some(carrier) = carrier {
            self.let_go(member, &carrier);
            self.effects.push(Effect::Forget(member, id, carrier));
        }
        self.unname(&group, &info);
        if let Some(m) = self.members.get_mut(&member) {
            m.lasting.unname(&info);
        }
        self.effects.push(Effect::Note(Note::Ending(id, reason, leases)));
        if leases > 0 {
            self.record_retiring(id);
            self.await_overstay(id, now);
        }
        match (leases, until) {
            (0, _) => self.finish(id),
            (_, Some(at)) => {
                self.deadlines.insert((at, id));
                self.tell_all(id, &Event::Retiring { id, deadline: at.saturating_duration_since(now) });
            }
            // Its holders may keep what was superseded for as long as they like.
            (_, None) if reason == EndReason::Superseded => {}
            (_, None) => self.orphan(id),
        }
    }

    /// Gives up memory that is of no buffer.
    pub(super) fn give_up(&mut self, member: MemberId, carrier: Carrier) {
        self.let_go(member, &carrier);
        self.effects.push(Effect::Dispose(member, carrier));
    }

    /// Says that the buffer has ended and leases are left.
    fn orphan(&mut self, id: BufferId) {
        let Some(buffer) = self.buffers.get(&id) else { return };
        let Some(ending) = buffer.ending else { return };
        let leases = buffer.leases;
        self.effects.push(Effect::Note(Note::Orphaned(id, ending.reason, leases)));
        self.tell_all(id, &Event::Orphaned { id, reason: ending.reason, leases });
    }

    /// Ends a lease that its session has given back or lost; the buffer may be gone with it.
    pub(super) fn end_lease(&mut self, lease: LeaseId, member: MemberId, how: SeatEnd) {
        let Some(id) = self.leases.remove(&lease) else { return };
        self.get_up(id, lease, how);
        self.records.push(Record::LeaseEnded { lease });
        self.account(member, |usage| usage.leases -= 1);
        let Some(buffer) = self.buffers.get_mut(&id) else { return };
        buffer.leases -= 1;
        if buffer.ending.is_some() && buffer.leases == 0 {
            self.finish(id);
        }
    }

    /// Forgets an ended buffer that nobody leases, and says so.
    fn finish(&mut self, id: BufferId) {
        let Some(reason) = self.buffers.get(&id).and_then(|b| b.ending).map(|e| e.reason) else { return };
        self.tell_all(id, &Event::Gone { id, reason });
        let Some(buffer) = self.buffers.remove(&id) else { return };
        if let Some(at) = buffer.ending.and_then(|e| e.until) {
            self.deadlines.remove(&(at, id));
        }
        self.overstays.forget(id);
        if let Some(owner) = buffer.owner.and_then(|owner| self.sessions.get_mut(&owner)) {
            owner.published.remove(&id);
        }
        if let Some(m) = self.members.get_mut(&buffer.member) {
            m.lasting.remove(&buffer.info);
        }
        let group = self.group_tag(buffer.member, &buffer.group);
        self.records.push(Record::BufferEnded { id, reason, group });
        self.uncharge(buffer.member, &buffer.info);
        self.effects.push(Effect::Note(Note::Gone(id, reason)));
        if let Some(group) = self.groups.get_mut(&buffer.group) {
            group.ended.remember(id, reason);
        }
    }

    pub(super) fn expire_buffers(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            self.deadlines.remove(&(at, id));
            if let Some(ending) = self.buffers.get_mut(&id).and_then(|b| b.ending.as_mut()) {
                ending.until = None;
            }
            self.orphan(id);
        }
    }
}

pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
