//! Load: an application that publishes, retires, acquires and releases all the time, in a thread of its own, and looks at
//! what it acquires.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gpu_handoff_client::{Acquire, Client, ClientError, Lease, Published};
use serde::{Deserialize, Serialize};

use super::many::Random;
use super::memory::{self, Memory, MemoryKind};

/// Size of each buffer, in bytes.
pub const BYTES: u64 = 2 << 20;
/// Bytes of a buffer that are looked at.
const LOOKED_AT: u64 = 4 << 10;
/// Buffers that stay published at a time.
const PUBLISHED: usize = 3;
/// Leases that are held at a time.
const HELD: usize = 3;
/// Longest deadline of a retire.
const DEADLINE_MS: usize = 50;
/// Failures that are kept in full.
const FAILURES: usize = 20;

/// What is done.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Work {
    /// This application's number.
    pub number: usize,
    /// How many applications do the same.
    pub of: usize,
    /// Longest pause between two steps, in microseconds.
    pub pause_us: usize,
    /// What the sequence of steps begins with.
    pub seed: u64,
}

/// What became of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Churned {
    /// Buffers published.
    pub published: u64,
    /// Buffers acquired.
    pub acquired: u64,
    /// Leases released.
    pub released: u64,
    /// Buffers that held something else than their publisher wrote.
    pub wrong: u64,
    /// What was refused, by `operation CODE`.
    pub refused: BTreeMap<String, u64>,
    /// The first failures that were no refusals.
    pub failed: Vec<String>,
}

/// A thread that does it. Ends when it is dropped.
pub(super) struct Churn {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<Churned>>>,
}

impl Churn {
    pub(super) fn start(client: Client, work: Work) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("churn".to_owned())
            .spawn(move || run(&client, work, &stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    pub(super) fn end(mut self) -> anyhow::Result<Churned> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.and_then(Result::ok).ok_or_else(|| anyhow::anyhow!("the thread broke off"))?
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What broke off has been told on standard error.
            let _ = thread.join();
        }
    }
}

/// Dropped in the order of the fields: leases first, then what is published, its memory last.
struct Busy<'a> {
    client: &'a Client,
    work: Work,
    random: Random,
    leases: VecDeque<Lease>,
    published: VecDeque<(Published, Memory)>,
    /// Of what was published last: it only ever rises.
    generation: u64,
    done: Churned,
}

fn run(client: &Client, work: Work, stop: &AtomicBool) -> anyhow::Result<Churned> {
    let _context = memory::first_device()?.retain_primary_context()?;
    let random = Random(work.seed);
    let (leases, published) = (VecDeque::new(), VecDeque::new());
    let mut busy = Busy { client, work, random, leases, published, generation: 0, done: Churned::default() };
    while !stop.load(Ordering::Relaxed) && !client.is_closed() {
        busy.step();
        let pause = busy.random.below(work.pause_us + 1);
        std::thread::sleep(Duration::from_micros(u64::try_from(pause)?));
    }
    while let Some(lease) = busy.leases.pop_front() {
        busy.release(lease);
    }
    while let Some((buffer, memory)) = busy.published.pop_front() {
        busy.retire(buffer, memory);
    }
    Ok(busy.done)
}

impl Busy<'_> {
    fn step(&mut self) {
        if self.random.below(5) < 2 {
            self.publish();
        } else {
            self.acquire();
        }
    }

    fn publish(&mut self) {
        let word = u32::try_from(self.random.number() >> 32).unwrap_or(0);
        let made =
            Memory::create(MemoryKind::Vmm, BYTES).and_then(|memory| memory.fill(word).map(|()| memory));
        let memory = match made {
            Ok(memory) => memory,
            Err(e) => return self.failed("make memory", &format!("{e:#}")),
        };
        let name = name(self.work.number);
        let published = memory.as_buffer(&name).map(|b| self.client.publish(b.metadata(word.to_ne_bytes())));
        match published {
            Ok(Ok(published)) => {
                self.done.published += 1;
                let generation = published.generation();
                if generation <= self.generation {
                    self.failed("publish", &format!("generation {generation} after {}", self.generation));
                }
                self.generation = generation;
                self.published.push_back((published, memory));
            }
            Ok(Err(e)) => self.not_done("publish", &e),
            Err(e) => self.failed("publish", &format!("{e:#}")),
        }
        if self.published.len() > PUBLISHED
            && let Some((buffer, memory)) = self.published.pop_front()
        {
            self.retire(buffer, memory);
        }
    }

    fn retire(&mut self, buffer: Published, memory: Memory) {
        let deadline = self.random.below(DEADLINE_MS);
        let deadline = Duration::from_millis(u64::try_from(deadline).unwrap_or(0));
        if let Err(e) = buffer.retire(deadline) {
            self.not_done("retire", &e);
        }
        drop(memory);
    }

    fn acquire(&mut self) {
        let name = name(self.random.below(self.work.of));
        match Acquire::named(&name).and_then(|wanted| self.client.acquire(wanted)) {
            Ok(lease) => {
                self.done.acquired += 1;
                self.look(&lease);
                self.leases.push_back(lease);
            }
            Err(e) => self.not_done("acquire", &e),
        }
        if self.leases.len() > HELD
            && let Some(lease) = self.leases.pop_front()
        {
            self.release(lease);
        }
    }

    fn look(&mut self, lease: &Lease) {
        let said = lease.info().facts.metadata.user.as_slice().try_into().map(u32::from_ne_bytes);
        let Ok(word) = said else {
            self.done.wrong += 1;
            return;
        };
        match memory::count_wrong(lease.ptr(), LOOKED_AT, word) {
            Ok((_, 0)) => {}
            Ok(_) => self.done.wrong += 1,
            Err(e) => self.failed("look", &format!("{e:#}")),
        }
    }

    fn release(&mut self, lease: Lease) {
        match lease.release() {
            Ok(()) => self.done.released += 1,
            Err(e) => self.not_done("release", &e),
        }
    }

    fn not_done(&mut self, what: &str, error: &ClientError) {
        match error.refusal() {
            Some(refusal) => {
                *self.done.refused.entry(format!("{what} {}", refusal.code())).or_default() += 1;
            }
            None => self.failed(what, &error.to_string()),
        }
    }

    fn failed(&mut self, what: &str, error: &str) {
        if self.done.failed.len() < FAILURES {
            self.done.failed.push(format!("{what}: {error}"));
        }
    }
}

/// What an application of this number publishes.
fn name(number: usize) -> String {
    format!("churn-{number}")
}
