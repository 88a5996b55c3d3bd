//! Who was ever given a buffer, and is to be told how it ends.

use gpu_handoff_protocol::BufferId;

use super::{Registry, SessionId};

/// Sessions in order, none twice. Those that have ended may still be among them, as nobody looks for them when they end;
/// but they are left out when the room is used up, so there is room for twice as many as there are sessions at most.
#[derive(Debug, Default)]
pub(super) struct Given(Vec<SessionId>);

impl Given {
    /// Adds one. Where that needs more room, those go first that are not there any more.
    fn add(&mut self, session: SessionId, is_there: impl Fn(&SessionId) -> bool) {
        if self.0.binary_search(&session).is_ok() {
            return;
        }
        if self.0.len() == self.0.capacity() {
            self.0.retain(is_there);
            // Room for one at first, then for twice as many.
            self.0.reserve_exact(self.0.len().max(1));
        }
        let place = self.0.partition_point(|known| *known < session);
        self.0.insert(place, session);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.0.iter().copied()
    }
}

impl Registry {
    /// A buffer's memory is sent to a session.
    pub(super) fn give(&mut self, id: BufferId, session: SessionId) {
        if let Some(buffer) = self.buffers.get_mut(&id) {
            buffer.given.add(session, |known| self.sessions.contains_key(known));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_have_ended_take_no_room_for_long() {
        let mut given = Given::default();
        for n in 0..1_000 {
            let is_there = |s: &SessionId| s.0 + 4 > n;
            given.add(SessionId(n), is_there);
            given.add(SessionId(n), is_there);
            assert!(given.iter().filter(is_there).eq((n.saturating_sub(3)..=n).map(SessionId)));
            assert!(given.0.capacity() <= 8, "room for {}", given.0.capacity());
        }
    }
}
