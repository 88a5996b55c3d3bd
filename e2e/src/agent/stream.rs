//! Hand-offs one after the other, driven by the two applications themselves: nobody else has a part in the rounds. Where
//! buffers are fresh the two pace each other over a socket of their own, just as the raw driver's rounds are paced: the
//! consumer says that it waits for the next one, and that it has given it back.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpu_handoff_client::{Acquire, Client, Lease, Published};
use gpu_handoff_cuda::raw::Raw;
use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket::RecvBuffer;
use serde::{Deserialize, Serialize};

use super::memory::{Memory, MemoryKind};
use super::raw::{accept, connect, deadline, next};
use super::{micros, now_ns, us_since};

/// How long a consumer waits for a buffer.
const WAIT: Duration = Duration::from_secs(10);

/// What is handed over in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Supply {
    /// New memory, exported and published while the consumer waits for it.
    Fresh,
    /// One piece of memory, published before under a name for each round.
    Published,
    /// One buffer again and again.
    Same,
}

/// What both sides agree on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The socket of the two; the producer listens.
    pub socket: PathBuf,
    /// What is handed over.
    pub supply: Supply,
    /// How often.
    pub rounds: usize,
    /// What the names begin with.
    pub prefix: String,
    /// How long the side that begins a round rests before, in microseconds.
    pub pause_us: u64,
}

impl Plan {
    fn rest(&self) {
        if self.pause_us > 0 {
            std::thread::sleep(Duration::from_micros(self.pause_us));
        }
    }

    fn name(&self, round: usize) -> String {
        let number = if self.supply == Supply::Same { 0 } else { round };
        format!("{}-{number}", self.prefix)
    }
}

/// What one side measured, a value a round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StreamTimes {
    /// When the buffer was ready (producer of fresh ones) or readable (consumer), on the machine's monotonic clock.
    pub at_ns: Vec<u64>,
    /// Microseconds for exporting (producer) or importing and mapping (consumer).
    pub driver_us: Vec<f64>,
    /// Microseconds that the node's check took (producer of fresh ones that can be checked).
    pub checked_us: Vec<f64>,
    /// Microseconds until the node's grant (consumer).
    pub granted_us: Vec<f64>,
    /// Microseconds of the whole acquire (consumer).
    pub acquire_us: Vec<f64>,
}

pub(super) fn produce(
    client: &Client,
    plan: &Plan,
    kind: MemoryKind,
    bytes: u64,
) -> anyhow::Result<StreamTimes> {
    match plan.supply {
        Supply::Fresh => produce_fresh(client, plan, kind, bytes),
        Supply::Published | Supply::Same => produce_before(client, plan, kind, bytes),
    }
}

fn produce_fresh(client: &Client, plan: &Plan, kind: MemoryKind, bytes: u64) -> anyhow::Result<StreamTimes> {
    let peer = accept(&plan.socket)?;
    let (mut buffer, mut times) = (RecvBuffer::new(), StreamTimes::default());
    for round in 0..plan.rounds {
        let memory = Memory::create(kind, bytes)?;
        memory.fill(0x5EED_F00D)?;
        plan.rest();
        next(&peer, &mut buffer)?; // The consumer waits for it, most likely for long.
        times.at_ns.push(now_ns());
        let published = client.publish(memory.as_buffer(&plan.name(round))?)?;
        times.driver_us.push(micros(published.took().exported));
        times.checked_us.extend(published.checked().map(micros));
        next(&peer, &mut buffer)?; // The consumer has given it back.
        let free = free_memory()?;
        published.retire(Duration::ZERO)?;
        drop(memory);
        if kind == MemoryKind::Vmm {
            // As the raw driver's rounds do, which free all of theirs before the next begins: whoever closes the last
            // descriptor frees the memory, and the driver makes everybody else's calls wait for that.
            // No rest between the looks: everybody would have to be woken again.
            let deadline = Instant::now() + WAIT;
            while free_memory()? < free + bytes {
                anyhow::ensure!(Instant::now() < deadline, "the memory was not back within {WAIT:?}");
            }
        }
    }
    Ok(times)
}

/// Free memory of the current context's device, in bytes.
fn free_memory() -> anyhow::Result<u64> {
    let (free, _) = Raw::load()?.mem_info().map_err(|status| anyhow::anyhow!("cuMemGetInfo: {status:?}"))?;
    Ok(free)
}

/// Publishes all that the consumer will ask for, and waits for its end.
fn produce_before(client: &Client, plan: &Plan, kind: MemoryKind, bytes: u64) -> anyhow::Result<StreamTimes> {
    let mut memory = Memory::create(kind, bytes)?;
    memory.fill(0x5EED_F00D)?;
    if memory.is_vmm() {
        memory.export()?;
    }
    let count = if plan.supply == Supply::Same { 1 } else { plan.rounds };
    let published = (0..count).map(|round| Ok(client.publish(memory.as_buffer(&plan.name(round))?)?));
    let published: Vec<Published> = published.collect::<anyhow::Result<_>>()?;
    next(&accept(&plan.socket)?, &mut RecvBuffer::new())?;
    for buffer in published {
        buffer.retire(Duration::ZERO)?;
    }
    Ok(StreamTimes::default())
}

pub(super) fn consume(client: &Client, plan: &Plan) -> anyhow::Result<StreamTimes> {
    let peer = connect(&plan.socket)?;
    let mut times = StreamTimes::default();
    if plan.supply == Supply::Same {
        acquire(client, plan, 0)?.release()?;
    }
    for round in 0..plan.rounds {
        if plan.supply == Supply::Fresh {
            peer.send(&word(), deadline())?;
        } else {
            plan.rest();
        }
        let begin = Instant::now();
        let lease = acquire(client, plan, round)?;
        times.acquire_us.push(us_since(begin));
        times.at_ns.push(now_ns());
        times.granted_us.push(micros(lease.took().granted));
        times.driver_us.push(micros(lease.took().mapped));
        lease.release()?;
        if plan.supply == Supply::Fresh {
            peer.send(&word(), deadline())?;
        }
    }
    peer.send(&word(), deadline())?;
    Ok(times)
}

fn acquire(client: &Client, plan: &Plan, round: usize) -> anyhow::Result<Lease> {
    Ok(client.acquire(Acquire::named(&plan.name(round))?.wait(WAIT))?)
}

fn word() -> Outgoing {
    Outgoing { bytes: vec![1], descriptors: Vec::new() }
}
