//! How often a member can make the lane write to the log: what it can cause without limit is told at a limited rate, and how
//! much was not told is said with the next line.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::limits;

/// Lines that may be written, refilled with time.
#[derive(Debug)]
pub(super) struct Chatter {
    left: Cell<u32>,
    refilled: Cell<Instant>,
    untold: Cell<u64>,
}

impl Chatter {
    pub(super) fn new() -> Self {
        let (left, refilled) = (Cell::new(limits::LOG_BURST), Cell::new(Instant::now()));
        Self { left, refilled, untold: Cell::new(0) }
    }

    /// Whether a line may be written now; with it goes how many were not since the last.
    pub(super) fn may_tell(&self) -> Option<u64> {
        self.may_tell_at(Instant::now())
    }

    fn may_tell_at(&self, now: Instant) -> Option<u64> {
        let past = now.saturating_duration_since(self.refilled.get());
        let earned =
            u32::try_from(past.as_millis() / limits::LOG_PAUSE.as_millis().max(1)).unwrap_or(u32::MAX);
        if earned > 0 {
            self.left.set(self.left.get().saturating_add(earned).min(limits::LOG_BURST));
            self.refilled
                .set(self.refilled.get() + limits::LOG_PAUSE.checked_mul(earned).unwrap_or(Duration::MAX));
        }
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                Some(self.untold.take())
            }
            None => {
                self.untold.set(self.untold.get() + 1);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_at_a_limited_rate_and_its_size_is_said() {
        let chatter = Chatter::new();
        let begin = Instant::now();
        let told = (0..10_000).filter(|_| chatter.may_tell_at(begin).is_some()).count();
        assert_eq!(told, limits::LOG_BURST as usize);
        let untold = 10_000 - u64::from(limits::LOG_BURST);
        assert_eq!(chatter.may_tell_at(begin + limits::LOG_PAUSE * 2), Some(untold));
        assert_eq!(chatter.may_tell_at(begin + limits::LOG_PAUSE * 2), Some(0));
        assert_eq!(chatter.may_tell_at(begin + limits::LOG_PAUSE * 2), None);
        // A long rest earns no more than one burst.
        let later = begin + limits::LOG_PAUSE * (limits::LOG_BURST * 10);
        let told = (0..10_000).filter(|_| chatter.may_tell_at(later).is_some()).count();
        assert_eq!(told, limits::LOG_BURST as usize);
    }
}
