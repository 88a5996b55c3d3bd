//! Maps by what this daemon has drawn itself. Strangers may ask for any key, but choose none that is in a map, so the
//! keys need no hash that withstands chosen ones.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers of buffers, leases, sessions or members.
pub type DrawnMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// Mixes numbers: each is folded into those before it by one multiplication.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mixer(u64);

/// Odd, and with its bits spread (2^64 by the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let wide = u128::from((self.0 ^ number).wrapping_add(FACTOR)) * u128::from(FACTOR);
        let [low, high] = halves(wide);
        // Both ends of the result are looked at.
        self.0 = low ^ high;
    }

    fn write_u128(&mut self, number: u128) {
        let [low, high] = halves(number);
        self.write_u64(low);
        self.write_u64(high);
    }
}

#[allow(clippy::cast_possible_truncation, reason = "cut in two on purpose")]
const fn halves(number: u128) -> [u64; 2] {
    [number as u64, (number >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::Hash;

    fn hash(key: impl Hash) -> u64 {
        let mut mixer = Mixer::default();
        key.hash(&mut mixer);
        mixer.finish()
    }

    #[test]
    fn numbers_in_a_row_are_spread_at_both_ends() {
        const KEYS: usize = 4_096;
        for hashes in [(0..KEYS as u64).map(hash).collect::<Vec<_>>(), (0..KEYS as u128).map(hash).collect()]
        {
            assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), KEYS);
            let low: HashSet<u64> = hashes.iter().map(|h| h & 0xfff).collect();
            let high: HashSet<u64> = hashes.iter().map(|h| h >> 52).collect();
            // As many as of numbers drawn at random, about 63 of 100; half of them would do.
            assert!(low.len() > KEYS / 2 && high.len() > KEYS / 2, "{} and {}", low.len(), high.len());
        }
    }
}
