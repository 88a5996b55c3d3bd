//! A node with two pods of one group.

use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_e2e::agent::order::{Outcome, Step};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::gpu::Gpu;
use gpu_handoff_e2e::node::{Member, Node, PATIENCE};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_simcuda::dump;

/// Milliseconds that an application may take for something that must happen.
pub(crate) const PATIENCE_MS: u64 = 20_000;

/// A moment in which a stream that is not held back would long have gone on.
pub(crate) const MOMENT_MS: u64 = 150;

pub(crate) fn s(text: &str) -> String {
    text.to_owned()
}

pub(crate) struct Stage {
    pub(crate) node: Node,
    pub(crate) producer: Pod,
    pub(crate) consumer: Pod,
}

impl Stage {
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::start_with(&serde_json::json!({ "legacy": "within-namespace" }))
    }

    pub(crate) fn start_with(policy: &serde_json::Value) -> anyhow::Result<Self> {
        let folder = Folder::shared()?;
        let members =
            [Member { pod: "producer", group: "group" }, Member { pod: "consumer", group: "group" }];
        let node = Node::start_with(&folder, Arc::new(Gpu::simulated(&folder)?), &members, policy)?;
        let (producer, consumer) =
            (Pod::start(&node, "producer", Walls::None)?, Pod::start(&node, "consumer", Walls::None)?);
        Ok(Self { node, producer, consumer })
    }

    pub(crate) fn app(&self, pod: &Pod) -> anyhow::Result<App> {
        pod.connected(&self.node)
    }

    /// One application in each pod.
    pub(crate) fn apps(&self) -> anyhow::Result<(App, App)> {
        Ok((self.app(&self.producer)?, self.app(&self.consumer)?))
    }

    /// Everybody has let go of all GPU memory.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        if let Some(device) = self.node.gpu.device_folder() {
            dump::wait_until_free(device, Instant::now() + PATIENCE)?;
        }
        self.producer.stop()?;
        self.consumer.stop()?;
        self.node.stop()
    }
}

pub(crate) fn number(app: &mut App, step: Step) -> anyhow::Result<u64> {
    app.expect(&Command::Order(step), |answer| match answer {
        Answer::Order(Outcome::Number { value }) => Ok(value),
        other => Err(other),
    })
}

/// How many were right and wrong.
pub(crate) fn looked(app: &mut App, step: Step) -> anyhow::Result<(u64, u64)> {
    app.expect(&Command::Order(step), picked)
}

pub(crate) fn picked(answer: Answer) -> Result<(u64, u64), Answer> {
    match answer {
        Answer::Order(Outcome::Looked { right, wrong }) => Ok((right, wrong)),
        other => Err(other),
    }
}

/// Takes a step that must be refused.
pub(crate) fn refused(app: &mut App, step: Step, wanted: &str) -> anyhow::Result<()> {
    app.expect(&Command::Order(step), |answer| match answer {
        Answer::Refused { code, .. } if code == wanted => Ok(()),
        other => Err(other),
    })
}

/// Whether a stream has done everything; waits for it.
pub(crate) fn comes_to_rest(app: &mut App, stream: &str, timeout_ms: u64) -> anyhow::Result<bool> {
    let step = Step::Idle { stream: stream.to_owned(), timeout_ms };
    app.expect(&Command::Order(step), |answer| match answer {
        Answer::Order(Outcome::Idle { .. }) => Ok(true),
        Answer::Order(Outcome::Busy) => Ok(false),
        other => Err(other),
    })
}

pub(crate) fn fill(app: &mut App, memory: &str) -> anyhow::Result<()> {
    let (memory, bytes, kind) = (memory.to_owned(), 2 << 20, MemoryKind::Vmm);
    app.done(&Command::Fill { memory, bytes, kind, word: 7 })
}

pub(crate) fn acquire(app: &mut App, name: &str, lease: &str) -> anyhow::Result<()> {
    let (name, lease) = (Some(name.to_owned()), lease.to_owned());
    let command =
        Command::Acquire { name, id: None, newer_than: 0, wait_ms: PATIENCE_MS, lease, announce: false };
    app.expect(&command, |answer| match answer {
        Answer::Acquired { .. } => Ok(()),
        other => Err(other),
    })
}

/// Acquires as "lease" once a seat is free, and the pod may lease so much.
pub(crate) fn acquire_with_patience(app: &mut App, name: &str) -> anyhow::Result<()> {
    let (name, lease) = (Some(name.to_owned()), "lease".to_owned());
    let command = Command::Acquire { name, id: None, newer_than: 0, wait_ms: 0, lease, announce: false };
    gpu_handoff_e2e::wait::until(PATIENCE, "a seat is free", || match app.ask(&command)? {
        Answer::Acquired { .. } => Ok(Some(())),
        Answer::Refused { code, .. } if code == "NO_SEAT" || code == "QUOTA_LEASES" => Ok(None),
        other => anyhow::bail!("{other:?}"),
    })
}

/// A timeline of the application's own, by whose word 0 its streams are held back and let go.
pub(crate) fn brake(app: &mut App, name: &str) -> anyhow::Result<()> {
    app.order(Step::Timeline { name: name.to_owned(), words: 64, reserve: 8 })
}

pub(crate) fn hold(app: &mut App, brake: &str, stream: &str) -> anyhow::Result<()> {
    let (timeline, stream) = (brake.to_owned(), stream.to_owned());
    app.order(Step::Wait { timeline, stream, word: 0, value: 1 })
}

pub(crate) fn let_go(app: &mut App, brake: &str) -> anyhow::Result<()> {
    let (timeline, stream) = (brake.to_owned(), "brake".to_owned());
    app.order(Step::Signal { timeline, stream, word: 0, value: 1 })
}
