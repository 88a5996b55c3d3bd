//! Two pods' applications that behave well, and how long their hand-offs take.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::node::PATIENCE;

use crate::scene::{acquire, fill, publish, verify};

/// What a pair has done.
#[derive(Default)]
pub(crate) struct Rounds {
    /// How often it has handed its buffer over.
    count: AtomicU64,
    /// How long that took each time, since the list was last taken.
    times: Mutex<Vec<Duration>>,
}

impl Rounds {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The 99th percentile of what the pair's hand-offs took since this was asked last, but for so few the second slowest:
    /// one hand-off alone may have met with another program.
    pub(crate) fn slowest(&self) -> Duration {
        let mut times = std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner));
        times.sort_unstable();
        let above = (times.len() / 100).max(1);
        times.iter().rev().nth(above).or(times.last()).copied().unwrap_or_default()
    }
}

/// A producer and a consumer that hand one buffer over.
pub(crate) struct Pair {
    producer: App,
    consumer: App,
    generation: u64,
}

impl Pair {
    /// Two applications that have connected; hands over once.
    pub(crate) fn start(mut producer: App, consumer: App) -> anyhow::Result<Self> {
        fill(&mut producer)?;
        let mut pair = Self { producer, consumer, generation: 0 };
        // Starts the GPU worker, whose descriptors count.
        pair.hand_over()?;
        Ok(pair)
    }

    /// Hands over again and again.
    pub(crate) fn go_on(&mut self, stop: &AtomicBool, rounds: &Rounds) -> anyhow::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            self.hand_over()?;
            rounds.times.lock().unwrap_or_else(PoisonError::into_inner).push(begin.elapsed());
            rounds.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn hand_over(&mut self) -> anyhow::Result<()> {
        publish(&mut self.producer, "good")?;
        let acquire = acquire("good", self.generation, PATIENCE);
        self.generation = self.consumer.expect(&acquire, |answer| match answer {
            Answer::Acquired { generation, .. } => Ok(generation),
            other => Err(other),
        })?;
        verify(&mut self.consumer)?;
        self.consumer.done(&Command::Release { lease: "lease".to_owned() })?;
        self.producer.expect(&Command::Retire { name: "good".to_owned(), deadline_ms: 0 }, |answer| {
            match answer {
                Answer::Retired { leases: 0 } => Ok(()),
                other => Err(other),
            }
        })
    }

    /// Lets both end by themselves.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        self.producer.finish()?;
        self.consumer.finish()
    }
}
