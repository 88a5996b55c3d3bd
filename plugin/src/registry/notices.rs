//! Who is told of it: those that watch the group, the owner, and everybody who was given the buffer.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpu_handoff_protocol::message::{BrokerBody, Event, RequestId};
use gpu_handoff_protocol::{BufferId, BufferInfo, Code, Refusal};

use super::named::Named;
use super::sets::Versions;
use super::{Registry, SessionId};

/// The request number of what nobody asked for.
pub(super) const NOTICE: RequestId = 0;

impl Registry {
    pub(super) fn watch(&mut self, session: SessionId, request: RequestId) {
        if let Err(refusal) = self.may_watch(session).and_then(|()| self.open_request(session, request, 1)) {
            self.reply(session, request, BrokerBody::Refused(refusal));
            return;
        }
        let Some(group) = self.group_of(session).cloned() else { return };
        let Some(g) = self.groups.get_mut(&group) else { return };
        g.watchers.insert((session, request));
        let named = g.names.values().flat_map(Named::buffers);
        let mut live: Vec<BufferId> = named.chain(g.sets.values().flat_map(Versions::buffers)).collect();
        live.retain(|id| self.buffers.get(id).is_some_and(|buffer| self.sees(session, buffer)));
        live.sort_by_key(|id| self.buffers.get(id).map(|b| place(&b.info)));
        for id in live {
            if let Some(info) = self.buffers.get(&id).map(|b| Arc::clone(&b.info)) {
                self.reply(session, request, BrokerBody::Event(Event::Appeared(info)));
            }
        }
        self.reply(session, request, BrokerBody::Event(Event::SnapshotDone));
    }

    /// Each event of the group is told to each watch, so that there must not be many.
    fn may_watch(&self, session: SessionId) -> Result<(), Refusal> {
        let Some(group) = self.group_of(session).and_then(|g| self.groups.get(g)) else { return Ok(()) };
        let (first, last) = ((session, RequestId::MIN), (session, RequestId::MAX));
        let Some(party) = self.party_of(session) else { return Ok(()) };
        let (limit, open) =
            (self.policy.quota_of(&party).watches, group.watchers.range(first..=last).count() as u64);
        if open < limit {
            return Ok(());
        }
        let wanted = format!("at most {limit} of a connection");
        Err(Refusal::new(Code::TooManyRequests).compared_with("watches", wanted, open + 1))
    }

    /// Ends a watch; whether there was one.
    pub(super) fn unwatch(&mut self, session: SessionId, request: RequestId) -> bool {
        let Some(group) = self.group_of(session).cloned() else { return false };
        self.groups.get_mut(&group).is_some_and(|g| g.watchers.remove(&(session, request)))
    }

    /// Tells those that watch the buffer's group and may know of it.
    pub(super) fn tell_watchers(&mut self, id: BufferId, event: &Event) {
        let Some(buffer) = self.buffers.get(&id) else { return };
        let Some(group) = self.groups.get(&*buffer.group) else { return };
        let sees = |(session, _): &&(SessionId, RequestId)| self.sees(*session, buffer);
        let watchers: Vec<_> = group.watchers.iter().filter(sees).copied().collect();
        for (session, request) in watchers {
            self.reply(session, request, BrokerBody::Event(event.clone()));
        }
    }

    /// Tells watchers, the owner, and everybody who was ever given the buffer.
    pub(super) fn tell_all(&mut self, id: BufferId, event: &Event) {
        let Some(buffer) = self.buffers.get(&id) else { return };
        let told = buffer.given.iter().chain(buffer.owner);
        let concerned: BTreeSet<SessionId> = told.filter(|s| self.sessions.contains_key(s)).collect();
        for session in concerned {
            self.reply(session, NOTICE, BrokerBody::Event(event.clone()));
        }
        self.tell_watchers(id, event);
    }
}

/// Where a buffer stands among those that are there when a watch begins.
fn place(info: &BufferInfo) -> (u64, u32) {
    (info.generation, info.set.as_ref().map_or(0, |set| set.index))
}
