//! Streams, timelines, ordered buffers, rings and sets: what an application does with them when it is told.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpu_handoff_client::{
    Acquire, AcquireSet, Client, Lease, LeaseSet, Published, PublishedSet, RingReader, RingWriter, Stream,
    Timeline,
};
use gpu_handoff_cuda::{Driver, PrimaryContext, ops, stream};
use serde::{Deserialize, Serialize};

use super::memory::Memory;
use super::pingpong::{self, Rounds};
use super::{fork, now_ns, sets};

/// What an application can be told to do in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the fields are what the line above each variant names, in its order")]
pub enum Step {
    /// Make a timeline of so many words.
    Timeline { name: String, words: u32, reserve: u32 },
    /// Acquire another's timeline.
    AcquireTimeline { name: String },
    /// Have a stream write a word.
    Signal { timeline: String, stream: String, word: u32, value: u64 },
    /// Have a stream wait for a word.
    Wait { timeline: String, stream: String, word: u32, value: u64 },
    /// Wait for a word on this thread.
    WaitHere { timeline: String, word: u32, value: u64, timeout_ms: u64 },
    /// Whether a word was or can be reached.
    Check { timeline: String, word: u32, value: u64 },
    /// Publish memory that is ready after the stream's work.
    PublishOn { memory: String, name: String, stream: String, timeline: String, seats: u32 },
    /// Have a stream wait for a leased buffer.
    WaitOn { lease: String, stream: String },
    /// Whether a leased buffer is or can become ready.
    CheckLease { lease: String },
    /// Give a lease back after the stream's work.
    ReleaseOn { lease: String, stream: String },
    /// Retire a buffer, and have the stream wait for its holders.
    RetireOn { name: String, stream: String },
    /// Have a stream write the first word of memory.
    WriteOn { memory: String, stream: String, value: u64 },
    /// The first word of memory, as it is now.
    Read { memory: String },
    /// The first word of a leased buffer, as it is now.
    ReadLease { lease: String },
    /// Wait until a stream has done everything.
    Synchronize { stream: String },
    /// When a stream had done everything, waiting so long for it.
    Idle { stream: String, timeout_ms: u64 },
    /// Publish a set of so many small pieces of memory; the one of this index cannot be published.
    PublishSet { name: String, count: usize, bad: Option<usize> },
    /// Acquire a set.
    AcquireSet { name: String, newer_than: u64, wait_ms: u64 },
    /// Look whether each buffer of the acquired set holds its index.
    VerifySet { name: String },
    /// Let go of an acquired set.
    DropSet { name: String },
    /// Make a ring.
    Ring { name: String, slots: u32, seats: u32 },
    /// Wait for readers of the ring.
    Readers { name: String, count: usize },
    /// Join a ring.
    Join { name: String },
    /// Write so many numbers into a ring, each hand-off its own.
    WriteRing { name: String, count: u64 },
    /// Read so many numbers from a ring.
    ReadRing { name: String, count: u64 },
    /// Let go of a timeline.
    DropTimeline { name: String },
    /// Let go of a ring that this application writes.
    DropRing { name: String },
    /// Hand the one slot of a ring over, so often.
    WriteSlot { name: String, rounds: Rounds },
    /// Read it as often.
    ReadSlot { name: String, rounds: Rounds },
    /// The same by two words of memory, above this number.
    WriteWords { memory: String, from: u64, rounds: Rounds },
    /// The other side of it.
    ReadWords { lease: String, from: u64, rounds: Rounds },
    /// Call everything in a forked child.
    Fork,
}

/// What comes of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "came", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the fields are what the line above each variant names, in its order")]
pub enum Outcome {
    /// It is done.
    Done,
    /// A number: a word, or a generation.
    Number { value: u64 },
    /// A stream had done everything at that time, on the machine's monotonic clock.
    Idle { at_ns: u64 },
    /// A stream had not in time.
    Busy,
    /// How long hand-offs took, in microseconds.
    Times { us: Vec<f64> },
    /// How many buffers or numbers were right, and how many not.
    Looked { right: u64, wrong: u64 },
    /// What a forked child could do that it must not, by name.
    Forked { failed: Vec<String> },
}

/// What an application has of all this. Dropped in the order of the fields.
#[derive(Default)]
pub(super) struct Orders {
    pub(super) readers: HashMap<String, RingReader>,
    pub(super) writers: HashMap<String, RingWriter>,
    pub(super) lease_sets: HashMap<String, LeaseSet>,
    pub(super) published_sets: HashMap<String, PublishedSet>,
    pub(super) timelines: HashMap<String, Timeline>,
    pieces: Vec<Memory>,
    streams: HashMap<String, Stream>,
}

/// What the application has besides.
pub(super) struct Rest<'a> {
    pub(super) client: &'a Client,
    pub(super) leases: &'a mut HashMap<String, Lease>,
    pub(super) published: &'a mut HashMap<String, Published>,
    pub(super) memory: &'a HashMap<String, Memory>,
    pub(super) context: &'a mut Option<PrimaryContext>,
}

/// How long rings wait for each other.
const PATIENCE: Duration = Duration::from_secs(20);
/// Size of a set's buffers and a ring's slots, in bytes.
pub(super) const SMALL: u64 = 4096;

impl Orders {
    pub(super) fn take(&mut self, step: Step, rest: &mut Rest<'_>) -> anyhow::Result<Outcome> {
        let driver = Driver::load()?;
        match step {
            Step::Timeline { .. }
            | Step::AcquireTimeline { .. }
            | Step::Signal { .. }
            | Step::Wait { .. }
            | Step::WaitHere { .. }
            | Step::Check { .. }
            | Step::DropTimeline { .. }
            | Step::WriteWords { .. }
            | Step::ReadWords { .. } => self.with_words(step, rest),
            Step::PublishOn { .. }
            | Step::WaitOn { .. }
            | Step::CheckLease { .. }
            | Step::ReleaseOn { .. }
            | Step::RetireOn { .. }
            | Step::WriteOn { .. }
            | Step::Read { .. }
            | Step::ReadLease { .. }
            | Step::Synchronize { .. }
            | Step::Idle { .. } => self.with_buffers(driver, step, rest),
            other => self.with_many(driver, other, rest),
        }
    }

    /// Timelines and their words, and bare ones.
    fn with_words(&mut self, step: Step, rest: &mut Rest<'_>) -> anyhow::Result<Outcome> {
        match step {
            Step::Timeline { name, words, reserve } => {
                let timeline = rest.client.create_timeline(&name, words)?;
                timeline.reserve(0..reserve)?;
                self.timelines.insert(name, timeline);
            }
            Step::AcquireTimeline { name } => {
                let wanted = Acquire::named(&name)?.wait(PATIENCE);
                self.timelines.insert(name, rest.client.acquire_timeline(wanted)?);
            }
            Step::Signal { timeline, stream, word, value } => {
                self.make_stream(&stream)?;
                self.timeline(&timeline)?.signal(self.stream(&stream)?.stream(), word, value)?;
            }
            Step::Wait { timeline, stream, word, value } => {
                self.make_stream(&stream)?;
                self.timeline(&timeline)?.wait(self.stream(&stream)?.stream(), word, value)?;
            }
            Step::WaitHere { timeline, word, value, timeout_ms } => {
                self.timeline(&timeline)?.wait_here(word, value, Duration::from_millis(timeout_ms))?;
            }
            Step::Check { timeline, word, value } => self.timeline(&timeline)?.check(word, value)?,
            Step::DropTimeline { name } => drop(self.timelines.remove(&name)),
            Step::WriteWords { memory, from, rounds } => {
                self.make_stream("slot")?;
                let ptr = memory_of(rest.memory, &memory)?.ptr();
                return Ok(Outcome::Times {
                    us: pingpong::write_words(ptr, from, self.stream("slot")?, rounds)?,
                });
            }
            Step::ReadWords { lease, from, rounds } => {
                self.make_stream("slot")?;
                let ptr = lease_of(rest.leases, &lease)?.ptr();
                pingpong::read_words(ptr, from, self.stream("slot")?, rounds)?;
            }
            other => anyhow::bail!("not here: {other:?}"),
        }
        Ok(Outcome::Done)
    }

    /// Ordered buffers, and what streams do.
    fn with_buffers(&mut self, driver: Driver, step: Step, rest: &mut Rest<'_>) -> anyhow::Result<Outcome> {
        match step {
            Step::PublishOn { memory, name, stream, timeline, seats } => {
                self.make_stream(&stream)?;
                let buffer = memory_of(rest.memory, &memory)?.as_buffer(&name)?.seats(seats);
                let (stream, timeline) = (self.stream(&stream)?, self.timeline(&timeline)?);
                rest.published.insert(name, rest.client.publish_on(stream.stream(), buffer, timeline)?);
            }
            Step::WaitOn { lease, stream } => {
                self.make_stream(&stream)?;
                lease_of(rest.leases, &lease)?.wait_on(self.stream(&stream)?.stream())?;
            }
            Step::CheckLease { lease } => lease_of(rest.leases, &lease)?.check()?,
            Step::ReleaseOn { lease, stream } => {
                self.make_stream(&stream)?;
                let lease = rest.leases.remove(&lease).context("no such lease")?;
                lease.release_on(self.stream(&stream)?.stream())?;
            }
            Step::RetireOn { name, stream } => {
                self.make_stream(&stream)?;
                let published = rest.published.remove(&name).context("no such buffer")?;
                published.retire_on(self.stream(&stream)?.stream(), PATIENCE)?;
            }
            Step::WriteOn { memory, stream, value } => {
                self.make_stream(&stream)?;
                let ptr = memory_of(rest.memory, &memory)?.ptr();
                ops::signal(driver, self.stream(&stream)?.stream(), ptr, value)?;
            }
            Step::Read { memory } => return now(driver, memory_of(rest.memory, &memory)?.ptr()),
            Step::ReadLease { lease } => return now(driver, lease_of(rest.leases, &lease)?.ptr()),
            Step::Synchronize { stream } => stream::synchronize(driver, self.stream(&stream)?.stream())?,
            Step::Idle { stream, timeout_ms } => {
                return idle(driver, self.stream(&stream)?, Duration::from_millis(timeout_ms));
            }
            other => anyhow::bail!("not here: {other:?}"),
        }
        Ok(Outcome::Done)
    }

    /// Sets, rings, and all together.
    fn with_many(&mut self, driver: Driver, step: Step, rest: &mut Rest<'_>) -> anyhow::Result<Outcome> {
        match step {
            Step::PublishSet { name, count, bad } => {
                let (set, pieces) = sets::publish(rest.client, &name, count, bad)?;
                let value = set.generation();
                self.published_sets.insert(name, set);
                self.pieces.extend(pieces);
                return Ok(Outcome::Number { value });
            }
            Step::AcquireSet { name, newer_than, wait_ms } => {
                let wanted = AcquireSet::named(&name)?.newer_than(newer_than);
                let set = rest.client.acquire_set(wanted.wait(Duration::from_millis(wait_ms)))?;
                let value = set.generation();
                self.lease_sets.insert(name, set);
                return Ok(Outcome::Number { value });
            }
            Step::VerifySet { name } => {
                return sets::verify(driver, self.lease_sets.get(&name).context("no such set")?);
            }
            Step::DropSet { name } => drop(self.lease_sets.remove(&name)),
            Step::Ring { name, slots, seats } => {
                let ring = rest.client.create_ring(&name, slots, SMALL, seats)?;
                self.writers.insert(name, ring);
            }
            Step::Readers { name, count } => {
                self.writers.get_mut(&name).context("no such ring")?.wait_for_readers(count, PATIENCE)?;
            }
            Step::Join { name } => {
                let ring = rest.client.join_ring(Acquire::named(&name)?.wait(PATIENCE), PATIENCE)?;
                self.readers.insert(name, ring);
            }
            Step::DropRing { name } => drop(self.writers.remove(&name)),
            Step::WriteRing { name, count } => self.write_ring(driver, &name, count)?,
            Step::ReadRing { name, count } => return self.read_ring(driver, &name, count),
            Step::WriteSlot { name, rounds } => {
                self.make_stream("slot")?;
                let ring = self.writers.get_mut(&name).context("no such ring")?;
                let us = pingpong::write(ring, self.streams.get("slot").context("a stream")?, rounds)?;
                return Ok(Outcome::Times { us });
            }
            Step::ReadSlot { name, rounds } => {
                self.make_stream("slot")?;
                let ring = self.readers.get_mut(&name).context("no such ring")?;
                pingpong::read(ring, self.streams.get("slot").context("a stream")?, rounds)?;
            }
            Step::Fork => return Ok(Outcome::Forked { failed: fork::try_everything(self, rest)? }),
            other => anyhow::bail!("not here: {other:?}"),
        }
        Ok(Outcome::Done)
    }

    fn write_ring(&mut self, driver: Driver, name: &str, count: u64) -> anyhow::Result<()> {
        self.make_stream("ring")?;
        let stream = self.streams.get("ring").context("a stream")?.stream();
        let ring = self.writers.get_mut(name).context("no such ring")?;
        for _ in 0..count {
            let slot = ring.next_slot_on(stream)?;
            // First and last word: a slot that is written while it is read shows two numbers.
            ops::signal(driver, stream, slot.ptr, slot.number + 1)?;
            ops::signal(driver, stream, slot.ptr + slot.bytes - 8, slot.number + 1)?;
            ring.hand_over_on(stream)?;
        }
        Ok(())
    }

    fn read_ring(&mut self, driver: Driver, name: &str, count: u64) -> anyhow::Result<Outcome> {
        self.make_stream("ring")?;
        let stream = self.streams.get("ring").context("a stream")?.stream();
        let ring = self.readers.get_mut(name).context("no such ring")?;
        let (mut right, mut wrong) = (0, 0);
        for _ in 0..count {
            let slot = ring.next_on(stream)?;
            let last = ops::load(driver, stream, slot.ptr + slot.bytes - 8)?;
            let first = ops::load(driver, stream, slot.ptr)?;
            ring.check()?;
            ring.done_on(stream)?;
            if (first, last) == (slot.number + 1, slot.number + 1) { right += 1 } else { wrong += 1 }
        }
        Ok(Outcome::Looked { right, wrong })
    }

    fn make_stream(&mut self, name: &str) -> anyhow::Result<()> {
        if !self.streams.contains_key(name) {
            self.streams.insert(name.to_owned(), Stream::create(Driver::load()?)?);
        }
        Ok(())
    }

    pub(super) fn stream(&self, name: &str) -> anyhow::Result<&Stream> {
        self.streams.get(name).with_context(|| format!("no stream {name}"))
    }

    fn timeline(&self, name: &str) -> anyhow::Result<&Timeline> {
        self.timelines.get(name).with_context(|| format!("no timeline {name}"))
    }
}

fn memory_of<'a>(memory: &'a HashMap<String, Memory>, name: &str) -> anyhow::Result<&'a Memory> {
    memory.get(name).with_context(|| format!("no memory {name}"))
}

fn lease_of<'a>(leases: &'a HashMap<String, Lease>, name: &str) -> anyhow::Result<&'a Lease> {
    leases.get(name).with_context(|| format!("no lease {name}"))
}

/// A word, whatever the streams wait for.
fn now(driver: Driver, ptr: u64) -> anyhow::Result<Outcome> {
    let own = Stream::create(driver)?;
    Ok(Outcome::Number { value: ops::load(driver, own.stream(), ptr)? })
}

fn idle(driver: Driver, stream: &Stream, timeout: Duration) -> anyhow::Result<Outcome> {
    let begin = Instant::now();
    loop {
        if stream::is_idle(driver, stream.stream())? {
            return Ok(Outcome::Idle { at_ns: now_ns() });
        }
        if begin.elapsed() >= timeout {
            return Ok(Outcome::Busy);
        }
        std::thread::yield_now();
    }
}
