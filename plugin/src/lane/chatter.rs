//! How often a member can make the lane write to the log: what it can cause without limit is told at a limited rate, and how
//! much was not told is said with the next line.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use crate::allowance::Allowance;
use crate::limits;

/// Lines that may be written, and how many were not.
#[derive(Debug)]
pub(super) struct Chatter {
    lines: RefCell<Allowance>,
    untold: Cell<u64>,
}

impl Chatter {
    pub(super) fn new() -> Self {
        let lines = Allowance::new(limits::LOG_BURST, limits::LOG_PAUSE, Instant::now());
        Self { lines: RefCell::new(lines), untold: Cell::new(0) }
    }

    /// Whether a line may be written now; with it goes how many were not since the last.
    pub(super) fn may_tell(&self) -> Option<u64> {
        self.may_tell_at(Instant::now())
    }

    fn may_tell_at(&self, now: Instant) -> Option<u64> {
        if self.lines.borrow_mut().take(now) {
            return Some(self.untold.take());
        }
        self.untold.set(self.untold.get() + 1);
        None
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
    }
}
