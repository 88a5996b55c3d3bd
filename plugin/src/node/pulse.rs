//! Whether a broker that serves still does anything: it says so again and again.
//!
//! Its silence is counted in looks of the node, not by the clock: a node that was itself kept from running, as by a frozen
//! container, blames nobody for what it could not hear.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::limits;

/// When the node looks, and what it found.
#[derive(Debug)]
pub(super) struct Pulse {
    looks: Interval,
    silence: Silence,
}

/// How long nothing was heard.
#[derive(Debug, Default)]
struct Silence(Duration);

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has been heard lately, or its silence was told of already.
    NothingNew,
    /// It counts as not serving from now on.
    Silent,
    /// It is not worth waiting for.
    Hung,
}

impl Pulse {
    /// Begins now.
    pub(super) fn new() -> Self {
        let mut looks = interval(limits::BROKER_BEAT);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { looks, silence: Silence::default() }
    }

    /// It was heard; says whether it counted as silent until now.
    pub(super) fn beat(&mut self) -> bool {
        self.silence.end()
    }

    /// The next look. Safe to cancel.
    pub(super) async fn look(&mut self) -> Found {
        self.looks.tick().await;
        self.silence.go_on()
    }
}

impl Silence {
    fn end(&mut self) -> bool {
        std::mem::take(self).0 >= limits::BROKER_SILENCE
    }

    fn go_on(&mut self) -> Found {
        let before = self.0;
        self.0 += limits::BROKER_BEAT;
        if self.0 >= limits::BROKER_LONGEST_SILENCE {
            Found::Hung
        } else if before < limits::BROKER_SILENCE && self.0 >= limits::BROKER_SILENCE {
            Found::Silent
        } else {
            Found::NothingNew
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_told_of_once_ends_with_a_beat_and_is_borne_for_so_long() {
        let mut silence = Silence::default();
        let until = |silence: &mut Silence, wanted: &Found| {
            let looks = (1..).find(|_| silence.go_on() == *wanted).unwrap();
            limits::BROKER_BEAT * looks
        };
        assert!(!silence.end());
        assert_eq!(until(&mut silence, &Found::Silent), limits::BROKER_SILENCE);
        assert!(silence.end() && !silence.end());
        let short = limits::BROKER_SILENCE.as_secs() / limits::BROKER_BEAT.as_secs() - 1;
        for _ in 0..100 {
            assert!((0..short).all(|_| silence.go_on() == Found::NothingNew));
            assert!(!silence.end());
        }
        assert_eq!(until(&mut silence, &Found::Silent), limits::BROKER_SILENCE);
        let left = limits::BROKER_LONGEST_SILENCE - limits::BROKER_SILENCE;
        assert_eq!(until(&mut silence, &Found::Hung), left, "and it is told of once");
    }
}
