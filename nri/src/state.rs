//! How things stand with the runtime, for whoever wants to know.

use std::time::{Duration, SystemTime};

use crate::runtime::Runtime;

/// How things stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// With the connection.
    pub link: Link,
    /// Since when that is so.
    pub since: Option<SystemTime>,
    /// How often a runtime has taken us and said all that there is.
    pub connections: u64,
    /// Pods and containers that the last runtime has and were too many to be kept.
    pub left_out: u64,
    /// How long it has waited for answers.
    pub times: Times,
}

impl State {
    /// From now on it is so.
    pub(crate) fn set(&mut self, link: Link) {
        (self.link, self.since) = (link, Some(SystemTime::now()));
    }
}

/// How the connection stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Nothing was tried yet.
    #[default]
    Idle,
    /// There is none.
    Away {
        /// Why: what failed last, with its causes.
        why: String,
    },
    /// The runtime has not answered yet.
    Registering,
    /// It has, and has yet to say what there is.
    Synchronizing(Runtime),
    /// It asks, we answer.
    Serving(Runtime),
}

/// The upper ends of the classes in which answers are counted, in microseconds; the last has none.
const CLASSES: [u64; 14] =
    [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// How long answers took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    counts: [u64; CLASSES.len() + 1],
    longest: Duration,
}

impl Times {
    /// One more answer.
    pub(crate) fn add(&mut self, took: Duration) {
        let class = CLASSES.partition_point(|end| u128::from(*end) < took.as_micros());
        self.counts[class] += 1;
        self.longest = self.longest.max(took);
    }

    /// How many answers there were.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest that one took.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// What 99 of 100 answers did not take longer than, rounded up to 1, 2 or 5 times a power of ten. `None` before the
    /// first.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        let all = self.answers();
        let mut slower = all;
        for (count, end) in self.counts.iter().zip(CLASSES) {
            slower -= count;
            if all > 0 && slower.saturating_mul(100) <= all {
                return Some(Duration::from_micros(end).min(self.longest));
            }
        }
        (all > 0).then_some(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_slow_answer_of_a_hundred_is_left_out_and_two_are_not() {
        let mut times = Times::default();
        assert_eq!(times.p99(), None);
        (0..99).for_each(|_| times.add(Duration::from_micros(150)));
        times.add(Duration::from_millis(30));
        assert_eq!(times.p99(), Some(Duration::from_micros(200)));
        times.add(Duration::from_millis(40));
        assert_eq!(times.p99(), Some(Duration::from_millis(40)));
        assert_eq!((times.answers(), times.longest()), (101, Duration::from_millis(40)));
    }

    proptest! {
        #[test]
        fn the_true_value_is_never_above(mut took in prop::collection::vec(0_u64..3_000_000, 1..300)) {
            let mut times = Times::default();
            took.iter().for_each(|took| times.add(Duration::from_micros(*took)));
            took.sort_unstable();
            let true_value = took[(took.len() * 99).div_ceil(100) - 1];
            let said = times.p99().unwrap();
            prop_assert!(said >= Duration::from_micros(true_value) && said <= times.longest());
        }
    }
}
