//! A lease is given, waited for, given back.

use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerBody, Grant, RequestId, SeatEnd, Target, Wanted};
use gpu_handoff_protocol::{BufferId, BufferName, Code, GroupKey, Kind, LeaseId, Refusal};

use super::holders::NOBODY;
use super::named::Named;
use super::records::name_tag;
use super::{Buffer, Effect, Importer, MemberId, Note, Registry, SessionId};
use crate::journal::Tag;
use crate::limits;

mod waits;

pub(super) use waits::Waits;
use waits::{Key, Waiting};

pub(super) fn names(items: &[Wanted]) -> impl Iterator<Item = &BufferName> {
    items.iter().filter_map(|i| match &i.target {
        Target::Name(name) => Some(name),
        Target::Id(_) => None,
    })
}

/// What a wanted buffer comes to.
enum Found {
    Here(BufferId),
    NotYet,
    /// Alive before the daemon was restarted, or before the policy became another one, and soon there again or known to be over.
    Restoring,
    Refused(Refusal),
}

impl Registry {
    pub(super) fn acquire(
        &mut self,
        importer: Importer,
        request: RequestId,
        items: Vec<Wanted>,
        until: Option<Instant>,
        now: Instant,
    ) {
        let Importer { session, device } = importer;
        self.unname_leaving_of(session, &items);
        let (missing, restoring) = self.lacks(session, &items);
        if !(restoring || missing && until.is_some()) {
            self.settle(importer, request, &items, Code::NotFound);
            return;
        }
        if let Err(refusal) = self.open_request(session, request, items.len() as u64) {
            self.reply(session, request, BrokerBody::Refused(refusal));
            return;
        }
        let Some(group) = self.group_of(session).cloned() else { return };
        let for_missing = until.is_some();
        let until = until.unwrap_or(now + limits::RESTORING_PATIENCE);
        let waiting = Waiting { group, items, until, for_missing, device };
        let hears = self.sessions.get(&session).is_some_and(|s| s.facts.hears_announcements);
        self.waits.add((session, request), waiting, restoring, hears);
    }

    /// Whether any of these is missing, and whether any is being restored.
    fn lacks(&self, session: SessionId, items: &[Wanted]) -> (bool, bool) {
        let mut lacks = (false, false);
        for item in items {
            match self.find(session, item) {
                Found::NotYet => lacks.0 = true,
                Found::Restoring => lacks.1 = true,
                Found::Here(_) | Found::Refused(_) => {}
            }
        }
        lacks
    }

    /// Answers an acquire with what is there now; what is not there is refused with `missing`.
    fn settle(&mut self, importer: Importer, request: RequestId, items: &[Wanted], missing: Code) {
        let outcomes = items.iter().map(|item| self.acquire_one(importer, item, missing)).collect();
        self.reply(importer.session, request, BrokerBody::Acquired(outcomes));
    }

    fn acquire_one(&mut self, importer: Importer, item: &Wanted, missing: Code) -> Result<Grant, Refusal> {
        match self.find(importer.session, item) {
            Found::Here(id) => self.grant(importer, id),
            Found::NotYet | Found::Restoring => Err(self.not_there(importer.session, item, missing)),
            Found::Refused(refusal) => Err(refusal),
        }
    }

    fn find(&self, session: SessionId, item: &Wanted) -> Found {
        let Some(group) = self.group_of(session) else {
            return Found::Refused(Refusal::new(Code::ShuttingDown));
        };
        match &item.target {
            Target::Id(id) => self.find_by_id(session, group, *id),
            Target::Name(name) => {
                let newest = self.groups.get(group).and_then(|g| g.names.get(name)).map(Named::newest);
                let newest = newest.and_then(|id| self.buffers.get(&id)).filter(|b| self.sees(session, b));
                let known = newest.map_or(0, |b| b.info.generation).max(item.newer_than);
                if !self.expected.is_over() && self.expects_newer(group, name_tag(name), known) {
                    return Found::Restoring;
                }
                match newest {
                    Some(buffer) if buffer.info.generation > item.newer_than && self.is_undecided(buffer) => {
                        Found::Restoring
                    }
                    Some(buffer) if buffer.info.generation > item.newer_than => Found::Here(buffer.info.id),
                    _ => Found::NotYet,
                }
            }
        }
    }

    fn find_by_id(&self, session: SessionId, group: &GroupKey, id: BufferId) -> Found {
        if let Err(refusal) = self.is_of_this_boot(id) {
            return Found::Refused(refusal);
        }
        if let Some(expected) = self.find_expected(session, id, group) {
            return expected;
        }
        // Another tenant's buffer reads exactly like one that does not exist.
        let known = self.buffers.get(&id).filter(|b| self.sees(session, b));
        if known.is_some_and(|b| b.ending.is_none() && self.is_undecided(b)) {
            return Found::Restoring;
        }
        match (known.map(|b| b.ending), self.ended_of(id, group)) {
            (Some(None), _) => Found::Here(id),
            (Some(Some(ending)), _) => Found::Refused(ending.refusal(id)),
            (None, Some(reason)) => Found::Refused(super::ending::retired(id, reason)),
            (None, None) => {
                let item = Wanted { target: Target::Id(id), newer_than: 0 };
                Found::Refused(self.not_there(session, &item, Code::NotFound))
            }
        }
    }

    /// Whether a version of a name above this one is being restored.
    pub(super) fn expects_newer(&self, group: &GroupKey, name: Tag, known: u64) -> bool {
        if self.expected.is_over() {
            return false;
        }
        let newest = self.expected.newest(Tag::of_group(group), name);
        newest.is_some_and(|(generation, _)| generation > known)
    }

    /// A buffer that is being restored, or whose end is known though it was not.
    fn find_expected(&self, session: SessionId, id: BufferId, group: &GroupKey) -> Option<Found> {
        let alive = self.expected.buffers.get(&id)?;
        // As with buffers that are there: another tenant's reads like one that does not exist.
        let sees = match self.member_of(alive.member) {
            NOBODY => alive.group == Tag::of_group(group) && self.party_of(session)?.is_at_home(),
            owner => self.sees_member(session, owner),
        };
        if !sees {
            return None;
        }
        Some(match alive.retiring {
            Some((reason, _)) => Found::Refused(super::ending::retired(id, reason)),
            None => Found::Restoring,
        })
    }

    /// The refusal for what is not there; it says where was looked, and reveals nothing else.
    fn not_there(&self, session: SessionId, item: &Wanted, code: Code) -> Refusal {
        let wanted = match &item.target {
            Target::Id(id) => id.to_string(),
            Target::Name(name) if item.newer_than > 0 => {
                format!("{name} newer than generation {}", item.newer_than)
            }
            Target::Name(name) => name.to_string(),
        };
        let group = self.group_of(session).map_or_else(String::new, ToString::to_string);
        Refusal::new(code).compared_with("buffer", wanted, format!("none such in group {group}"))
    }

    pub(super) fn grant(&mut self, importer: Importer, id: BufferId) -> Result<Grant, Refusal> {
        let session = importer.session;
        let (member, rewrite_pid_word) = self.may_import(importer, id)?;
        let carrier = self.buffers.get(&id).and_then(|b| b.carrier.clone());
        let carrier = carrier.ok_or_else(|| Refusal::new(Code::Retired))?;
        let lease = self.draw_lease();
        let seat = self.sit(id, lease)?;
        let (Some(buffer), Some(s)) = (self.buffers.get_mut(&id), self.sessions.get_mut(&session)) else {
            return Err(Refusal::new(Code::NotFound));
        };
        buffer.leases += 1;
        s.leases.insert(lease);
        let (info, process) = (Arc::clone(&buffer.info), s.facts.process);
        self.give(id, session);
        self.leases.insert(lease, id);
        self.record_leased(lease, id, member, process);
        self.account(member, |usage| usage.leases += 1);
        self.effects.push(Effect::Note(Note::Leased(lease, id, session)));
        Ok(Grant { lease, buffer: info, carrier, rewrite_pid_word, receipt: None, seat })
    }

    /// Whether the session's pod can and may import the buffer, and whether its handle must be cured first.
    pub(super) fn may_import(&self, importer: Importer, id: BufferId) -> Result<(MemberId, bool), Refusal> {
        let gone = || Refusal::new(Code::NotFound);
        let (s, buffer) =
            (self.sessions.get(&importer.session).ok_or_else(gone)?, self.buffers.get(&id).ok_or_else(gone)?);
        let member = self.members.get(&s.facts.member).ok_or_else(gone)?;
        if let Some(reason) = self.is_about_to_end(buffer) {
            return Err(super::ending::retired(id, reason));
        }
        if self.is_undecided(buffer) || !self.sees(importer.session, buffer) {
            return Err(gone());
        }
        self.policy.may_lease(&member.facts.party(), &self.held_by(member), 1)?;
        self.check_reach(member, &s.facts, importer.device, buffer.info.facts.device)?;
        let rewrite = buffer.info.facts.kind == Kind::Legacy && self.collides(s.facts.own_pid, buffer)?;
        Ok((s.facts.member, rewrite))
    }

    /// Whether importer and exporter have equal process numbers, which the driver takes for one process.
    fn collides(&self, own_pid: u32, buffer: &Buffer) -> Result<bool, Refusal> {
        let exporter = buffer.owner.and_then(|o| self.sessions.get(&o)).map(|o| o.facts.own_pid);
        if exporter != Some(own_pid) {
            return Ok(false);
        }
        if self.pid_word_proven {
            return Ok(true);
        }
        let refusal = Refusal::new(Code::PidCollision);
        Err(refusal.compared_with("process number", format!("other than the exporter's, {own_pid}"), own_pid))
    }

    pub(super) fn release(&mut self, session: SessionId, request: RequestId, leases: &[LeaseId]) {
        let outcomes = leases.iter().map(|lease| self.release_one(session, *lease)).collect();
        self.reply(session, request, BrokerBody::Released(outcomes));
    }

    pub(super) fn release_one(&mut self, session: SessionId, lease: LeaseId) -> Result<(), Refusal> {
        let refused =
            || Refusal::new(Code::NotLeased).compared_with("lease", "an active one of this process", lease);
        let s = self.sessions.get_mut(&session).ok_or_else(refused)?;
        if !s.leases.remove(&lease) {
            return Err(refused());
        }
        let member = s.facts.member;
        self.end_lease(lease, member, SeatEnd::Released);
        Ok(())
    }

    /// Ends a wait (answered `WAIT_TIMEOUT`) or a watch.
    pub(super) fn cancel(&mut self, session: SessionId, target: RequestId) {
        let key = (session, target);
        let waited = self.end_wait(key, Code::WaitTimeout) || self.end_set_wait(key, Code::WaitTimeout);
        if !waited && self.unwatch(session, target) {
            self.close_request(session, target);
            self.reply(session, target, BrokerBody::Cancelled);
        }
    }

    /// Tells those that wait for these names that they are about to be published.
    pub(super) fn announce(&mut self, session: SessionId, names: &[BufferName]) {
        let Some(group) = self.group_of(session).cloned() else { return };
        let publisher = self.sessions.get(&session).map(|s| s.facts.member);
        for name in names {
            for (waiter, request) in self.waits.announce(&group, name) {
                if !publisher.is_some_and(|publisher| self.sees_member(waiter, publisher)) {
                    continue;
                }
                self.reply(waiter, request, BrokerBody::Announced);
            }
        }
    }

    /// Looks again at those that wait for something which has been stirred, sets included.
    pub(super) fn settle_stirred_waits(&mut self) {
        for key in self.waits.take_stirred() {
            if self.any_is_leaving() {
                let items = self.waits.waiting.get(&key).map(|waiting| waiting.items.clone());
                self.unname_leaving_of(key.0, &items.unwrap_or_default());
            }
            let Some(waiting) = self.waits.waiting.get(&key) else { continue };
            let (for_missing, (missing, restoring)) =
                (waiting.for_missing, self.lacks(key.0, &waiting.items));
            if restoring {
                self.waits.waiters.waits_for_restoring(key);
            } else if !(missing && for_missing) {
                self.end_wait(key, Code::NotFound);
            }
        }
        self.settle_stirred_set_waits();
    }

    /// Those that wait for nothing, for the tests' checks.
    #[cfg(test)]
    pub(super) fn forgotten(&self) -> Vec<Key> {
        let waits_for = |(key, waiting): &(&Key, &Waiting)| {
            let (missing, restoring) = self.lacks(key.0, &waiting.items);
            restoring || missing && waiting.for_missing
        };
        let forgotten = self.waits.waiting.iter().filter(|one| !waits_for(one)).map(|(key, _)| *key);
        forgotten.chain(self.forgotten_set_waits()).collect()
    }

    pub(super) fn expire_waits(&mut self, now: Instant) {
        while let Some(key) = self.waits.expired(now) {
            self.end_wait(key, Code::WaitTimeout);
        }
    }

    /// Ends a wait; whether there was one.
    fn end_wait(&mut self, key: Key, missing: Code) -> bool {
        let (session, request) = key;
        let Some(waiting) = self.waits.remove(key) else { return false };
        self.close_request(session, request);
        self.unname_leaving_of(session, &waiting.items);
        let importer = Importer { session, device: waiting.device };
        self.settle(importer, request, &waiting.items, missing);
        true
    }
}
