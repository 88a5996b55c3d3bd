//! Numbers for leases: none is used twice while the machine runs, and nobody can count from them what others get.
//!
//! The upper bits say which daemon of this boot gave the number, the lower ones are a keyed permutation of how many it
//! gave: two numbers of one daemon never meet, nor do those of two daemons.

use std::hash::{BuildHasher, RandomState};

use gpu_handoff_protocol::LeaseId;

/// Bits of a number that are the daemon's own; leases given by one daemon stay below two to the power of this.
const OWN_BITS: u32 = 44;
/// Half of them: the permutation works on two halves.
const HALF_BITS: u32 = OWN_BITS / 2;
const HALF: u64 = (1 << HALF_BITS) - 1;
/// Rounds of the permutation. Four make it look random to whoever sees some of its values.
const ROUNDS: u8 = 4;

/// Where lease numbers come from.
#[derive(Debug)]
pub(super) struct LeaseNumbers {
    life: u64,
    given: u64,
    keys: RandomState,
}

impl LeaseNumbers {
    /// Numbers of the daemon that is the `life`-th of this boot.
    pub(super) fn new(life: u32, keys: RandomState) -> Self {
        Self { life: u64::from(life), given: 0, keys }
    }

    /// The next number.
    pub(super) fn draw(&mut self) -> LeaseId {
        self.given = self.given.wrapping_add(1);
        LeaseId(self.life << OWN_BITS | self.permuted(self.given))
    }

    /// A Feistel network: it can be run backwards, so different numbers stay different.
    fn permuted(&self, number: u64) -> u64 {
        let (mut left, mut right) = ((number >> HALF_BITS) & HALF, number & HALF);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (self.keys.hash_one((round, right)) & HALF));
        }
        left << HALF_BITS | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_number_is_drawn_twice_by_any_daemon() {
        let mut seen = HashSet::new();
        for life in 1..5 {
            let mut numbers = LeaseNumbers::new(life, RandomState::new());
            assert!((0..20_000).all(|_| seen.insert(numbers.draw())));
        }
    }

    #[test]
    fn numbers_do_not_tell_how_many_were_drawn() {
        let mut numbers = LeaseNumbers::new(1, RandomState::new());
        let drawn: Vec<u64> = (0..64).map(|_| numbers.draw().0).collect();
        let close = drawn.windows(2).filter(|w| w[0].abs_diff(w[1]) < 1 << 20).count();
        assert!(close < 3, "{drawn:?}");
    }
}
