//! What waits to be sent to one process: packets in order, bounded, and a watch's events never without a gap unsaid.

use std::collections::{HashSet, VecDeque};

use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::message::RequestId;

/// Packets that the peer's queue had no room for.
#[derive(Debug)]
pub(super) struct Outbox {
    packets: VecDeque<Outgoing>,
    limit: usize,
    overflown: HashSet<RequestId>,
}

/// What became of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Queued {
    /// It waits.
    Yes,
    /// There is no room, and it must not be lost: the connection has to end.
    NoRoom,
    /// There is no room for a watch's event: the watch has to end, and this is the first that was lost.
    WatchOverflow,
    /// An event of a watch that overflowed before.
    Dropped,
}

impl Outbox {
    pub(super) fn new(limit: usize) -> Self {
        Self { packets: VecDeque::new(), limit, overflown: HashSet::new() }
    }

    /// Queues a packet; `watch` is the watch's request where it is an event of one. Half of the room is for events.
    pub(super) fn push(&mut self, packet: Outgoing, watch: Option<RequestId>) -> Queued {
        match watch {
            Some(request) if self.overflown.contains(&request) => return Queued::Dropped,
            Some(request) if self.packets.len() >= self.limit / 2 => {
                self.overflown.insert(request);
                return Queued::WatchOverflow;
            }
            _ if self.packets.len() >= self.limit => return Queued::NoRoom,
            _ => {}
        }
        self.packets.push_back(packet);
        Queued::Yes
    }

    pub(super) fn first(&self) -> Option<&Outgoing> {
        self.packets.front()
    }

    pub(super) fn first_is_sent(&mut self) {
        self.packets.pop_front();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The watch has been ended on both sides: its number may be used again.
    pub(super) fn watch_ended(&mut self, request: RequestId) {
        self.overflown.remove(&request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_overflows_before_answers_have_no_room() {
        let mut outbox = Outbox::new(4);
        let packet = Outgoing::default;
        assert_eq!(outbox.push(packet(), Some(9)), Queued::Yes);
        assert_eq!(outbox.push(packet(), Some(9)), Queued::Yes);
        assert_eq!(outbox.push(packet(), Some(9)), Queued::WatchOverflow);
        assert_eq!(outbox.push(packet(), Some(9)), Queued::Dropped);
        assert_eq!(outbox.push(packet(), None), Queued::Yes);
        assert_eq!(outbox.push(packet(), None), Queued::Yes);
        assert_eq!(outbox.push(packet(), None), Queued::NoRoom);
        while outbox.first().is_some() {
            outbox.first_is_sent();
        }
        assert!(outbox.is_empty());
        outbox.watch_ended(9);
        assert_eq!(outbox.push(packet(), Some(9)), Queued::Yes);
    }
}
