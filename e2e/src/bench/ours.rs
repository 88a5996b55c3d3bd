//! Through gpu-handoff: publish in one pod, acquire in the other.

use std::path::PathBuf;

use crate::agent::stream::{Plan, StreamTimes, Supply};
use crate::agent::{Answer, Command};
use crate::app::App;
use crate::node::Node;
use crate::pod::Pod;

use super::{Case, Mode, WARM_UP};

/// Microseconds, a value a round.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// From ready to readable.
    pub total: Vec<f64>,
    /// Exporting, by the producer's driver.
    pub export: Vec<f64>,
    /// From the exported memory to the consumer's grant: sockets, validation, policy, registry.
    pub node: Vec<f64>,
    /// Of that: the check by the GPU worker, from the publication's arrival to the verdict. Nothing where nothing is checked.
    pub check: Vec<f64>,
    /// From ready to readable, but for the check.
    pub unchecked: Vec<f64>,
    /// Importing and mapping, by the consumer's driver.
    pub map: Vec<f64>,
}

/// The two applications.
pub(super) struct Pair {
    producer: App,
    consumer: App,
    socket: PathBuf,
    streams: u64,
}

impl Pair {
    pub(super) fn start(node: &Node, pods: &[Pod; 2]) -> anyhow::Result<Self> {
        let [producer, consumer] = [pods[0].connected(node)?, pods[1].connected(node)?];
        Ok(Self { producer, consumer, socket: node.dir().join("stream.sock"), streams: 0 })
    }

    pub(super) fn measure(&mut self, case: &Case) -> anyhow::Result<Times> {
        self.streams += 1;
        let plan = Plan {
            socket: self.socket.clone(),
            supply: match case.mode {
                Mode::Fresh => Supply::Fresh,
                Mode::Exported => Supply::Published,
                Mode::Again => Supply::Same,
            },
            rounds: WARM_UP + case.rounds,
            prefix: format!("s{}", self.streams),
            pause_us: case.pause_us,
        };
        self.producer.tell(&Command::Produce { plan: plan.clone(), kind: case.kind, bytes: case.bytes })?;
        let got = self.consumer.expect(&Command::Consume { plan }, stream)?;
        let made = match self.producer.hear()? {
            Answer::Stream(times) => times,
            other => anyhow::bail!("the producer answered {other:?}"),
        };
        Ok(times(case.mode, &made, got))
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.producer.finish()?;
        self.consumer.finish()
    }
}

pub(super) fn times(mode: Mode, made: &StreamTimes, got: StreamTimes) -> Times {
    if mode == Mode::Fresh { fresh(made, &got) } else { asked(got) }
}

/// From the producer's "ready" to the consumer's "readable".
fn fresh(made: &StreamTimes, got: &StreamTimes) -> Times {
    let mut times =
        Times { check: made.checked_us.iter().copied().skip(WARM_UP).collect(), ..Times::default() };
    let rounds = made.at_ns.iter().zip(&got.at_ns).zip(made.driver_us.iter().zip(&got.driver_us));
    for ((ready, readable), (exported, mapped)) in rounds.skip(WARM_UP) {
        let total = us_between(*ready, *readable);
        times.total.push(total);
        times.export.push(*exported);
        times.map.push(*mapped);
        times.node.push(total - exported - mapped);
    }
    times.unchecked = times.total.iter().zip(&times.check).map(|(total, check)| total - check).collect();
    times
}

/// From the consumer's question to "readable".
fn asked(got: StreamTimes) -> Times {
    let counted = |values: Vec<f64>| values.into_iter().skip(WARM_UP).collect();
    Times {
        total: counted(got.acquire_us),
        node: counted(got.granted_us),
        map: counted(got.driver_us),
        ..Times::default()
    }
}

fn stream(answer: Answer) -> Result<StreamTimes, Answer> {
    match answer {
        Answer::Stream(times) => Ok(times),
        other => Err(other),
    }
}

/// Microseconds from one moment to a later one on the machine's monotonic clock.
#[allow(clippy::cast_precision_loss, reason = "differences of seconds at most are far below 2^52 ns")]
pub(super) fn us_between(earlier_ns: u64, later_ns: u64) -> f64 {
    later_ns.saturating_sub(earlier_ns) as f64 / 1e3
}
