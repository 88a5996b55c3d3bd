//! The application in a pod: an ordinary user of the client library that does what it is told over a pipe.
//!
//! The demo, the benchmark and the scenario tests start it inside their pods. One JSON command a line on standard
//! input, one JSON answer a line on standard output.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use gpu_handoff_client::{
    Acquire, Buffer, BufferId, Client, ClientError, Lease, LeaseState, Published, Watch,
};
use gpu_handoff_cuda::{PrimaryContext, VmmAllocation};

pub mod churn;
mod events;
mod fork;
mod late;
pub mod many;
mod memory;
pub mod order;
pub mod pingpong;
mod raw;
mod said;
mod sets;
pub mod stream;

pub use events::Told;
use memory::Memory;
pub use memory::MemoryKind;
pub use raw::{Mode as RawMode, RawTimes};
pub use said::{Answer, Command};

/// Now, on the machine's monotonic clock, which all processes share.
#[must_use]
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(t.tv_sec).unwrap_or(0), u64::try_from(t.tv_nsec).unwrap_or(0));
    seconds * 1_000_000_000 + nanos
}

fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}

/// Microseconds since.
pub(crate) fn us_since(begin: Instant) -> f64 {
    micros(begin.elapsed())
}

/// Obeys until standard input ends.
///
/// # Errors
/// When the pipes fail.
pub fn run() -> anyhow::Result<()> {
    let mut agent = Agent::default();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(command) => agent.obey(command).unwrap_or_else(|e| failed(&e)),
            Err(e) => Answer::Failed { error: format!("not a command: {e}") },
        };
        say(&answer)?;
    }
    Ok(())
}

fn say(answer: &Answer) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn failed(error: &anyhow::Error) -> Answer {
    match error.downcast_ref::<ClientError>().and_then(ClientError::refusal) {
        Some(refusal) => Answer::Refused { code: refusal.code().to_string(), text: refusal.to_string() },
        None => Answer::Failed { error: format!("{error:#}") },
    }
}

/// Dropped in the order of the fields: rights first, then memory, the context last.
#[derive(Default)]
struct Agent {
    orders: order::Orders,
    churn: Option<churn::Churn>,
    leases: HashMap<String, Lease>,
    published: HashMap<String, Published>,
    taker: Option<many::Taker>,
    watch: Option<Watch>,
    client: Option<Client>,
    memory: HashMap<String, Memory>,
    many: Vec<VmmAllocation>,
    context: Option<PrimaryContext>,
}

impl Agent {
    fn obey(&mut self, command: Command) -> anyhow::Result<Answer> {
        Ok(match command {
            Command::Connect { socket } => {
                let client = Client::builder().socket(socket).program("e2e agent").connect()?;
                let (pod, group) = (client.welcome().pod.to_string(), client.welcome().group.to_string());
                self.client = Some(client);
                Answer::Connected { pod, group }
            }
            Command::Fill { memory, bytes, kind, word } => self.fill(memory, bytes, kind, word)?,
            Command::Free { memory } => {
                self.memory.remove(&memory);
                Answer::Done { us: 0.0 }
            }
            Command::Export { memory } => Answer::Done { us: self.memory_mut(&memory)?.export()? },
            Command::Publish { memory, name } => self.publish(&memory, name, |buffer| buffer)?,
            Command::PublishLasting { memory, name } => {
                self.publish(&memory, name, |buffer| buffer.outlives_process())?
            }
            Command::RetireId { id, deadline_ms } => {
                let (id, deadline) = (id.parse::<BufferId>()?, Duration::from_millis(deadline_ms));
                Answer::Retired { leases: self.client()?.retire(id, deadline)? }
            }
            Command::PublishRange { memory, name, offset, bytes, word } => {
                self.memory_mut(&memory)?.fill_range(offset, bytes, word)?;
                let at = self.memory_mut(&memory)?.ptr() + offset;
                self.publish(&memory, name, |buffer| buffer.pointer(at, bytes))?
            }
            Command::PublishMany { first, count, bytes, metadata_bytes } => {
                self.make_context_current()?;
                let client = self.client()?;
                let begin = Instant::now();
                let many = many::publish(client, first..first + count, bytes, metadata_bytes)?;
                self.many.extend(many);
                Answer::Done { us: us_since(begin) }
            }
            Command::HandOff { socket, buffers, batch, begin_ns, millis, seed } => {
                if self.taker.is_none() {
                    self.taker = Some(many::Taker::connect(&socket)?);
                }
                let taker = self.taker.as_mut().ok_or_else(|| anyhow::anyhow!("not connected"))?;
                let work = many::Work { buffers, batch, begin_ns, millis, seed };
                Answer::HandedOff(taker.hand_off(&work)?)
            }
            Command::Acquire { name, id, newer_than, wait_ms, lease, announce } => {
                let wanted = match (name, id) {
                    (Some(name), _) => Acquire::named(&name)?,
                    (None, Some(id)) => Acquire::id(id.parse::<BufferId>()?),
                    (None, None) => anyhow::bail!("neither a name nor an id"),
                };
                let wanted = wanted.newer_than(newer_than).wait(Duration::from_millis(wait_ms));
                self.acquire(wanted, lease, announce)?
            }
            Command::Verify { lease, word } => self.verify(&lease, word)?,
            Command::Release { lease } => {
                let lease = self.leases.remove(&lease).ok_or_else(|| anyhow::anyhow!("no lease {lease}"))?;
                let begin = Instant::now();
                lease.release()?;
                Answer::Done { us: us_since(begin) }
            }
            Command::Retire { name, deadline_ms } => {
                let buffer =
                    self.published.remove(&name).ok_or_else(|| anyhow::anyhow!("no buffer {name}"))?;
                Answer::Retired { leases: buffer.retire(Duration::from_millis(deadline_ms))? }
            }
            Command::Watch => {
                self.watch = Some(self.client()?.watch()?);
                Answer::Done { us: 0.0 }
            }
            Command::NextEvent { timeout_ms } => self.next_event(Duration::from_millis(timeout_ms))?,
            Command::AwaitEvent { what, id, timeout_ms } => {
                self.await_event(&what, &id, Duration::from_millis(timeout_ms))?
            }
            Command::LeaseState { lease } => {
                Answer::LeaseState { state: self.lease_state(&lease)?.to_owned() }
            }
            Command::KeepToTheEnd => {
                late::keep(self.client()?)?;
                Answer::Done { us: 0.0 }
            }
            Command::Churn { work } => {
                self.churn = Some(churn::Churn::start(self.client()?.clone(), work)?);
                Answer::Done { us: 0.0 }
            }
            Command::EndChurn => {
                let churn = self.churn.take().ok_or_else(|| anyhow::anyhow!("no churn"))?;
                Answer::Churned(churn.end()?)
            }
            Command::Descriptors => {
                Answer::Descriptors { count: std::fs::read_dir("/proc/self/fd")?.count() }
            }
            Command::RawSend { socket, bytes, rounds, mode, pause_us, word } => {
                self.make_context_current()?;
                let pause = Duration::from_micros(pause_us);
                Answer::Raw(raw::send(&socket, &raw::Sending { bytes, rounds, mode, pause, word })?)
            }
            Command::Produce { plan, kind, bytes } => {
                self.make_context_current()?;
                Answer::Stream(stream::produce(self.client()?, &plan, kind, bytes)?)
            }
            Command::Consume { plan } => {
                self.make_context_current()?;
                Answer::Stream(stream::consume(self.client()?, &plan)?)
            }
            Command::Order(step) => self.order(step)?,
            Command::RawReceive { socket, rounds } => {
                self.make_context_current()?;
                Answer::Raw(raw::receive(&socket, rounds)?)
            }
        })
    }

    fn order(&mut self, step: order::Step) -> anyhow::Result<Answer> {
        self.make_context_current()?;
        let Self { orders, leases, published, memory, client, context, .. } = self;
        let client = client.as_ref().ok_or_else(|| anyhow::anyhow!("not connected"))?;
        Ok(Answer::Order(orders.take(step, &mut order::Rest { client, leases, published, memory, context })?))
    }

    fn client(&self) -> anyhow::Result<&Client> {
        self.client.as_ref().ok_or_else(|| anyhow::anyhow!("not connected"))
    }

    fn memory_mut(&mut self, name: &str) -> anyhow::Result<&mut Memory> {
        self.memory.get_mut(name).ok_or_else(|| anyhow::anyhow!("no memory {name}"))
    }

    /// The application's own context: the client library never makes one.
    fn make_context_current(&mut self) -> anyhow::Result<()> {
        if self.context.is_none() {
            self.context = Some(memory::first_device()?.retain_primary_context()?);
        }
        Ok(())
    }

    fn fill(&mut self, name: String, bytes: u64, kind: MemoryKind, word: u32) -> anyhow::Result<Answer> {
        self.make_context_current()?;
        if !self.memory.contains_key(&name) {
            self.memory.insert(name.clone(), Memory::create(kind, bytes)?);
        }
        let begin = Instant::now();
        self.memory_mut(&name)?.fill(word)?;
        Ok(Answer::Done { us: us_since(begin) })
    }

    fn publish(
        &mut self,
        memory: &str,
        name: String,
        how: impl for<'a> FnOnce(Buffer<'a>) -> Buffer<'a>,
    ) -> anyhow::Result<Answer> {
        let memory = self.memory.get(memory).ok_or_else(|| anyhow::anyhow!("no memory {memory}"))?;
        let buffer = how(memory.as_buffer(&name)?);
        let (began_ns, begin) = (now_ns(), Instant::now());
        let published = self.client()?.publish(buffer)?;
        let us = us_since(begin);
        let answer = Answer::Published {
            id: published.id().to_string(),
            generation: published.generation(),
            began_ns,
            us,
            exported_us: micros(published.took().exported),
        };
        self.published.insert(name, published);
        Ok(answer)
    }

    fn acquire(&mut self, wanted: Acquire, lease: String, announce: bool) -> anyhow::Result<Answer> {
        self.make_context_current()?;
        if announce {
            say(&Answer::Waiting)?;
        }
        let begin = Instant::now();
        let acquired = self.client()?.acquire(wanted)?;
        let (us, done_ns) = (us_since(begin), now_ns());
        let took = acquired.took();
        let answer = Answer::Acquired {
            id: acquired.info().id.to_string(),
            generation: acquired.info().generation,
            bytes: acquired.bytes(),
            done_ns,
            us,
            granted_us: micros(took.granted),
            mapped_us: micros(took.mapped),
        };
        self.leases.insert(lease, acquired);
        Ok(answer)
    }

    fn verify(&self, lease: &str, word: u32) -> anyhow::Result<Answer> {
        let lease = self.leases.get(lease).ok_or_else(|| anyhow::anyhow!("no lease {lease}"))?;
        let (words, wrong) = memory::count_wrong(lease.ptr(), lease.bytes(), word)?;
        Ok(Answer::Verified { words, wrong })
    }

    fn next_event(&mut self, timeout: Duration) -> anyhow::Result<Answer> {
        let watch = self.watch.as_mut().ok_or_else(|| anyhow::anyhow!("not watching"))?;
        let event = watch.recv_timeout(timeout)?;
        Ok(event.map_or(Answer::Nothing, |event| Answer::Event(Told::new(&event, now_ns()))))
    }

    fn await_event(&mut self, what: &str, id: &str, timeout: Duration) -> anyhow::Result<Answer> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next_event(left)? {
                Answer::Event(told) if told.what != what || told.id.as_deref().unwrap_or("") != id => {
                    if left.is_zero() {
                        return Ok(Answer::Nothing);
                    }
                }
                other => return Ok(other),
            }
        }
    }

    fn lease_state(&self, lease: &str) -> anyhow::Result<&'static str> {
        let lease = self.leases.get(lease).ok_or_else(|| anyhow::anyhow!("no lease {lease}"))?;
        Ok(match lease.state() {
            LeaseState::Held => "held",
            LeaseState::Retiring(_) => "retiring",
            LeaseState::Ended(_) => "ended",
            LeaseState::Lost => "lost",
            _ => "something else",
        })
    }
}
