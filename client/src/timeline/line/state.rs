//! What is known of a timeline's words and of those who write them. Plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use gpu_handoff_protocol::limits::ORDER_VALUES;

use super::End;

/// The word of a peer that died.
pub(super) const POISON: u64 = ORDER_VALUES;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Nobody writes any word any more, or nobody would tell.
    pub(super) ended: Option<End>,
    /// Words whose own writer has ended.
    pub(super) dead: BTreeSet<u32>,
    /// Words that streams of this process were told to wait for, each with the highest value.
    pub(super) waited: BTreeMap<u32, u64>,
    /// What words had reached when they were poisoned, or would have been.
    pub(super) reached: BTreeMap<u32, u64>,
    /// When a word was last poisoned.
    pub(super) poisoned: Option<Instant>,
}

impl State {
    pub(super) fn is_dead(&self, word: u32) -> bool {
        self.ended.is_some() || self.dead.contains(&word)
    }

    /// How far a word has come that is `now` so, or poisoned. Its writer may be alive, where nobody would tell, and have
    /// written on after what was noted; and what was reached may have been poisoned since by somebody who waits for more.
    pub(super) fn furthest(&self, word: u32, now: Option<u64>) -> Option<u64> {
        now.max(self.reached.get(&word).copied())
    }

    /// The first and the last word that a stream was told to wait for.
    pub(super) fn waited_range(&self) -> Option<(u32, u32)> {
        Some((*self.waited.first_key_value()?.0, *self.waited.last_key_value()?.0))
    }

    /// Forgets waits that are over, as the words from `first` on are now. True: there are others.
    pub(super) fn prune(&mut self, first: u32, found: &[u64], now: Instant) -> bool {
        let (was_poisoned, mut by_others) = (self.poisoned.is_some(), false);
        self.waited.retain(|word, value| match found.get((word - first) as usize) {
            // By others, who were told before, it may still fall back.
            Some(&found) if found >= POISON => {
                by_others |= !was_poisoned;
                !was_poisoned
            }
            found => found.is_some_and(|found| !has_reached(*found, *value)),
        });
        if by_others {
            self.poisoned = Some(now);
        }
        !self.waited.is_empty()
    }
}

/// As the driver compares: cyclically.
pub(crate) fn has_reached(found: u64, value: u64) -> bool {
    found.wrapping_sub(value) < 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_word_is_the_furthest_that_it_came() {
        let state = State { reached: BTreeMap::from([(1, 7)]), ..State::default() };
        // Its writer has written on; it is poisoned, or a last write has undone that.
        for (now, furthest) in [(Some(9), 9), (None, 7), (Some(6), 7)] {
            assert_eq!(state.furthest(1, now), Some(furthest));
        }
        assert_eq!((state.furthest(2, Some(3)), state.furthest(2, None)), (Some(3), None));
    }

    #[test]
    fn waits_that_are_over_are_forgotten_wherever_the_open_one_is() {
        let waited = BTreeMap::from([(2, 5), (3, 5), (5, 5), (6, 5)]);
        let mut state = State { waited, ..State::default() };
        assert_eq!(state.waited_range(), Some((2, 6)));
        assert!(state.prune(2, &[4, 5, 0, 6, 7], Instant::now()));
        assert_eq!(state.waited, BTreeMap::from([(2, 5)]));
        assert!(!state.prune(2, &[5], Instant::now()));
        assert_eq!(state.waited_range(), None);
    }

    #[test]
    fn a_word_that_others_have_poisoned_is_watched_a_while() {
        let mut state = State { waited: BTreeMap::from([(2, 5)]), ..State::default() };
        assert!(state.prune(2, &[POISON], Instant::now()));
        assert!(state.poisoned.is_some() && state.waited.contains_key(&2), "it may fall back");
        assert!(!state.prune(2, &[POISON], Instant::now()));
    }
}
