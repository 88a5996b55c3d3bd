//! Receipts are shown: by a sidecar that offers what its pod published, and by a process that claims what it had.
//!
//! Whether a receipt is this node's own was checked by the edges. Whether what it tells of is alive is asked here, of what
//! the journal told: a receipt of what has ended changes nothing, whoever shows it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerBody, Carrier, EndReason, Event, Reattached, RequestId};
use gpu_handoff_protocol::receipt::{BufferReceipt, LeaseReceipt, ProcessKey, ReceiptBody, Subject};
use gpu_handoff_protocol::{BufferId, BufferInfo, Code, GroupKey, LeaseId, Refusal};

use super::ending::{Ending, retired};
use super::given::Given;
use super::lasting::{Publisher, lasts};
use super::publish::add_buffer;
use super::{Buffer, Effect, MemberId, NOTICE, Note, Purpose, Registry, SessionId};
use crate::journal::AliveBuffer;

/// A receipt of this node that was shown.
#[derive(Debug)]
pub struct Shown {
    /// What it says.
    pub body: ReceiptBody,
    /// The buffer's memory, where it came along and was found to be what the receipt says.
    pub carrier: Option<Carrier>,
}

/// Who shows a buffer's receipt.
#[derive(Clone, Copy)]
struct By {
    member: MemberId,
    /// The process itself; `None`: its pod's sidecar.
    session: Option<SessionId>,
    process: ProcessKey,
}

/// What a process that claims is told after the answer.
#[derive(Default)]
struct News {
    /// Ended buffers whose leases were restored.
    ending: BTreeSet<BufferId>,
    /// Buffers that became its own.
    owned: BTreeSet<BufferId>,
}

impl Registry {
    /// A sidecar offers what it keeps.
    pub(super) fn offered(
        &mut self,
        member: MemberId,
        token: u64,
        items: Vec<Result<Shown, Refusal>>,
        now: Instant,
    ) {
        let outcomes =
            items.into_iter().map(|item| item.and_then(|shown| self.offer_one(member, shown, now))).collect();
        self.effects.push(Effect::Offered(member, token, outcomes));
        self.settle_stirred_waits();
    }

    fn offer_one(&mut self, member: MemberId, shown: Shown, now: Instant) -> Result<(), Refusal> {
        let Shown { body, mut carrier } = shown;
        let by = By { member, session: None, process: body.process };
        let outcome = self.is_of_member(member, &body).and_then(|()| match body.subject {
            Subject::Buffer(receipt) => self.show_buffer(by, receipt, &mut carrier, now),
            Subject::Lease(_) => Err(not_ours("a buffer's", "a lease's")),
        });
        self.give_back(member, carrier);
        match outcome? {
            Reattached::Restored => Ok(()),
            Reattached::DescriptorWanted => {
                Err(Refusal::new(Code::DescriptorCount).compared_with("descriptor of a vmm buffer", 1, 0))
            }
        }
    }

    /// A process claims what it had.
    pub(super) fn reattach(
        &mut self,
        session: SessionId,
        request: RequestId,
        items: Vec<Result<Shown, Refusal>>,
        now: Instant,
    ) {
        let mut news = News::default();
        let outcomes = items
            .into_iter()
            .map(|item| item.and_then(|shown| self.claim_one(session, shown, &mut news, now)))
            .collect();
        self.reply(session, request, BrokerBody::Reattached(outcomes));
        for id in news.ending {
            self.tell_how_it_ends(session, id, now);
        }
        for id in news.owned {
            self.tell_seats(id, session);
        }
        self.settle_stirred_waits();
    }

    fn claim_one(
        &mut self,
        session: SessionId,
        shown: Shown,
        news: &mut News,
        now: Instant,
    ) -> Result<Reattached, Refusal> {
        let Shown { body, mut carrier } = shown;
        let Some(facts) = self.sessions.get(&session).map(|s| s.facts.clone()) else {
            return Err(Refusal::new(Code::ShuttingDown));
        };
        let by = By { member: facts.member, session: Some(session), process: body.process };
        let outcome = self
            .is_of_member(facts.member, &body)
            .and_then(|()| is_of_process(facts.process, body.process))
            .and_then(|()| match body.subject {
                Subject::Buffer(receipt) => {
                    let id = receipt.info.id;
                    let had = self.owns(session, id);
                    let outcome = self.show_buffer(by, receipt, &mut carrier, now);
                    // Who had it all along knows who sits where, however often it shows its receipt.
                    news.owned.extend((!had && self.owns(session, id)).then_some(id));
                    outcome
                }
                Subject::Lease(receipt) => self.claim_lease(session, &receipt, &mut news.ending, now),
            });
        self.give_back(facts.member, carrier);
        outcome
    }

    fn owns(&self, session: SessionId, id: BufferId) -> bool {
        self.buffers.get(&id).is_some_and(|b| b.owner == Some(session))
    }

    /// Memory that came along with a receipt and was of no use is closed where it was received.
    fn give_back(&mut self, member: MemberId, carrier: Option<Carrier>) {
        self.effects.extend(carrier.map(|carrier| Effect::Dispose(member, carrier)));
    }

    /// A pod's receipts are of no use to others.
    fn is_of_member(&self, member: MemberId, body: &ReceiptBody) -> Result<(), Refusal> {
        let Some(m) = self.members.get(&member) else { return Err(Refusal::new(Code::ShuttingDown)) };
        let own = (&m.facts.slot, &m.facts.uid);
        if own == (&body.slot, &body.pod_uid) {
            return Ok(());
        }
        let found = format!("slot {}, pod {}", own.0, own.1);
        let wanted = format!("slot {}, pod {}", body.slot, body.pod_uid);
        Err(Refusal::new(Code::NotOwner).compared_with("pod", wanted, found))
    }

    fn show_buffer(
        &mut self,
        by: By,
        receipt: BufferReceipt,
        carrier: &mut Option<Carrier>,
        now: Instant,
    ) -> Result<Reattached, Refusal> {
        let id = receipt.info.id;
        self.is_of_this_boot(id)?;
        if self.buffers.get(&id).is_some_and(|b| !b.is_awaited()) {
            return self.show_known_buffer(by, id);
        }
        let Some(alive) = self.expected.buffers.get(&id).copied() else {
            let reason = self.ended_of(id, &receipt.group).unwrap_or(EndReason::Other);
            return Err(retired(id, reason));
        };
        match (alive.retiring, by.session) {
            (Some((reason, _)), None) => Err(retired(id, reason)),
            (Some(_), Some(session)) => {
                self.restore_without_owner(&receipt.info, &receipt.group, alive, now);
                self.own(id, session);
                Ok(Reattached::Restored)
            }
            (None, _) => {
                if let Err(refusal) = self.may_still_publish(by.member, &receipt) {
                    self.forbid_buffer(&receipt, now);
                    return Err(refusal);
                }
                let legacy = receipt.legacy_handle.map(Carrier::Legacy);
                let Some(memory) = legacy.as_ref().or(carrier.as_ref()) else {
                    return Ok(Reattached::DescriptorWanted);
                };
                self.has_room_for(memory, self.descriptors)?;
                let Some(memory) = legacy.or_else(|| carrier.take()) else {
                    return Ok(Reattached::DescriptorWanted);
                };
                self.restore(by, receipt, memory, now);
                Ok(Reattached::Restored)
            }
        }
    }

    /// The receipt of a buffer that is there.
    fn show_known_buffer(&mut self, by: By, id: BufferId) -> Result<Reattached, Refusal> {
        let Some(buffer) = self.buffers.get(&id) else { return Err(retired(id, EndReason::Other)) };
        let ending = buffer.ending;
        if let (None, Some(reason)) = (ending, self.is_about_to_end(buffer)) {
            return Err(retired(id, reason));
        }
        let Some(session) = by.session else {
            // A sidecar need not keep what nobody will be given any more.
            return ending.map_or(Ok(Reattached::Restored), |e| Err(e.refusal(id)));
        };
        match buffer.owner {
            Some(owner) if owner == session => {}
            Some(owner) if !self.is_away(owner) => {
                let wanted = "one that its process holds no more";
                return Err(Refusal::new(Code::NotOwner).compared_with("connection", wanted, "another"));
            }
            _ => self.own(id, session),
        }
        Ok(Reattached::Restored)
    }

    /// Puts a live buffer back.
    fn restore(&mut self, by: By, receipt: BufferReceipt, carrier: Carrier, now: Instant) {
        let BufferReceipt { info, group, own_pid, .. } = receipt;
        let id = info.id;
        let owner = match by.session {
            None if !lasts(&info) => Some(self.holder(by.member, by.process, own_pid, now)),
            session => session,
        };
        self.place(&info, &group, by.member);
        self.adopt(id, by.member, &info);
        self.expected.buffer_settled(id);
        self.take_up(by.member, &carrier);
        if let Some(buffer) = self.buffers.get_mut(&id) {
            // A lease's receipt says less of the buffer than its own.
            buffer.info = Arc::clone(&info);
            buffer.carrier = Some(carrier);
            buffer.appeared = self.changing.next_to_appear();
        }
        self.make_last(by.member, &info, Some(Publisher { process: by.process, own_pid }));
        if let Some(owner) = owner {
            self.own(id, owner);
        }
        self.name(&group, &info);
        self.effects.push(Effect::Note(Note::Restored(Arc::clone(&info))));
        self.tell_watchers(id, &Event::Appeared(Arc::clone(&info)));
        self.waits.buffer_settled(id);
        if by.session.is_some() {
            self.keep(id, Purpose::Keep);
        }
        match &info.set {
            // A later version came before this one was back.
            Some(set) if self.is_superseded(&group, set, info.generation) => {
                self.end_buffer(id, EndReason::Superseded, None, now);
            }
            Some(set) => self.set_part_restored(&group, set, info.generation),
            None => self.settle_versions(by.member, &group, &info, now),
        }
    }

    /// A buffer that was known from a lease alone, before its pod was, is its pod's from now on.
    fn adopt(&mut self, id: BufferId, member: MemberId, info: &BufferInfo) {
        let Some(buffer) = self.buffers.get_mut(&id).filter(|b| b.member != member) else { return };
        let before = std::mem::replace(&mut buffer.member, member);
        self.uncharge(before, info);
        self.account(member, |usage| add_buffer(usage, &info.facts));
        self.make_last(member, info, None);
    }

    /// Puts a buffer back that nobody owns: one that is ending, or one that is known from a lease alone.
    fn restore_without_owner(
        &mut self,
        info: &Arc<BufferInfo>,
        group: &GroupKey,
        alive: AliveBuffer,
        now: Instant,
    ) {
        let id = info.id;
        let member = self.member_of(alive.member);
        self.place(info, group, member);
        let Some((reason, until)) = alive.retiring else { return };
        self.expected.buffer_settled(id);
        let until = until.and_then(|at| self.clock.instant(at)).filter(|at| *at > now);
        if let Some(buffer) = self.buffers.get_mut(&id) {
            buffer.ending = Some(Ending::new(reason, until));
        }
        if let Some(at) = until {
            self.deadlines.insert((at, id));
        }
        self.await_overstay(id, now);
    }

    /// Makes a buffer known, with the leases that are expected of it, unless it is.
    fn place(&mut self, info: &Arc<BufferInfo>, group: &GroupKey, member: MemberId) {
        let id = info.id;
        if self.buffers.contains_key(&id) {
            return;
        }
        if self.account(member, |usage| add_buffer(usage, &info.facts)) {
            self.expected.reserved.settle(id);
        }
        let leases = self.expected.leases_of.get(&id).cloned().unwrap_or_default();
        self.leases.extend(leases.iter().map(|lease| (*lease, id)));
        for lease in &leases {
            // Nobody else gets its seat, whenever it is claimed.
            if let Some(seat) = self.expected.leases.get(lease).and_then(|l| l.seat) {
                self.seat(id, *lease, seat);
            }
        }
        let count = super::ending::count(leases.len());
        let buffer = Buffer {
            info: Arc::clone(info),
            group: self.shared_group(member, group.clone()),
            owner: None,
            member,
            carrier: None,
            ending: None,
            leases: count,
            given: Given::default(),
            appeared: 0,
        };
        self.buffers.insert(id, Box::new(buffer));
        self.make_last(member, info, None);
    }

    fn claim_lease(
        &mut self,
        session: SessionId,
        receipt: &LeaseReceipt,
        told: &mut BTreeSet<BufferId>,
        now: Instant,
    ) -> Result<Reattached, Refusal> {
        let (lease, id) = (receipt.lease, receipt.buffer.id);
        if self.sessions.get(&session).is_some_and(|s| s.leases.contains(&lease)) {
            return Ok(Reattached::Restored);
        }
        let Some(alive) = self.expected.leases.get(&lease).filter(|l| l.buffer == id) else {
            return Err(self.no_such_lease(lease));
        };
        if alive.holder != self.session_tag(session) {
            return Err(self.no_such_lease(lease));
        }
        if let Err(refusal) = self.may_still_lease(session, receipt) {
            self.end_expected_lease(lease);
            return Err(refusal);
        }
        if !self.buffers.contains_key(&id) {
            let Some(expected) = self.expected.buffers.get(&id).copied() else {
                return Err(self.no_such_lease(lease));
            };
            self.restore_without_owner(&receipt.buffer, &receipt.group, expected, now);
        }
        self.expected.lease_settled(lease);
        self.hold(session, lease, id);
        if self.buffers.get(&id).is_some_and(|b| b.ending.is_some()) {
            told.insert(id);
        }
        Ok(Reattached::Restored)
    }

    fn hold(&mut self, session: SessionId, lease: LeaseId, id: BufferId) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        s.leases.insert(lease);
        let member = s.facts.member;
        self.account(member, |usage| usage.leases += 1);
        self.give(id, session);
    }

    fn no_such_lease(&self, lease: LeaseId) -> Refusal {
        let found = if self.leases.contains_key(&lease) { "held by another connection" } else { "ended" };
        Refusal::new(Code::NotLeased).compared_with("lease", format!("{lease} active"), found)
    }

    /// Tells a process that is back what it missed of a buffer that is ending.
    fn tell_how_it_ends(&mut self, session: SessionId, id: BufferId, now: Instant) {
        let Some(buffer) = self.buffers.get(&id) else { return };
        let Some(ending) = buffer.ending else { return };
        let leases = buffer.leases;
        let event = match (ending.until(), ending.reason()) {
            (Some(at), _) => Event::Retiring { id, deadline: at.saturating_duration_since(now) },
            // Its holders may keep it, and need not know.
            (None, EndReason::Superseded) => return,
            (None, reason) => Event::Orphaned { id, reason, leases },
        };
        self.reply(session, NOTICE, BrokerBody::Event(event));
    }
}

/// Rights belong to the process that had them.
fn is_of_process(own: ProcessKey, stated: ProcessKey) -> Result<(), Refusal> {
    if own == stated {
        return Ok(());
    }
    let text = |key: ProcessKey| format!("pid {} (started at tick {})", key.pid, key.started);
    Err(Refusal::new(Code::NotOwner).compared_with("process", text(stated), text(own)))
}

fn not_ours(wanted: &str, found: &str) -> Refusal {
    Refusal::new(Code::ReceiptInvalid).compared_with("receipt", wanted, found)
}
