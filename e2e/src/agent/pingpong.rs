//! Hand-offs of one slot that two pods use in turn, ordered on the GPU: through a ring, and through bare words of memory.

use std::time::Instant;

use anyhow::Context;
use gpu_handoff_client::{RingReader, RingWriter, Stream};
use gpu_handoff_cuda::{Driver, ops, stream};
use serde::{Deserialize, Serialize};

use super::us_since;

/// How many hand-offs, and how many of them the writing side queues before it waits for their end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Rounds {
    /// All of them. Few enough for a stream's queue.
    pub count: u64,
    /// Those that are queued at a time.
    pub batch: u64,
}

/// Writes; gives microseconds a hand-off, a value a batch: from the first call to the reader's last word.
pub(super) fn write(ring: &mut RingWriter, on: &Stream, rounds: Rounds) -> anyhow::Result<Vec<f64>> {
    let driver = Driver::load()?;
    ring.next_slot_on(on.stream())?;
    measured(rounds, |_| {
        for _ in 0..rounds.batch {
            ring.next_slot_on(on.stream())?;
            ring.hand_over_on(on.stream())?;
        }
        // The ring has one slot: this waits until the reader is done with the last hand-off.
        ring.next_slot_on(on.stream())?;
        Ok(stream::synchronize(driver, on.stream())?)
    })
}

/// Reads as many.
pub(super) fn read(ring: &mut RingReader, on: &Stream, rounds: Rounds) -> anyhow::Result<()> {
    for _ in 0..rounds.count {
        ring.next_on(on.stream())?;
        ring.done_on(on.stream())?;
    }
    Ok(stream::synchronize(Driver::load()?, on.stream())?)
}

/// The same by the driver's calls alone: one word says that it is ready, the next that it is done with.
pub(super) fn write_words(ptr: u64, from: u64, on: &Stream, rounds: Rounds) -> anyhow::Result<Vec<f64>> {
    let (driver, on) = (Driver::load()?, on.stream());
    measured(rounds, |begun| {
        for number in from + begun + 1..=from + begun + rounds.batch {
            ops::signal(driver, on, ptr, number)?;
            ops::wait_at_least(driver, on, ptr + 8, number)?;
        }
        Ok(stream::synchronize(driver, on)?)
    })
}

/// The other side of it.
pub(super) fn read_words(ptr: u64, from: u64, on: &Stream, rounds: Rounds) -> anyhow::Result<()> {
    let (driver, on) = (Driver::load()?, on.stream());
    for number in from + 1..=from + rounds.count {
        ops::wait_at_least(driver, on, ptr, number)?;
        ops::signal(driver, on, ptr + 8, number)?;
    }
    Ok(stream::synchronize(driver, on)?)
}

fn measured(rounds: Rounds, mut batch: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
    let batches = rounds.count.checked_div(rounds.batch).context("a batch of hand-offs")?;
    let each = f64::from(u32::try_from(rounds.batch)?);
    let mut times = Vec::new();
    for n in 0..batches {
        let begin = Instant::now();
        batch(n * rounds.batch)?;
        times.push(us_since(begin) / each);
    }
    Ok(times)
}
