//! What another daemon does not restore: nothing more will be told of it, so that nobody may wait for that.

use std::sync::Weak;

use gpu_handoff_protocol::message::SeatEnd;
use gpu_handoff_protocol::{BufferId, LeaseId, Seat};

use super::again::Asking;
use super::seats::got_up;
use super::{End, Orders, Task};

impl Orders {
    /// This lease is lost. If it was of a timeline, its line is not used for anything new; for streams that wait for its
    /// words another lease is asked for.
    pub(crate) fn lease_lost(&self, buffer: BufferId, lease: LeaseId) {
        let mut state = self.lock();
        let mut lost = Vec::new();
        let known = state.lines.get_mut(&buffer).into_iter().flatten();
        for known in known.filter(|known| known.lease == Some(lease)) {
            // It stays known, so that no news are missed between another lease and this.
            (known.lease, known.hold) = (None, Weak::new());
            lost.push(Weak::clone(&known.line));
        }
        lost.into_iter().for_each(|line| state.push(Task::LeaseAgain(line, Asking::default())));
        self.bell.notify_one();
    }

    /// This publication is lost: a timeline, or a buffer whose holders nobody tells of any more. Its words are not given
    /// out again, as those holders may still write them.
    pub(crate) fn buffer_lost(&self, id: BufferId) {
        let mut state = self.lock();
        state.end_line(id, End::Lost);
        let seats = state.own.get(&id).map(|own| own.seats.keys().copied().collect::<Vec<Seat>>());
        for seat in seats.unwrap_or_default() {
            got_up(&mut state, id, seat, SeatEnd::Died);
        }
        state.own.remove(&id);
        self.bell.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gpu_handoff_protocol::Order;
    use gpu_handoff_protocol::message::{EndReason, Event};

    use super::super::Known;
    use super::super::seats::{Gate, Own, Seating};
    use super::*;
    use crate::tests::id;

    fn known(lease: u64) -> Known {
        Known { lease: Some(LeaseId(lease)), line: Weak::new(), hold: Weak::new() }
    }

    #[test]
    fn of_a_lost_lease_of_a_timeline_another_is_asked_for() {
        let orders = Orders::default();
        orders.lock().lines.insert(id(1), vec![known(1), known(2)]);
        orders.lease_lost(id(1), LeaseId(1));
        orders.lease_lost(id(2), LeaseId(2));
        let mut state = orders.lock();
        assert!(matches!(state.tasks.make_contiguous(), [Task::LeaseAgain(..)]));
        let leases: Vec<_> = state.lines[&id(1)].iter().map(|known| known.lease).collect();
        assert_eq!(leases, [None, Some(LeaseId(2))], "the lost one still hears what is told of the timeline");
    }

    #[test]
    fn of_a_lost_buffer_seats_end_and_gates_open() {
        let orders = Orders::default();
        let order = Order { timeline: id(1), ready_word: 0, value: 5, first_seat_word: 1, seats: 2 };
        let mut own = Own { order: Some((Weak::new(), order)), ..Own::default() };
        own.seats.insert(Seat(0), Seating { taken: true, turns: 2, ..Seating::default() });
        own.seats.insert(Seat(1), Seating::default());
        own.gates.push(Gate { until_up: BTreeSet::from([Seat(0)]), word: 9, value: 6 });
        orders.lock().own.insert(id(2), own);
        orders.buffer_lost(id(2));
        let mut state = orders.lock();
        assert!(state.own.is_empty());
        let tasks = state.tasks.make_contiguous();
        assert!(matches!(tasks, [Task::EndWord(_, 1, _, Seat(0)), Task::Open(_, 9, 6)]), "{tasks:?}");
    }

    #[test]
    fn a_timeline_ends_for_whatever_reason() {
        let orders = Orders::default();
        for reason in [EndReason::Retired, EndReason::OwnerDied] {
            orders.lock().lines.insert(id(1), vec![known(1)]);
            orders.notice(&Event::Orphaned { id: id(1), reason, leases: 1 });
            let mut state = orders.lock();
            let tasks = state.tasks.make_contiguous();
            assert!(matches!(tasks, [Task::EndLine(_, End::Died)]), "{tasks:?}");
            state.tasks.clear();
        }
    }
}
