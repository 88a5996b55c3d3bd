//! How much the broker may have of what costs the node, or others, something. One that does what it is for never comes near
//! these; one that was taken over cannot keep the node from the rest of its work.

use std::time::Instant;

use tracing::warn;

use crate::allowance::Allowance;
use crate::limits;

/// What is left of it. It goes on from broker to broker.
#[derive(Debug)]
pub(super) struct Rates {
    tells: Allowance,
    children: Allowance,
    overstays: Allowance,
    /// That this broker has more to tell than it may was said.
    is_said: bool,
}

impl Rates {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            tells: Allowance::new(limits::TELLS, limits::TELL_EACH, now),
            children: Allowance::new(limits::CHILDREN, limits::CHILD_EACH, now),
            overstays: Allowance::new(limits::OVERSTAY_DEEDS, limits::OVERSTAY_EACH, now),
            is_said: false,
        }
    }

    /// Whether owners of pods may be told one thing more.
    pub(super) fn may_tell(&mut self, now: Instant) -> bool {
        let may = self.tells.take(now);
        if !may && !std::mem::replace(&mut self.is_said, true) {
            warn!("the broker tells more of pods than a broker does: what is too much of it is left out");
        }
        may
    }

    /// Whether a child may be started for it.
    pub(super) fn may_start(&mut self, now: Instant) -> Result<(), String> {
        let why = || format!("the node starts one process each {:?}, not more", limits::CHILD_EACH);
        if self.children.take(now) { Ok(()) } else { Err(why()) }
    }

    /// Whether a process may be killed, or a pod evicted.
    pub(super) fn may_end(&mut self, now: Instant) -> Result<(), String> {
        let why = || format!("the node kills or evicts one each {:?}, not more", limits::OVERSTAY_EACH);
        if self.overstays.take(now) { Ok(()) } else { Err(why()) }
    }

    /// Another broker comes.
    pub(super) const fn begin_anew(&mut self) {
        self.is_said = false;
    }
}

/// Of the words of one broker.
pub(super) const fn words(now: Instant) -> Allowance {
    Allowance::new(limits::BROKER_WORDS, limits::BROKER_WORD_EACH, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_as_it_is_has_all_that_it_tells_taken_and_one_that_tells_more_has_not() {
        let begin = Instant::now();
        let mut rates = Rates::new(begin);
        let (mut now, mut taken) = (begin, 0);
        for _ in 0..100 {
            taken += (0..limits::TELLS_AT_A_TIME).filter(|_| rates.may_tell(now)).count();
            now += limits::TELL_PAUSE;
        }
        assert_eq!(taken, 100 * limits::TELLS_AT_A_TIME);
        let taken = (0..100_000).filter(|_| rates.may_tell(now)).count();
        assert!(taken <= limits::TELLS as usize, "{taken}");
        // What the node itself has to tell finds room beside it.
        assert!(limits::TELLS as usize <= limits::EVENT_QUEUE / 2);
    }
}
