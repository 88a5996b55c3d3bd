//! Words in shared memory that streams of several processes write and wait for.
//!
//! Waiting uses the kernel's futex on the word's low half, which works across every namespace. Whoever changes the word by
//! other means (a copy, a memset) wakes nobody, so waits are bounded and look again.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::Timespec;
use rustix::thread::futex;

use crate::abi;
use crate::error::Result;
use crate::measured;
use crate::physical::Span;

const SPINS: u32 = 200;
const LOOK_AGAIN_NS: i64 = 1_000_000;
/// How many looks at a word, about a millisecond apart, come to one at whether the GPU is lost.
const LOOKS_PER_LIFE_SIGN: u32 = 32;

/// What a stream waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    /// Cyclic difference not negative.
    AtLeast,
    Equal,
    And,
    Nor,
}

impl Condition {
    pub(crate) fn from_flags(flags: u32) -> Result<Self> {
        match flags & !abi::WAIT_VALUE_FLUSH {
            abi::WAIT_VALUE_GEQ => Ok(Self::AtLeast),
            abi::WAIT_VALUE_EQ => Ok(Self::Equal),
            abi::WAIT_VALUE_AND => Ok(Self::And),
            abi::WAIT_VALUE_NOR => Ok(Self::Nor),
            _ => Err(measured::STREAM_VALUE_ARGUMENT),
        }
    }

    /// Whether a word of `bits` bits that reads `is` satisfies the condition with `value`.
    fn holds(self, is: u64, value: u64, bits: u32) -> bool {
        let mask = if bits == 32 { u64::from(u32::MAX) } else { u64::MAX };
        match self {
            Self::AtLeast => is.wrapping_sub(value) & mask < 1 << (bits - 1),
            Self::Equal => is == value,
            Self::And => is & value != 0,
            Self::Nor => !(is | value) & mask != 0,
        }
    }
}

/// A 32-bit or 64-bit word of device memory.
#[derive(Debug)]
pub(crate) struct Word {
    span: Span,
}

impl Word {
    /// The span must be 4 or 8 bytes long and aligned to its length.
    pub(crate) fn new(span: Span) -> Result<Self> {
        let aligned = span.pointer().addr().is_multiple_of(span.bytes());
        if !matches!(span.bytes(), 4 | 8) || !aligned {
            return Err(measured::STREAM_VALUE_ARGUMENT);
        }
        Ok(Self { span })
    }

    fn low(&self) -> &AtomicU32 {
        // SAFETY: the span is at least 4 bytes of mapped memory, aligned to 4, and lives as long as `self`. Other processes
        // may write it at any time, which is what an atomic is for; the host is little-endian, so these are the low bits.
        unsafe { AtomicU32::from_ptr(self.span.pointer().cast()) }
    }

    fn whole(&self) -> Option<&AtomicU64> {
        // SAFETY: as in `low`, for a span of 8 bytes aligned to 8.
        (self.span.bytes() == 8).then(|| unsafe { AtomicU64::from_ptr(self.span.pointer().cast()) })
    }

    fn load(&self) -> u64 {
        match self.whole() {
            Some(word) => word.load(Ordering::Acquire),
            None => u64::from(self.low().load(Ordering::Acquire)),
        }
    }

    /// Stores a value and wakes all who wait for the word.
    pub(crate) fn write(&self, value: u64) {
        // Everything the stream did before is visible before the value is.
        fence(Ordering::SeqCst);
        match self.whole() {
            Some(word) => word.store(value, Ordering::Release),
            None => self.low().store(u32::try_from(value & 0xffff_ffff).unwrap_or(0), Ordering::Release),
        }
        wake(self.low());
    }

    /// Returns when the word satisfies the condition, or with an error when the GPU that waits is lost.
    pub(crate) fn wait(&self, condition: Condition, value: u64, is_lost: impl Fn() -> bool) -> Result<()> {
        let bits = if self.span.bytes() == 8 { 64 } else { 32 };
        let (looks, lost) = (Cell::new(0_u32), Cell::new(false));
        wait_until(self.low(), || {
            looks.set(looks.get().wrapping_add(1));
            if looks.get() > SPINS && looks.get().is_multiple_of(LOOKS_PER_LIFE_SIGN) {
                lost.set(is_lost());
            }
            lost.get() || condition.holds(self.load(), value, bits)
        });
        if lost.get() { Err(measured::GPU_LOST) } else { Ok(()) }
    }
}

/// Wakes everybody who waits for a word, in any process.
pub(crate) fn wake(low: &AtomicU32) {
    // Fails only for a word that is not mapped, which a reference rules out.
    let _woken = futex::wake(low, futex::Flags::empty(), u32::MAX >> 1);
}

/// Waits until `done`, looking again whenever the word changes and at least every millisecond.
pub(crate) fn wait_until(low: &AtomicU32, done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
    loop {
        let seen = low.load(Ordering::Acquire);
        if done() {
            return;
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN_NS };
        // Woken, changed meanwhile, interrupted or timed out: each means to look again.
        let _look_again = futex::wait(low, futex::Flags::empty(), seen, Some(&limit));
    }
}

#[cfg(test)]
mod tests {
    use super::Condition;

    #[test]
    fn at_least_is_cyclic() {
        assert!(Condition::AtLeast.holds(5, 5, 64));
        assert!(Condition::AtLeast.holds(6, 5, 64));
        assert!(!Condition::AtLeast.holds(4, 5, 64));
        assert!(Condition::AtLeast.holds(1, u64::MAX, 64));
        assert!(Condition::AtLeast.holds(1, u64::from(u32::MAX), 32));
        assert!(!Condition::AtLeast.holds(u64::from(u32::MAX), 1, 32));
    }

    #[test]
    fn bit_conditions_look_at_bits() {
        assert!(Condition::And.holds(6, 2, 64) && !Condition::And.holds(5, 2, 64));
        assert!(Condition::Nor.holds(0, 0, 64) && !Condition::Nor.holds(u64::MAX, 0, 64));
        assert!(!Condition::Nor.holds(u64::from(u32::MAX), 0, 32));
    }
}
