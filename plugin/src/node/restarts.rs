//! Whether a broker that died is started again, and when.

use std::time::Duration;

use crate::limits;
use crate::pace;

/// The deaths so far.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// In all.
    total: u64,
    /// One soon after the other.
    in_a_row: u32,
    /// One after the other without having been ready.
    never_ready: u32,
}

impl Restarts {
    /// How long to wait before the next start; `None`: starting it is of no use.
    pub(super) fn died(&mut self, lived: Duration, was_ready: bool) -> Option<Duration> {
        self.total += 1;
        self.in_a_row = if lived < limits::BROKER_GOOD_LIFE { self.in_a_row.saturating_add(1) } else { 1 };
        self.never_ready = if was_ready { 0 } else { self.never_ready + 1 };
        if self.never_ready >= limits::BROKER_STARTS {
            return None;
        }
        // The first time at once: who it serves is waiting.
        let doublings = self.in_a_row.checked_sub(2);
        Some(
            doublings.map_or(Duration::ZERO, |n| {
                pace::doubled(limits::BROKER_PAUSE, n, limits::BROKER_LONGEST_PAUSE)
            }),
        )
    }

    pub(super) const fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    #[test]
    fn the_pause_grows_to_its_limit_and_starts_over_after_a_good_life() {
        let mut restarts = Restarts::default();
        let pauses: Vec<_> = (0..100).map(|_| restarts.died(SOON, true).unwrap()).collect();
        assert_eq!(pauses[..4], [0, 1, 2, 4].map(|n| limits::BROKER_PAUSE * n));
        assert!(pauses.is_sorted());
        assert_eq!(pauses[99], limits::BROKER_LONGEST_PAUSE);
        assert_eq!(restarts.died(limits::BROKER_GOOD_LIFE, true), Some(Duration::ZERO));
        assert_eq!(restarts.total(), 101);
    }

    #[test]
    fn one_that_never_gets_ready_is_given_up() {
        let mut restarts = Restarts::default();
        for _ in 1..limits::BROKER_STARTS {
            assert!(restarts.died(SOON, false).is_some());
        }
        assert!(restarts.died(SOON, true).is_some(), "it was ready: the count starts over");
        for _ in 1..limits::BROKER_STARTS {
            assert!(restarts.died(SOON, false).is_some());
        }
        assert_eq!(restarts.died(SOON, false), None);
    }
}
