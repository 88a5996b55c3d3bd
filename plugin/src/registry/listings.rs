//! A watch begins: with a listing of all that its group has, which is much work where that is much. So each member has a
//! pace, of so many buffers a second; a watch that would pass it begins later, and is told of nothing before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerBody, Event, RequestId};
use gpu_handoff_protocol::{BufferId, BufferInfo, Code, Refusal};

use super::{Registry, SessionId};
use crate::limits;

type Key = (SessionId, RequestId);

/// Watches that have not begun.
#[derive(Debug, Default)]
pub(super) struct Listings {
    later: BTreeMap<Key, Instant>,
    by_time: BTreeSet<(Instant, Key)>,
}

impl Listings {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn add(&mut self, key: Key, at: Instant) {
        self.later.insert(key, at);
        self.by_time.insert((at, key));
    }

    /// Takes one out; whether it was there.
    fn remove(&mut self, key: Key) -> bool {
        let at = self.later.remove(&key);
        at.is_some_and(|at| self.by_time.remove(&(at, key)))
    }

    fn of(&self, session: SessionId) -> impl Iterator<Item = Key> + '_ {
        self.later.range((session, RequestId::MIN)..=(session, RequestId::MAX)).map(|(key, _)| *key)
    }

    /// Forgets those of a session.
    pub(super) fn forget(&mut self, session: SessionId) {
        for key in self.of(session).collect::<Vec<_>>() {
            self.remove(key);
        }
    }

    fn take_due(&mut self, now: Instant) -> Option<Key> {
        let (_, key) = self.by_time.first().filter(|(at, _)| *at <= now).copied()?;
        self.remove(key);
        Some(key)
    }
}

impl Registry {
    pub(super) fn watch(&mut self, session: SessionId, request: RequestId, now: Instant) {
        if let Err(refusal) = self.may_watch(session).and_then(|()| self.open_request(session, request, 1)) {
            self.reply(session, request, BrokerBody::Refused(refusal));
            return;
        }
        self.begin_watch((session, request), now);
    }

    /// Begins a watch whose time has come: one at a time, so that others get in between.
    pub(super) fn begin_due_watch(&mut self, now: Instant) {
        if let Some(key) = self.listings.take_due(now) {
            self.begin_watch(key, now);
        }
    }

    /// Begins a watch, now or when its member's pace allows it.
    fn begin_watch(&mut self, key: Key, now: Instant) {
        let Some(member) = self.sessions.get(&key.0).map(|s| s.facts.member) else { return };
        let lists_from = self.members.get(&member).and_then(|m| m.lists_from).unwrap_or(now).max(now);
        let at = lists_from.checked_sub(limits::LISTINGS_AHEAD).unwrap_or(now);
        if at > now {
            self.listings.add(key, at);
            return;
        }
        let listed = self.list(key);
        if let Some(m) = self.members.get_mut(&member) {
            m.lists_from = Some(lists_from + limits::LISTING_PAUSE.saturating_mul(listed));
        }
    }

    /// Tells a watch of all that its group has, oldest first, and of what happens from now on. Gives how many buffers it was.
    fn list(&mut self, (session, request): Key) -> u32 {
        let Some(group) = self.group_of(session).cloned() else { return 0 };
        let Some(g) = self.groups.get_mut(&group) else { return 0 };
        g.watchers.insert((session, request));
        let mut live: Vec<BufferId> = g.buffers().collect();
        // What is not shown is work, too.
        let listed = super::ending::count(live.len());
        live.retain(|id| self.buffers.get(id).is_some_and(|buffer| self.sees(session, buffer)));
        live.sort_by_cached_key(|id| self.buffers.get(id).map(|b| place(&b.info)));
        for id in live {
            if let Some(info) = self.buffers.get(&id).map(|b| Arc::clone(&b.info)) {
                self.reply(session, request, BrokerBody::Event(Event::Appeared(info)));
            }
        }
        self.reply(session, request, BrokerBody::Event(Event::SnapshotDone));
        listed
    }

    /// Each event of the group is told to each watch, so that there must not be many.
    fn may_watch(&self, session: SessionId) -> Result<(), Refusal> {
        let Some(group) = self.group_of(session).and_then(|g| self.groups.get(g)) else { return Ok(()) };
        let begun = group.watchers.range((session, RequestId::MIN)..=(session, RequestId::MAX)).count();
        let open = (begun + self.listings.of(session).count()) as u64;
        let Some(party) = self.party_of(session) else { return Ok(()) };
        let limit = self.policy.quota_of(&party).watches;
        if open < limit {
            return Ok(());
        }
        let wanted = format!("at most {limit} of a connection");
        Err(Refusal::new(Code::TooManyRequests).compared_with("watches", wanted, open + 1))
    }

    /// Ends a watch; whether there was one.
    pub(super) fn unwatch(&mut self, session: SessionId, request: RequestId) -> bool {
        if self.listings.remove((session, request)) {
            return true;
        }
        self.changing.forget((session, request));
        let Some(group) = self.group_of(session).cloned() else { return false };
        self.groups.get_mut(&group).is_some_and(|g| g.watchers.remove(&(session, request)))
    }
}

/// Where a buffer stands among those that are there when a watch begins.
fn place(info: &BufferInfo) -> (u64, u32) {
    (info.generation, info.set.as_ref().map_or(0, |set| set.index))
}
