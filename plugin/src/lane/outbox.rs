//! What waits to be sent to one process: packets in order, bounded, and a watch's events never without a gap unsaid.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::message::RequestId;

use crate::limits;

/// What waits in several outboxes together.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally(Rc<Cell<Load>>);

/// What waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Load {
    bytes: usize,
    descriptors: usize,
}

impl Tally {
    /// Descriptors that wait.
    pub(super) fn descriptors(&self) -> usize {
        self.0.get().descriptors
    }
}

/// Packets that the peer's queue had no room for.
#[derive(Debug)]
pub(super) struct Outbox {
    packets: VecDeque<Outgoing>,
    load: Load,
    of_member: Tally,
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
    pub(super) fn new(of_member: &Tally) -> Self {
        Self {
            packets: VecDeque::new(),
            load: Load::default(),
            of_member: of_member.clone(),
            overflown: HashSet::new(),
        }
    }

    /// Queues a packet; `watch` is the watch's request where it is an event of one. Half of the room is for events.
    pub(super) fn push(&mut self, packet: Outgoing, watch: Option<RequestId>) -> Queued {
        let bytes = cost(&packet);
        match watch {
            Some(request) if self.overflown.contains(&request) => return Queued::Dropped,
            Some(request) if !self.has_room(bytes, 2) => {
                self.overflown.insert(request);
                return Queued::WatchOverflow;
            }
            _ if !self.has_room(bytes, 1) => return Queued::NoRoom,
            _ => {}
        }
        let Load { bytes: before, descriptors } = self.load;
        self.count(Load { bytes: before + bytes, descriptors: descriptors + packet.descriptors.len() });
        self.packets.push_back(packet);
        Queued::Yes
    }

    /// Whether so much more fits into this part of the room.
    fn has_room(&self, bytes: usize, part: usize) -> bool {
        self.load.bytes + bytes <= limits::OUTBOX_BYTES / part
            && self.of_member.0.get().bytes + bytes <= limits::OUTBOXES_BYTES / part
    }

    fn count(&mut self, now: Load) {
        let all = self.of_member.0.get();
        self.of_member.0.set(Load {
            bytes: all.bytes - self.load.bytes + now.bytes,
            descriptors: all.descriptors - self.load.descriptors + now.descriptors,
        });
        self.load = now;
    }

    pub(super) fn first(&self) -> Option<&Outgoing> {
        self.packets.front()
    }

    pub(super) fn first_is_sent(&mut self) {
        if let Some(packet) = self.packets.pop_front() {
            let Load { bytes, descriptors } = self.load;
            self.count(Load {
                bytes: bytes - cost(&packet),
                descriptors: descriptors - packet.descriptors.len(),
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The watch has been ended on both sides: its number may be used again.
    pub(super) fn watch_ended(&mut self, request: RequestId) {
        self.overflown.remove(&request);
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.count(Load::default());
    }
}

/// What a packet takes while it waits.
fn cost(packet: &Outgoing) -> usize {
    packet.bytes.capacity()
        + packet.descriptors.len() * limits::WAITING_DESCRIPTOR_BYTES
        + limits::WAITING_PACKET_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet that takes up to a given part of an outbox.
    fn packet(part: usize) -> Outgoing {
        let bytes = limits::OUTBOX_BYTES / part - limits::WAITING_PACKET_BYTES;
        Outgoing { bytes: Vec::with_capacity(bytes), descriptors: Vec::new() }
    }

    #[test]
    fn a_watch_overflows_before_answers_have_no_room() {
        let mut outbox = Outbox::new(&Tally::default());
        assert_eq!(outbox.push(packet(4), Some(9)), Queued::Yes);
        assert_eq!(outbox.push(packet(4), Some(9)), Queued::Yes);
        assert_eq!(outbox.push(packet(4), Some(9)), Queued::WatchOverflow);
        assert_eq!(outbox.push(packet(4), Some(9)), Queued::Dropped);
        assert_eq!(outbox.push(packet(4), None), Queued::Yes);
        assert_eq!(outbox.push(packet(4), None), Queued::Yes);
        assert_eq!(outbox.push(packet(4), None), Queued::NoRoom);
        while outbox.first().is_some() {
            outbox.first_is_sent();
        }
        assert!(outbox.is_empty());
        outbox.watch_ended(9);
        assert_eq!(outbox.push(packet(4), Some(9)), Queued::Yes);
    }

    #[test]
    fn the_processes_of_a_member_share_a_limit() {
        let of_member = Tally::default();
        let mut outboxes: Vec<Outbox> = (0..3).map(|_| Outbox::new(&of_member)).collect();
        assert_eq!(outboxes[0].push(packet(1), None), Queued::Yes);
        assert_eq!(outboxes[1].push(packet(1), None), Queued::Yes);
        assert_eq!(outboxes[2].push(packet(2), None), Queued::NoRoom);
        outboxes.remove(0);
        assert_eq!(outboxes[1].push(packet(2), None), Queued::Yes);
        outboxes.clear();
        assert_eq!(of_member.0.get(), Load::default());
    }
}
