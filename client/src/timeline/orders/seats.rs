//! Seats of buffers that this process published with an order: who sits there, who waits until they have got up, and when
//! their words are free again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;

use gpu_handoff_protocol::message::SeatEnd;
use gpu_handoff_protocol::{BufferId, Order, Seat};

use super::super::line::{Line, has_reached};
use super::{Orders, State, Task};
use crate::limits;

/// How a seat has been used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seating {
    /// Somebody sits there.
    pub(crate) taken: bool,
    /// How many have, so far.
    pub(crate) turns: u64,
    /// Somebody got up whose word has not been dealt with yet: nobody else may be reckoned with before.
    pub(super) leaving: bool,
    /// Until when a holder that died may still write the seat's word.
    pub(super) haunted: Option<Instant>,
}

impl Seating {
    /// Whether nobody but its present holder writes the seat's word.
    pub(crate) fn is_clean(&self) -> bool {
        !self.leaving && self.haunted.is_none_or(|until| until <= Instant::now())
    }
}

/// A stream that waits until all of these have got up.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) until_up: BTreeSet<Seat>,
    pub(super) word: u32,
    pub(super) value: u64,
}

/// What is known of a buffer that this process published with an order.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) order: Option<(Weak<Line>, Order)>,
    pub(super) seats: BTreeMap<Seat, Seating>,
    pub(super) gates: Vec<Gate>,
}

impl Own {
    pub(super) fn sit_down(&mut self, seat: Seat) {
        let seating = self.seats.entry(seat).or_default();
        // Told again where another daemon has taken over.
        seating.turns += u64::from(!seating.taken);
        seating.taken = true;
    }

    /// Until when its words are good for nothing else: a holder that died may still write its own.
    pub(super) fn rests_until(&self) -> Instant {
        self.seats.values().filter_map(|seating| seating.haunted).max().unwrap_or_else(Instant::now)
    }
}

impl Orders {
    /// A buffer was published with an order. What was heard of its seats before is remembered.
    pub(crate) fn add_order(&self, id: BufferId, line: &Arc<Line>, order: Order) {
        let mut state = self.lock();
        let own = state.own.entry(id).or_default();
        own.order = Some((Arc::downgrade(line), order));
        // Who got up before the order was known here.
        let up = own.seats.iter_mut().filter(|(_, seating)| !seating.taken);
        let words = up.filter_map(|(seat, seating)| {
            seating.leaving = true;
            Some((*seat, order.seat_word(*seat)?))
        });
        for (seat, word) in words.collect::<Vec<_>>() {
            state.push(Task::EndWord(Arc::downgrade(line), word, id, seat));
        }
        self.bell.notify_one();
    }

    /// The seats of a buffer of this process that were ever taken.
    pub(crate) fn seats(&self, id: BufferId) -> BTreeMap<Seat, Seating> {
        self.lock().own.get(&id).map(|own| own.seats.clone()).unwrap_or_default()
    }

    /// Has a word written once nobody sits on these seats any more; at once if that is so.
    pub(crate) fn open_when_up(
        &self,
        id: BufferId,
        line: &Arc<Line>,
        seats: BTreeSet<Seat>,
        word: u32,
        value: u64,
    ) {
        let mut state = self.lock();
        let is_taken = |own: &Own, seat: &Seat| own.seats.get(seat).is_some_and(|s| s.taken);
        let own = state.own.get_mut(&id);
        let until_up: BTreeSet<Seat> = match &own {
            Some(own) => seats.into_iter().filter(|seat| is_taken(own, seat)).collect(),
            None => BTreeSet::new(),
        };
        match own {
            Some(own) if !until_up.is_empty() => own.gates.push(Gate { until_up, word, value }),
            _ => {
                state.push(Task::Open(Arc::downgrade(line), word, value));
                self.bell.notify_one();
            }
        }
    }

    pub(super) fn has_left(&self, id: BufferId, seat: Seat) {
        let mut state = self.lock();
        if let Some(seating) = state.own.get_mut(&id).and_then(|own| own.seats.get_mut(&seat)) {
            seating.leaving = false;
        }
    }
}

/// Somebody got up from a seat: its word will not be written any more.
pub(super) fn got_up(state: &mut State, id: BufferId, seat: Seat, how: SeatEnd) -> bool {
    let Some(own) = state.own.get_mut(&id) else { return false };
    let seating = own.seats.entry(seat).or_default();
    if !std::mem::take(&mut seating.taken) {
        return false; // Told before.
    }
    if how != SeatEnd::Released {
        seating.haunted = Some(Instant::now() + limits::POISON_REST);
    }
    let Some((line, order)) = own.order.clone() else { return false };
    let mut tasks = Vec::new();
    // One that got up before and is not dealt with yet will do for both: nobody waits for the word meanwhile.
    if let Some(word) = order.seat_word(seat).filter(|_| !std::mem::replace(&mut seating.leaving, true)) {
        tasks.push(Task::EndWord(Weak::clone(&line), word, id, seat));
    }
    own.gates.retain_mut(|gate| {
        gate.until_up.remove(&seat);
        let is_open = gate.until_up.is_empty();
        if is_open {
            tasks.push(Task::Open(Weak::clone(&line), gate.word, gate.value));
        }
        !is_open
    });
    tasks.into_iter().for_each(|task| state.push(task));
    true
}

/// The words that an order takes up.
pub(crate) fn words_of(order: &Order) -> Range<u32> {
    order.ready_word..order.first_seat_word.saturating_add(order.seats)
}

/// Gives back the words of a buffer that is gone, unless the stream that makes it ready has not come so far: its write
/// would undo what the words are used for next.
pub(super) fn free(line: &Line, order: &Order) -> bool {
    match line.load(order.ready_word) {
        Ok(Some(found)) if !has_reached(found, order.value) => false,
        _ => {
            if let Some(allotment) = &line.allotment {
                allotment.give_back(words_of(order));
            }
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::id;
    use gpu_handoff_protocol::message::{EndReason, Event};

    fn ordered(orders: &Orders) {
        let order = Order { timeline: id(1), ready_word: 0, value: 5, first_seat_word: 1, seats: 1 };
        let own = Own { order: Some((Weak::new(), order)), ..Own::default() };
        orders.lock().own.insert(id(2), own);
    }

    #[test]
    fn words_that_the_dead_may_still_write_rest_before_they_are_free() {
        for (how, rests) in [(SeatEnd::Released, false), (SeatEnd::Died, true), (SeatEnd::Other, true)] {
            let orders = Orders::default();
            ordered(&orders);
            orders.notice(&Event::Seated { id: id(2), seat: Seat(0) });
            orders.notice(&Event::Unseated { id: id(2), seat: Seat(0), how });
            assert_eq!(orders.seats(id(2))[&Seat(0)].haunted.is_some(), rests);
            let before = Instant::now();
            orders.notice(&Event::Gone { id: id(2), reason: EndReason::Retired });
            let state = orders.lock();
            let [(at, Task::Free(..))] = state.later.all()[..] else { panic!("{:?}", state.later) };
            let looks: std::time::Duration = limits::POISON_LOOKS.iter().sum();
            assert_eq!(at > before + looks, rests, "{how:?}");
        }
    }

    #[test]
    fn a_seat_is_not_used_before_its_dead_holder_is_silent() {
        let orders = Orders::default();
        ordered(&orders);
        for how in [SeatEnd::Released, SeatEnd::Died] {
            orders.notice(&Event::Seated { id: id(2), seat: Seat(0) });
            orders.notice(&Event::Unseated { id: id(2), seat: Seat(0), how });
            orders.has_left(id(2), Seat(0));
            let seating = orders.seats(id(2))[&Seat(0)];
            assert_eq!((seating.leaving, seating.is_clean()), (false, how == SeatEnd::Released));
        }
    }
}
