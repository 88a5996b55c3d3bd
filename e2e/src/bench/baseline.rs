//! Through the raw driver: the same two pods, a socket between their applications, and nothing else.

use crate::agent::{Answer, Command, MemoryKind, RawMode, RawTimes};
use crate::app::App;
use crate::node::Node;
use crate::pod::Pod;

use super::ours::us_between;
use super::{Case, Mode, WARM_UP};

/// Microseconds, a value a round.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// From ready to readable.
    pub total: Vec<f64>,
    /// Looking at the descriptor as the node's GPU worker does (vmm).
    pub inspect: Vec<f64>,
}

/// The two applications.
pub(super) struct Pair {
    sender: App,
    receiver: App,
    socket: std::path::PathBuf,
}

impl Pair {
    pub(super) fn start(node: &Node, pods: &[Pod; 2]) -> anyhow::Result<Self> {
        let [sender, receiver] = [pods[0].app(node)?, pods[1].app(node)?];
        Ok(Self { sender, receiver, socket: node.dir().join("raw.sock") })
    }

    /// `None`: the raw driver has nothing that corresponds to the case.
    pub(super) fn measure(&mut self, case: &Case) -> anyhow::Result<Option<Times>> {
        let mode = match (case.kind, case.mode) {
            (_, Mode::Again) => return Ok(None),
            (MemoryKind::Legacy, Mode::Fresh) => RawMode::LegacyFresh,
            (MemoryKind::Legacy, Mode::Exported) => RawMode::LegacyExported,
            (_, Mode::Fresh) => RawMode::VmmFresh,
            (_, Mode::Exported) => RawMode::VmmExported,
        };
        let rounds = WARM_UP + case.rounds;
        let send = Command::RawSend {
            socket: self.socket.clone(),
            bytes: case.bytes,
            rounds,
            mode,
            pause_us: case.pause_us,
            word: None,
        };
        self.sender.tell(&send)?;
        let receive = Command::RawReceive { socket: self.socket.clone(), rounds };
        let received = self.receiver.expect(&receive, raw)?;
        let sent = match self.sender.hear()? {
            Answer::Raw(times) => times,
            other => anyhow::bail!("the raw sender answered {other:?}"),
        };
        let pairs = sent.at_ns.iter().zip(&received.at_ns).skip(WARM_UP);
        let total = pairs.map(|(from, to)| us_between(*from, *to)).collect();
        Ok(Some(Times { total, inspect: received.inspect_us.into_iter().skip(WARM_UP).collect() }))
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.sender.finish()?;
        self.receiver.finish()
    }
}

fn raw(answer: Answer) -> Result<RawTimes, Answer> {
    match answer {
        Answer::Raw(times) => Ok(times),
        other => Err(other),
    }
}
