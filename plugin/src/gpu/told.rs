//! Which failures were logged already: each reason once in a while, not once for each request.

use std::collections::HashMap;
use std::time::Instant;

use crate::limits;

/// Reasons, and when each was logged.
#[derive(Debug, Default)]
pub(super) struct Told(HashMap<String, Instant>);

impl Told {
    /// Whether this reason is to be logged now; it then counts as logged.
    pub(super) fn is_news(&mut self, reason: &str) -> bool {
        self.is_news_at(reason, Instant::now())
    }

    fn is_news_at(&mut self, reason: &str, now: Instant) -> bool {
        self.0.retain(|_, at| now.duration_since(*at) < limits::WORKER_FAILURE_PAUSE);
        // With so many reasons at a time one more says nothing that the others do not.
        if self.0.contains_key(reason) || self.0.len() >= limits::WORKER_FAILURES {
            return false;
        }
        self.0.insert(reason.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_news_once_in_a_while() {
        let (mut told, begin) = (Told::default(), Instant::now());
        assert!(told.is_news_at("no device", begin));
        assert!(told.is_news_at("no driver", begin));
        assert!(!told.is_news_at("no device", begin + limits::WORKER_FAILURE_PAUSE / 2));
        assert!(told.is_news_at("no device", begin + limits::WORKER_FAILURE_PAUSE));
    }

    #[test]
    fn reasons_are_limited() {
        let (mut told, now) = (Told::default(), Instant::now());
        let news = (0..2 * limits::WORKER_FAILURES).filter(|i| told.is_news_at(&i.to_string(), now)).count();
        assert_eq!((news, told.0.len()), (limits::WORKER_FAILURES, limits::WORKER_FAILURES));
    }
}
