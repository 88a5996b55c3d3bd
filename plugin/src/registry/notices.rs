//! Who is told of it: those that watch the group, the owner, and everybody who was given the buffer.

use std::collections::BTreeSet;

use gpu_handoff_protocol::BufferId;
use gpu_handoff_protocol::message::{BrokerBody, Event, RequestId};

use super::{Registry, SessionId};

/// The request number of what nobody asked for.
pub(super) const NOTICE: RequestId = 0;

impl Registry {
    /// Tells those that watch the buffer's group and may know of it.
    pub(super) fn tell_watchers(&mut self, id: BufferId, event: &Event) {
        let Some(buffer) = self.buffers.get(&id) else { return };
        let Some(group) = self.groups.get(&*buffer.group) else { return };
        let sees = |watch: &&(SessionId, RequestId)| self.is_seen_by(**watch, buffer);
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
