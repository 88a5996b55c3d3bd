//! Staying awake. Whoever is about to be needed polls for a moment instead of sleeping: waking a thread can take longer
//! than all that it then has to do.

use std::cell::Cell;
use std::time::Instant;

use crate::limits;

/// Whether this machine has processors to spare for that.
pub(crate) fn is_affordable() -> bool {
    std::thread::available_parallelism().is_ok_and(|found| found.get() >= limits::AWAKE_PROCESSORS)
}

/// Between two looks: what is awaited may have to be done by this very processor.
pub(crate) fn give_way() {
    std::thread::yield_now();
}

/// Whether somebody sleeps when there is nothing to do.
#[derive(Debug)]
pub(crate) struct Awake {
    allowed: bool,
    until: Cell<Option<Instant>>,
}

impl Awake {
    /// It sleeps. Where it is not `allowed` it always does.
    pub(crate) const fn new(allowed: bool) -> Self {
        Self { allowed, until: Cell::new(None) }
    }

    /// Stays awake from now on, but not for long.
    pub(crate) fn begin(&self) {
        self.until.set(self.allowed.then(|| Instant::now() + limits::AWAKE_TIME));
    }

    /// It may sleep again.
    pub(crate) fn end(&self) {
        self.until.set(None);
    }

    /// Whether it stays awake at this moment.
    pub(crate) fn is_on(&self) -> bool {
        let on = self.until.get().is_some_and(|until| Instant::now() < until);
        if !on {
            self.end();
        }
        on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_stays_awake_for_long() {
        let (awake, begin) = (Awake::new(true), Instant::now());
        assert!(!awake.is_on());
        awake.begin();
        while awake.is_on() {}
        assert!(begin.elapsed() >= limits::AWAKE_TIME);
        awake.begin();
        awake.end();
        assert!(!awake.is_on());
        let never = Awake::new(false);
        never.begin();
        assert!(!never.is_on());
    }
}
