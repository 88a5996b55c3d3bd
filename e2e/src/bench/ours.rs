//! Through gpu-handoff: publish in one pod, acquire in the other.

use crate::agent::{Answer, Command};
use crate::app::App;
use crate::node::Node;
use crate::pod::Pod;

use super::{Case, Mode};

/// The name of the memory, and of the lease.
const MEMORY: &str = "m";
const LEASE: &str = "l";
/// Rounds before the clock counts: workers start, caches fill.
const WARM_UP: usize = 5;

/// Microseconds, a value a round.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// From ready to readable.
    pub total: Vec<f64>,
    /// Exporting, by the producer's driver.
    pub export: Vec<f64>,
    /// From the exported memory to the consumer's grant: sockets, validation, policy, registry.
    pub node: Vec<f64>,
    /// Importing and mapping, by the consumer's driver.
    pub map: Vec<f64>,
}

/// The two applications.
pub(super) struct Pair {
    producer: App,
    consumer: App,
    names: u64,
}

impl Pair {
    pub(super) fn start(node: &Node, pods: &[Pod; 2]) -> anyhow::Result<Self> {
        let mut apps = Vec::new();
        for pod in pods {
            let mut app = pod.app(node)?;
            app.expect(&Command::Connect { socket: pod.socket().to_path_buf() }, connected)?;
            apps.push(app);
        }
        let Ok([producer, mut consumer]) = <[App; 2]>::try_from(apps) else {
            anyhow::bail!("two applications")
        };
        consumer.expect(&Command::Watch, done)?;
        Ok(Self { producer, consumer, names: 0 })
    }

    pub(super) fn measure(&mut self, case: &Case) -> anyhow::Result<Times> {
        let mut times = Times::default();
        let mut spare = Times::default();
        if case.mode != Mode::Fresh {
            self.make(case)?;
        }
        let again = if case.mode == Mode::Again { Some(self.publish()?.name) } else { None };
        for round in 0..WARM_UP + case.rounds {
            let times = if round < WARM_UP { &mut spare } else { &mut times };
            match (&again, case.mode) {
                (Some(name), _) => self.again(name, times)?,
                (None, Mode::Fresh) => self.fresh(case, times)?,
                (None, _) => self.exported(times)?,
            }
        }
        if let Some(name) = again {
            self.retire(&name)?;
        }
        self.producer.expect(&Command::Free { memory: MEMORY.to_owned() }, done)?;
        Ok(times)
    }

    fn make(&mut self, case: &Case) -> anyhow::Result<()> {
        let fill = Command::Fill {
            memory: MEMORY.to_owned(),
            bytes: case.bytes,
            kind: case.kind,
            word: 0x5EED_F00D,
        };
        self.producer.expect(&fill, done)?;
        Ok(())
    }

    fn fresh(&mut self, case: &Case, times: &mut Times) -> anyhow::Result<()> {
        self.make(case)?;
        let name = self.next_name();
        self.consumer.tell(&acquire(&name, true))?;
        anyhow::ensure!(matches!(self.consumer.hear()?, Answer::Waiting), "the consumer announces its wait");
        let published = self.publish_as(name)?;
        let got = Acquired::of(self.consumer.hear()?)?;
        let total = us_between(published.began_ns, got.done_ns);
        times.total.push(total);
        times.export.push(published.exported_us);
        times.map.push(got.mapped_us);
        times.node.push(total - published.exported_us - got.mapped_us);
        self.let_go(&published.name)?;
        self.producer.expect(&Command::Free { memory: MEMORY.to_owned() }, done)?;
        Ok(())
    }

    fn exported(&mut self, times: &mut Times) -> anyhow::Result<()> {
        let published = self.publish()?;
        self.acquire_timed(&published.name, times)?;
        self.let_go(&published.name)
    }

    fn again(&mut self, name: &str, times: &mut Times) -> anyhow::Result<()> {
        self.acquire_timed(name, times)?;
        self.release()
    }

    fn acquire_timed(&mut self, name: &str, times: &mut Times) -> anyhow::Result<()> {
        let got = Acquired::of(self.consumer.ask(&acquire(name, false))?)?;
        times.total.push(got.us);
        times.node.push(got.granted_us);
        times.map.push(got.mapped_us);
        Ok(())
    }

    fn publish(&mut self) -> anyhow::Result<Published> {
        let name = self.next_name();
        self.publish_as(name)
    }

    fn publish_as(&mut self, name: String) -> anyhow::Result<Published> {
        let publish = Command::Publish { memory: MEMORY.to_owned(), name: name.clone() };
        self.producer.expect(&publish, |a| match a {
            Answer::Published { began_ns, exported_us, .. } => Ok(Published { name, began_ns, exported_us }),
            other => Err(other),
        })
    }

    fn next_name(&mut self) -> String {
        self.names += 1;
        format!("b{}", self.names)
    }

    fn release(&mut self) -> anyhow::Result<()> {
        self.consumer.expect(&Command::Release { lease: LEASE.to_owned() }, done)?;
        Ok(())
    }

    /// Ends the buffer and waits until the consumer knows, so that its next acquire maps anew.
    fn let_go(&mut self, name: &str) -> anyhow::Result<()> {
        self.release()?;
        self.retire(name)
    }

    fn retire(&mut self, name: &str) -> anyhow::Result<()> {
        self.producer.expect(&Command::Retire { name: name.to_owned(), deadline_ms: 0 }, |a| match a {
            Answer::Retired { .. } => Ok(()),
            other => Err(other),
        })?;
        self.consumer.await_event("the buffer is gone", |told| told.what == "gone").map(drop)
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.producer.finish()?;
        self.consumer.finish()
    }
}

struct Published {
    name: String,
    began_ns: u64,
    exported_us: f64,
}

struct Acquired {
    done_ns: u64,
    us: f64,
    granted_us: f64,
    mapped_us: f64,
}

impl Acquired {
    fn of(answer: Answer) -> anyhow::Result<Self> {
        match answer {
            Answer::Acquired { done_ns, us, granted_us, mapped_us, .. } => {
                Ok(Self { done_ns, us, granted_us, mapped_us })
            }
            other => anyhow::bail!("the consumer's acquire: {other:?}"),
        }
    }
}

fn acquire(name: &str, announce: bool) -> Command {
    Command::Acquire {
        name: Some(name.to_owned()),
        id: None,
        newer_than: 0,
        wait_ms: 10_000,
        lease: LEASE.to_owned(),
        announce,
    }
}

fn connected(answer: Answer) -> Result<(), Answer> {
    match answer {
        Answer::Connected { .. } => Ok(()),
        other => Err(other),
    }
}

fn done(answer: Answer) -> Result<f64, Answer> {
    match answer {
        Answer::Done { us } => Ok(us),
        other => Err(other),
    }
}

/// Microseconds from one moment to a later one on the machine's monotonic clock.
#[allow(clippy::cast_precision_loss, reason = "differences of seconds at most are far below 2^52 ns")]
pub(super) fn us_between(earlier_ns: u64, later_ns: u64) -> f64 {
    later_ns.saturating_sub(earlier_ns) as f64 / 1e3
}
