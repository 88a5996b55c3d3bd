//! Orders and seats: which words of its owner's timeline say that a buffer may be read, and that a lease's work is done.
//!
//! A lease of a buffer with an order has a seat, the lowest that is free, for as long as it is active. Its owner is told
//! who sits down and who gets up, and whether the word of the seat can still be expected to be written.

use std::collections::{BTreeMap, HashMap};

use gpu_handoff_protocol::message::{BrokerBody, Event, SeatEnd};
use gpu_handoff_protocol::{BufferFacts, BufferId, Code, Kind, LeaseId, Order, Refusal, Seat};

use super::ending::retired;
use super::notices::NOTICE;
use super::{Buffer, DrawnMap, Registry, SessionId};

/// Bytes of a timeline's word.
const WORD_BYTES: u64 = 8;

/// The seats that are taken, of every buffer with an order that is leased.
#[derive(Debug, Default)]
pub(super) struct Seating(DrawnMap<BufferId, Seats>);

#[derive(Debug, Default)]
struct Seats {
    taken: BTreeMap<Seat, LeaseId>,
    of: HashMap<LeaseId, Seat>,
}

impl Seats {
    /// The lowest free one.
    fn free(&self, order: &Order) -> Option<Seat> {
        let taken = self.taken.keys().zip(0..).take_while(|(seat, n)| seat.0 == *n).count();
        let lowest = u32::try_from(taken).ok()?;
        (lowest < order.seats).then_some(Seat(lowest))
    }
}

impl Registry {
    /// Whether an order names words of a live timeline of the session that publishes with it.
    pub(super) fn check_order(&self, session: SessionId, facts: &BufferFacts) -> Result<(), Refusal> {
        let Some(order) = &facts.order else { return Ok(()) };
        let words = self.own_timeline(session, order.timeline)?.info.facts.size / WORD_BYTES;
        let seats = order.first_seat_word..order.first_seat_word.saturating_add(order.seats);
        let last = u64::from(order.ready_word.max(seats.end.saturating_sub(1)));
        if last >= words {
            let wanted = format!("words below {words} of the timeline");
            return Err(Refusal::new(Code::SizeMismatch).compared_with(
                "order",
                wanted,
                format!("word {last}"),
            ));
        }
        if seats.contains(&order.ready_word) {
            let wanted = format!("a word for readiness outside the seats' {seats:?}");
            return Err(Refusal::new(Code::Malformed).compared_with("order", wanted, order.ready_word));
        }
        Ok(())
    }

    fn own_timeline(&self, session: SessionId, id: BufferId) -> Result<&Buffer, Refusal> {
        self.is_of_this_boot(id)?;
        let unknown = || Refusal::new(Code::NotFound).compared_with("timeline", id, "none such");
        let group = self.group_of(session).ok_or_else(unknown)?;
        let known = self.buffers.get(&id).filter(|b| self.sees(session, b));
        let Some(buffer) = known else {
            return Err(self.ended_of(id, group).map_or_else(unknown, |reason| retired(id, reason)));
        };
        if buffer.info.facts.kind != Kind::Timeline {
            let found = buffer.info.facts.kind.as_str();
            return Err(Refusal::new(Code::UnsupportedKind).compared_with("timeline", "timeline", found));
        }
        if buffer.owner != Some(session) {
            let wanted = "one that this process published over this connection";
            return Err(Refusal::new(Code::NotOwner).compared_with("timeline", wanted, "another's"));
        }
        match buffer.ending {
            Some(ending) => Err(ending.refusal(id)),
            None => Ok(&**buffer),
        }
    }

    /// Whether a lease of the buffer would find a seat, where it needs one.
    pub(super) fn has_seat(&self, id: BufferId) -> Result<(), Refusal> {
        self.free_seat(id).map(|_| ())
    }

    fn free_seat(&self, id: BufferId) -> Result<Option<Seat>, Refusal> {
        let order = self.buffers.get(&id).and_then(|b| b.info.facts.order.as_ref());
        let Some(order) = order else { return Ok(None) };
        let free = match self.seating.0.get(&id) {
            Some(seats) => seats.free(order),
            None => Seats::default().free(order),
        };
        free.map(Some).ok_or_else(|| {
            let wanted = format!("one free of {}", order.seats);
            Refusal::new(Code::NoSeat).compared_with("seat", wanted, "all taken")
        })
    }

    /// Gives a lease that is being granted its seat, and tells the buffer's owner.
    pub(super) fn sit(&mut self, id: BufferId, lease: LeaseId) -> Result<Option<Seat>, Refusal> {
        let seat = self.free_seat(id)?;
        if let Some(seat) = seat {
            self.seat(id, lease, seat);
            self.tell_owner(id, Event::Seated { id, seat });
        }
        Ok(seat)
    }

    /// The seat of a lease.
    pub(super) fn seat_of(&self, id: BufferId, lease: LeaseId) -> Option<Seat> {
        self.seating.0.get(&id)?.of.get(&lease).copied()
    }

    pub(super) fn seat(&mut self, id: BufferId, lease: LeaseId, seat: Seat) {
        let seats = self.seating.0.entry(id).or_default();
        seats.taken.insert(seat, lease);
        seats.of.insert(lease, seat);
    }

    /// A lease ends: its seat is free, and the buffer's owner is told how.
    pub(super) fn get_up(&mut self, id: BufferId, lease: LeaseId, how: SeatEnd) {
        let Some(seats) = self.seating.0.get_mut(&id) else { return };
        let Some(seat) = seats.of.remove(&lease) else { return };
        seats.taken.remove(&seat);
        if seats.of.is_empty() {
            self.seating.0.remove(&id);
        }
        self.tell_owner(id, Event::Unseated { id, seat, how });
    }

    /// Tells an owner who has come back who sits where: what happened while it was away it did not hear of.
    pub(super) fn tell_seats(&mut self, id: BufferId, owner: SessionId) {
        let Some(buffer) = self.buffers.get(&id).filter(|b| b.owner == Some(owner)) else { return };
        let Some(order) = buffer.info.facts.order else { return };
        for seat in (0..order.seats).map(Seat) {
            let taken = self.seating.0.get(&id).is_some_and(|seats| seats.taken.contains_key(&seat));
            let how = SeatEnd::Died;
            let event = if taken { Event::Seated { id, seat } } else { Event::Unseated { id, seat, how } };
            self.reply(owner, NOTICE, BrokerBody::Event(event));
        }
    }

    fn tell_owner(&mut self, id: BufferId, event: Event) {
        let Some(owner) = self.buffers.get(&id).and_then(|b| b.owner) else { return };
        if self.sessions.contains_key(&owner) {
            self.reply(owner, NOTICE, BrokerBody::Event(event));
        }
    }

    /// Every taken seat, for the tests' checks.
    #[cfg(test)]
    pub(super) fn seated(&self) -> impl Iterator<Item = (BufferId, Seat, LeaseId)> + '_ {
        self.seating.0.iter().flat_map(|(id, seats)| {
            assert_eq!(seats.taken.len(), seats.of.len());
            seats.taken.iter().map(|(seat, lease)| (*id, *seat, *lease))
        })
    }
}
