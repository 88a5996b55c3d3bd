//! Hand-offs that are ordered on the GPU (`--timeline`): one slot that two pods use in turn, and how long a stream waits
//! for a peer that has been killed.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::ours::us_between;
use super::report::Percentiles;
use crate::agent::order::{Outcome, Step};
use crate::agent::pingpong::Rounds;
use crate::agent::{Answer, Command, MemoryKind, now_ns};
use crate::app::App;
use crate::folder::Folder;
use crate::gpu::Gpu;
use crate::node::{Member, Node};
use crate::pod::{Pod, Walls};

/// Hand-offs in one command: their calls fit into a stream's queue.
const IN_ONE: u64 = 400;
/// Commands whose times are not counted.
const WARM_UP: usize = 1;
/// Streams that wait for one killed peer. Fewer than a process's hardware queues (8): with 40 the H200's driver did not come
/// back from a call that queued one more wait.
const MANY_STREAMS: usize = 6;
/// How long a stream may wait for a killed peer, in milliseconds.
const PATIENCE_MS: u64 = 20_000;

/// How many are measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Commands of [`IN_ONE`] hand-offs, for each row.
    commands: usize,
    /// How often a peer is killed.
    kills: usize,
}

impl Plan {
    /// A long or a short one.
    #[must_use]
    pub const fn new(quick: bool) -> Self {
        if quick { Self { commands: 2, kills: 2 } } else { Self { commands: 25, kills: 20 } }
    }
}

/// How hand-offs are queued, and how long one takes.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Hand-offs that the writing side queues before it waits for the end of the last.
    batch: u64,
    hand_offs: u64,
    /// There and back, through a ring of one slot.
    ring: Option<Percentiles>,
    /// There and back, two words and the driver's calls alone.
    raw_words: Option<Percentiles>,
}

/// All that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    gpu: String,
    rows: Vec<Row>,
    kills: usize,
    /// From `kill -9` of a timeline's owner to the end of the work that waited for it.
    killed_to_idle: Option<Percentiles>,
    killed_to_idle_max_us: f64,
    /// The same with [`MANY_STREAMS`] streams of one process that wait, until the last of them has gone on; or what
    /// went wrong.
    many_streams_us: Result<f64, String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "One slot that two pods use in turn, ordered on the GPU, in µs a hand-off, there and back (p50 / p99):\n"
        )?;
        writeln!(f, "| queued at a time | hand-offs | ring of gpu-handoff | two words, driver alone |")?;
        writeln!(f, "|---|---|---|---|")?;
        for row in &self.rows {
            write!(f, "| {} | {} |", row.batch, row.hand_offs)?;
            for value in [row.ring, row.raw_words] {
                match value {
                    Some(p) => write!(f, " {:.1} / {:.1} |", p.p50_us, p.p99_us)?,
                    None => write!(f, " – |")?,
                }
            }
            writeln!(f)?;
        }
        let p50 = self.killed_to_idle.map_or(0.0, |p| p.p50_us / 1e3);
        write!(
            f,
            "\nA stream that waited for a word of a process that was then killed ({} times) went on {p50:.1} ms after the \
             kill, at most {:.1} ms after,\nand the client answered PEER_DIED each time.",
            self.kills,
            self.killed_to_idle_max_us / 1e3
        )?;
        match &self.many_streams_us {
            Ok(us) => write!(
                f,
                "\nOf {MANY_STREAMS} streams that waited, the last went on {:.1} ms after the kill.",
                us / 1e3
            ),
            Err(e) => write!(f, "\nOf {MANY_STREAMS} streams that waited, not all went on: {e}"),
        }
    }
}

/// Measures on a node of its own.
///
/// # Errors
/// When it cannot be run to its end, or a killed peer is not told of.
pub fn run(plan: Plan, folder: &Folder, gpu: &Arc<Gpu>, walls: Walls) -> anyhow::Result<Report> {
    let members = ["producer", "consumer"].map(|pod| Member { pod, group: "bench" });
    let node = Node::start(folder, Arc::clone(gpu), &members)?;
    let pods = [Pod::start(&node, "producer", walls)?, Pod::start(&node, "consumer", walls)?];
    let mut apps = [pods[0].connected(&node)?, pods[1].connected(&node)?];
    prepare(&mut apps)?;
    let mut rows = Vec::new();
    let mut words = 0;
    for batch in [1, 10] {
        let ring = Step::WriteSlot { name: "slot".into(), rounds: Rounds { count: IN_ONE, batch } };
        let read = Step::ReadSlot { name: "slot".into(), rounds: Rounds { count: IN_ONE, batch } };
        let ring = measure(&mut apps, plan.commands, || (ring.clone(), read.clone()))?;
        let raw = measure(&mut apps, plan.commands, || {
            let (rounds, from) = (Rounds { count: IN_ONE, batch }, words);
            words += IN_ONE;
            (
                Step::WriteWords { memory: "words".into(), from, rounds },
                Step::ReadWords { lease: "words".into(), from, rounds },
            )
        })?;
        let (hand_offs, ring) = (ring.len() as u64 * batch, Percentiles::of(&ring));
        rows.push(Row { batch, hand_offs, ring, raw_words: Percentiles::of(&raw) });
    }
    let killed = (0..plan.kills).map(|n| kill(&node, &pods[0], &mut apps[1], n, 1));
    let killed = killed.collect::<Result<Vec<_>, _>>()?;
    // Last, by an application of its own: should its streams stand still, it cannot be asked any more.
    let mut waiter = pods[1].connected(&node)?;
    let many_streams_us =
        kill(&node, &pods[0], &mut waiter, plan.kills, MANY_STREAMS).map_err(|e| format!("{e:#}"));
    match many_streams_us {
        Ok(_) => waiter.finish()?,
        Err(_) => waiter.kill()?,
    }
    apps.into_iter().try_for_each(App::finish)?;
    pods.into_iter().try_for_each(Pod::stop)?;
    node.stop()?;
    Ok(Report {
        gpu: gpu.to_string(),
        rows,
        kills: killed.len(),
        killed_to_idle: Percentiles::of(&killed),
        killed_to_idle_max_us: killed.iter().copied().fold(0.0, f64::max),
        many_streams_us,
    })
}

/// A ring of one slot with its reader, and two bare words that both sides reach.
fn prepare([writer, reader]: &mut [App; 2]) -> anyhow::Result<()> {
    writer.order(Step::Ring { name: "slot".into(), slots: 1, seats: 1 })?;
    reader.tell(&Command::Order(Step::Join { name: "slot".into() }))?;
    writer.order(Step::Readers { name: "slot".into(), count: 1 })?;
    reader.hear()?;
    writer.done(&Command::Fill { memory: "words".into(), bytes: 2 << 20, kind: MemoryKind::Vmm, word: 0 })?;
    let publish = Command::Publish { memory: "words".into(), name: "words".into() };
    writer.expect(
        &publish,
        |answer| if matches!(answer, Answer::Published { .. }) { Ok(()) } else { Err(answer) },
    )?;
    acquire(reader, "words")
}

fn acquire(app: &mut App, name: &str) -> anyhow::Result<()> {
    let (wait_ms, lease) = (PATIENCE_MS, name.to_owned());
    let command = Command::Acquire {
        name: Some(name.into()),
        id: None,
        newer_than: 0,
        wait_ms,
        lease,
        announce: false,
    };
    app.expect(
        &command,
        |answer| if matches!(answer, Answer::Acquired { .. }) { Ok(()) } else { Err(answer) },
    )
}

fn measure(
    [writer, reader]: &mut [App; 2],
    commands: usize,
    mut next: impl FnMut() -> (Step, Step),
) -> anyhow::Result<Vec<f64>> {
    let mut all = Vec::new();
    for command in 0..WARM_UP + commands {
        let (write, read) = next();
        reader.tell(&Command::Order(read))?;
        let times = writer.expect(&Command::Order(write), |answer| match answer {
            Answer::Order(Outcome::Times { us }) => Ok(us),
            other => Err(other),
        })?;
        match reader.hear()? {
            Answer::Order(Outcome::Done) => {}
            other => anyhow::bail!("the reading side answered {other:?}"),
        }
        if command >= WARM_UP {
            all.extend(times);
        }
    }
    Ok(all)
}

/// Microseconds from the kill of a timeline's owner to the end of the work of the streams that waited for it.
fn kill(node: &Node, pod: &Pod, waiter: &mut App, n: usize, streams: usize) -> anyhow::Result<f64> {
    let mut owner = pod.connected(node)?;
    let line = format!("line-{n}");
    owner.order(Step::Timeline { name: line.clone(), words: 8, reserve: 8 })?;
    waiter.order(Step::AcquireTimeline { name: line.clone() })?;
    for stream in 0..streams {
        let stream = format!("victim-{stream}");
        waiter.order(Step::Wait { timeline: line.clone(), stream, word: 3, value: 1 })?;
    }
    let idle = |stream: usize| {
        Command::Order(Step::Idle { stream: format!("victim-{stream}"), timeout_ms: PATIENCE_MS })
    };
    waiter.tell(&idle(0))?;
    let killed_ns = now_ns();
    owner.kill()?;
    let mut at_ns = 0;
    for stream in 0..streams {
        match if stream == 0 { waiter.hear()? } else { waiter.ask(&idle(stream))? } {
            Answer::Order(Outcome::Idle { at_ns: at }) => at_ns = at,
            other => anyhow::bail!("stream {stream} did not go on: {other:?}"),
        }
    }
    match waiter.ask(&Command::Order(Step::Check { timeline: line.clone(), word: 3, value: 1 }))? {
        Answer::Refused { code, .. } if code == "PEER_DIED" => {}
        other => anyhow::bail!("the client answered {other:?} instead of PEER_DIED"),
    }
    waiter.order(Step::DropTimeline { name: line })?;
    owner.reap()?;
    Ok(us_between(killed_ns, at_ns))
}
