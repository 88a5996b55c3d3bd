//! How often descriptors of a member broke a GPU worker lately: each time counts for a while, so that a GPU that hung for a
//! moment does not shut out for good whoever happened to use it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::{Code, Refusal};

use crate::limits;

/// When workers broke over a member's descriptors, oldest first: no more than suspend it.
#[derive(Debug, Default)]
pub(super) struct Strikes(VecDeque<Instant>);

impl Strikes {
    /// Another worker broke; gives how many did lately, as far as it matters.
    pub(super) fn add(&mut self, now: Instant) -> usize {
        self.0.retain(|at| counts(*at, now));
        if self.0.len() >= limits::WORKERS_BROKEN {
            self.0.pop_front();
        }
        self.0.push_back(now);
        self.0.len()
    }

    /// Whether the member may have anything inspected.
    ///
    /// # Errors
    /// `MEMBER_SUSPENDED`, with when that ends.
    pub(super) fn check(&self, now: Instant) -> Result<(), Refusal> {
        let mut counting = self.0.iter().filter(|at| counts(**at, now));
        let found = counting.clone().count();
        let Some(oldest) = counting.next().filter(|_| found >= limits::WORKERS_BROKEN) else { return Ok(()) };
        let left = limits::STRIKE_TIME.saturating_sub(now.saturating_duration_since(*oldest));
        let within = limits::STRIKE_TIME.as_secs() / 60;
        let wanted = format!("fewer than {} within {within} min", limits::WORKERS_BROKEN);
        Err(Refusal::new(Code::MemberSuspended)
            .compared_with("broken gpu workers", wanted, found)
            .with_remedy(format!(
                "publish again in {} s; if it comes again, look at the node's GPU and at what the pod exports",
                whole_seconds(left)
            )))
    }
}

/// Whether what happened at that moment still counts.
fn counts(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < limits::STRIKE_TIME
}

/// Seconds after which that time is over for certain.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// As many as suspend.
    const SUSPENDS: u64 = limits::WORKERS_BROKEN as u64;

    fn struck(begin: Instant, after: impl IntoIterator<Item = Duration>) -> Strikes {
        let mut strikes = Strikes::default();
        for time in after {
            strikes.add(begin + time);
        }
        strikes
    }

    #[test]
    fn as_many_as_suspend_do_so_until_the_oldest_of_them_counts_no_more() {
        let begin = Instant::now();
        let one_less = (1..SUSPENDS).map(Duration::from_secs);
        let mut strikes = struck(begin, one_less);
        let last = begin + SECOND * 60;
        assert_eq!(strikes.check(last), Ok(()));
        assert_eq!(strikes.add(last), limits::WORKERS_BROKEN);
        let end = begin + SECOND + limits::STRIKE_TIME;
        let refusal = strikes.check(last).unwrap_err();
        assert_eq!(refusal.code(), Code::MemberSuspended);
        let left = limits::STRIKE_TIME.as_secs() - 59;
        assert!(refusal.remedy().starts_with(&format!("publish again in {left} s;")), "{refusal}");
        let refusal = strikes.check(end - Duration::from_nanos(1)).unwrap_err();
        assert!(refusal.remedy().starts_with("publish again in 1 s;"), "{refusal}");
        assert_eq!(strikes.check(end), Ok(()));
        // Those that came later count on.
        assert_eq!(strikes.add(end), limits::WORKERS_BROKEN);
        assert!(strikes.check(end).is_err());
    }

    #[test]
    fn strikes_that_are_far_apart_never_suspend() {
        let begin = Instant::now();
        let mut strikes = Strikes::default();
        let apart = Duration::from_secs(limits::STRIKE_TIME.as_secs() / (SUSPENDS - 1));
        for n in 0..100 {
            strikes.add(begin + apart * n);
            assert_eq!(strikes.check(begin + apart * n), Ok(()), "{n}");
        }
    }

    #[test]
    fn no_more_are_remembered_than_suspend_and_the_latest_say_for_how_long() {
        let begin = Instant::now();
        let strikes = struck(begin, (0..100).map(Duration::from_secs));
        assert_eq!(strikes.0.len(), limits::WORKERS_BROKEN);
        let oldest = Duration::from_secs(100 - SUSPENDS);
        assert!(strikes.check(begin + oldest + limits::STRIKE_TIME - SECOND).is_err());
        assert_eq!(strikes.check(begin + oldest + limits::STRIKE_TIME), Ok(()));
    }

    #[test]
    fn the_page_shows_what_is_said() {
        let begin = Instant::now();
        let strikes = struck(begin, vec![Duration::ZERO; limits::WORKERS_BROKEN]);
        let said = strikes.check(begin).unwrap_err().to_string();
        let (shown, _) = said.split_once("; remedy").unwrap();
        assert!(include_str!("../../../docs/refusals.md").contains(shown), "{shown}");
    }
}
