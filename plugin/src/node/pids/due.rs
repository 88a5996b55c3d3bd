//! When it is looked how far a namespace has come with its numbers. Pure.
//!
//! A look takes a process, so it is not taken often: all forks of the machine together are a bound of those of one
//! namespace, and can be read at no cost. Forks that fail after they were given a number are not among them, so it is
//! looked now and then in any case, and the more seldom, the less is used up.

use std::time::Instant;

use crate::limits;
use crate::pace::doubled;

/// Of a namespace that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Forks of the machine at that time.
    forks: u64,
    /// With so many more it is looked again.
    room: u64,
    /// Or then.
    at: Instant,
    /// How often in a row little was used up.
    quiet: u32,
}

impl Due {
    /// After a look that has left so many numbers, before which so many forks were counted.
    #[must_use]
    pub fn new(forks: u64, left: u32, now: Instant) -> Self {
        Self { forks, room: u64::from(left / 2), at: now + limits::PIDS_LOOK, quiet: 0 }
    }

    /// After a further one; `few`: since the one before it, few numbers were used up.
    #[must_use]
    pub fn again(self, forks: u64, left: u32, few: bool, now: Instant) -> Self {
        let quiet = if few { self.quiet.saturating_add(1) } else { 0 };
        let pause = doubled(limits::PIDS_LOOK, quiet, limits::PIDS_LONGEST_LOOK);
        Self { at: now + pause, quiet, ..Self::new(forks, left, now) }
    }

    /// Whether it is to be looked now.
    #[must_use]
    pub fn is_now(self, forks: u64, now: Instant) -> bool {
        // Fewer than before: the counter has begun anew.
        now >= self.at || forks.checked_sub(self.forks).is_none_or(|more| more >= self.room.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::ranges::Grid;
    use super::*;

    #[test]
    fn it_is_looked_when_half_of_what_is_left_may_be_used_up_and_seldom_without_forks() {
        let now = Instant::now();
        let due = Due::new(1_000, 512, now);
        assert!(!due.is_now(1_255, now));
        assert!(due.is_now(1_256, now) && due.is_now(999, now) && due.is_now(1_000, now + limits::PIDS_LOOK));
        let quiet = (0..9).fold(due, |due, _| due.again(1_000, 512, true, now));
        assert!(!quiet.is_now(1_000, now + limits::PIDS_LONGEST_LOOK - Duration::from_millis(1)));
        assert!(quiet.is_now(1_000, now + limits::PIDS_LONGEST_LOOK) && quiet.is_now(1_256, now));
        assert!(quiet.again(1_000, 512, false, now).is_now(1_000, now + limits::PIDS_LOOK));
    }

    proptest! {
        /// As long as no more than a quarter of a range is used between two turns, no namespace comes to the end of its range.
        #[test]
        fn a_range_is_not_left(
            steps in proptest::collection::vec((0..=128_u32, 0..=1_000_u64), 0..200), index in 0..63_u32
        ) {
            let numbers = Grid::of(32_768).unwrap().numbers(index);
            let now = Instant::now();
            let (mut last, mut forks) = (numbers.before(), 0);
            let mut due = Due::new(forks, numbers.width(), now);
            for (own, others) in steps {
                last += own;
                forks += u64::from(own) + others;
                prop_assert!(last == numbers.before() || numbers.contains(last), "{last}");
                if due.is_now(forks, now) {
                    let left = numbers.left(last).unwrap_or_else(|| {
                        last = numbers.before();
                        numbers.width()
                    });
                    due = due.again(forks, left, false, now);
                }
            }
        }
    }
}
