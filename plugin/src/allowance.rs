//! So many at once, and one more after each pause: what somebody may have done, however often he asks.

use std::time::{Duration, Instant};

/// What may still be done, refilled with time.
#[derive(Debug)]
pub struct Allowance {
    burst: u32,
    pause: Duration,
    left: u32,
    refilled: Instant,
}

impl Allowance {
    /// All of the burst, from now on.
    #[must_use]
    pub const fn new(burst: u32, pause: Duration, now: Instant) -> Self {
        Self { burst, pause, left: burst, refilled: now }
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// When there is one at the earliest.
    #[must_use]
    pub fn next(&self, now: Instant) -> Instant {
        if self.left > 0 { now } else { now.max(self.refilled + self.pause) }
    }

    fn refill(&mut self, now: Instant) {
        let past = now.saturating_duration_since(self.refilled);
        let earned = past.as_nanos() / self.pause.as_nanos().max(1);
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(self.burst);
            self.refilled += self.pause.checked_mul(earned).unwrap_or(past);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_one_more_after_each_pause() {
        let (begin, pause) = (Instant::now(), Duration::from_millis(100));
        let mut allowance = Allowance::new(4, pause, begin);
        assert_eq!((0..10).filter(|_| allowance.take(begin)).count(), 4);
        assert_eq!(allowance.next(begin), begin + pause);
        assert!(!allowance.take(begin + pause / 2));
        assert!(allowance.take(begin + pause) && !allowance.take(begin + pause));
        // A long rest earns no more than one burst.
        let later = begin + pause * 1_000;
        assert_eq!((0..10).filter(|_| allowance.take(later)).count(), 4);
    }
}
