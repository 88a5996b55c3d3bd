//! The broker's side of its line to the node: what it is told at the start, and asking for what it may not do itself.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::codec::Frame;
use gpu_handoff_protocol::socket::{RecvBuffer, SeqListener, SeqPacket};
use gpu_handoff_protocol::{DeviceUuid, Refusal, SlotId};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::policy::unpacked;
use super::words::{Answer, Command, FromNode, Setup};
use crate::identity::ProcessKey;
use crate::identity::cgroup::ContainerId;
use crate::limits;
use crate::members::{Holds, Member};

mod line;
#[cfg(test)]
pub mod testing;

pub use line::Line;

/// All that the broker is given at its start.
#[derive(Debug)]
pub struct Start {
    /// How to serve.
    pub setup: Setup,
    /// The policy.
    pub policy: Policy,
    /// The members, each with the listening socket of its slot.
    pub members: Vec<(Member, SeqListener)>,
    /// The folder of the broker's own files: the only place where it may write.
    pub state: OwnedFd,
    /// The node's lock, to be held for as long as the broker lives.
    pub lock: OwnedFd,
    /// The line to the node: what that says comes there.
    pub socket: SeqPacket,
    /// And what is said to it goes there.
    pub words: OwnedFd,
}

/// Takes up what the node says first. Waits for it in the thread that calls.
///
/// # Errors
/// When standard input is no line to a node, or the node says something else.
pub fn take_up() -> anyhow::Result<Start> {
    let by_hand = "the broker is started by `gpu-handoff-plugin node`, over a socket and a pipe: start that";
    let own = io::stdin().as_fd().try_clone_to_owned().context(by_hand)?;
    let socket = SeqPacket::from_stranger(own).map_err(|refusal| anyhow::anyhow!("{by_hand} ({refusal})"))?;
    let mut buffer = RecvBuffer::new();
    let deadline = Instant::now() + limits::BROKER_START_TIME;
    let mut next = || -> anyhow::Result<(FromNode, Vec<OwnedFd>)> {
        let frame =
            socket.recv(&mut buffer, Some(deadline)).context("hear the node")?.context("the node is gone")?;
        Ok((read(&frame)?, frame.descriptors))
    };
    let (FromNode::Setup(setup), descriptors) = next()? else {
        bail!("the node did not begin with the setup")
    };
    let Ok([state, lock, policy]) = <[OwnedFd; 3]>::try_from(descriptors) else {
        bail!("the node's setup lacks a descriptor")
    };
    let policy = unpacked(vec![policy])?;
    let mut members = Vec::new();
    loop {
        match next()? {
            (FromNode::Member(member), descriptors) => members.push(with_socket(member, descriptors)?),
            (FromNode::Begin, _) => break,
            (FromNode::Stop, _) => bail!("the node stops"),
            _ => bail!("the node said something else than members"),
        }
    }
    let words = io::stdout().as_fd().try_clone_to_owned().context(by_hand)?;
    Ok(Start { setup, policy, members, state, lock, socket, words })
}

fn with_socket(member: Member, mut descriptors: Vec<OwnedFd>) -> anyhow::Result<(Member, SeqListener)> {
    ensure!(descriptors.len() == 1, "member {} came without its socket", member.slot);
    let socket = descriptors.pop().context("no socket")?;
    Ok((member, SeqListener::from_own(socket)))
}

/// What the node says of members while the broker serves.
#[derive(Debug)]
pub enum News {
    /// One came, with the listening socket of its slot.
    Came(Member, SeqListener),
    /// The one of this slot is gone.
    Left(SlotId),
    /// The containers of the one of this slot.
    Containers(SlotId, BTreeSet<ContainerId>),
    /// Connections of the one of this slot are refused with this, or no more.
    HeldBack(SlotId, Option<Refusal>),
    /// The GPUs of the one of this slot.
    Holds(SlotId, Holds),
    /// The pod of this slot is being deleted, and gone at this time.
    Ending(SlotId, Instant),
    /// Another policy is in force.
    Policy(Box<Policy>),
}

fn read(frame: &Frame) -> anyhow::Result<FromNode> {
    serde_json::from_slice(&frame.bytes).context("the node said what a node does not say")
}

/// Why the node has not done what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It says why.
    #[error("{0}")]
    Refused(String),
    /// It is gone, and the broker will be in a moment.
    #[error("the node process is gone")]
    Gone,
    /// It answered something else.
    #[error("the node process answered something else")]
    Strange,
}

/// What came of a command, and the descriptor that came along.
pub type Outcome = Result<(Answer, Option<OwnedFd>), AskError>;

struct Ask {
    command: Command,
    answer: oneshot::Sender<Outcome>,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ask").field(&self.command).finish()
    }
}

/// Asks the node. Clones share one line.
#[derive(Debug, Clone)]
pub struct NodeClient {
    asks: mpsc::Sender<Ask>,
}

impl NodeClient {
    /// Has something done, and waits until it is.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(&self, command: Command) -> Outcome {
        let (answer, outcome) = oneshot::channel();
        self.asks.send(Ask { command, answer }).await.map_err(|_| AskError::Gone)?;
        outcome.await.map_err(|_| AskError::Gone)?
    }
}

/// Asks the node of which GPUs a process has the device nodes.
#[derive(Debug, Clone)]
pub struct DeviceNodes {
    node: NodeClient,
    gpus: Arc<[DeviceUuid]>,
}

/// The same for the processes of one slot, a few at a time.
#[derive(Debug)]
pub struct SlotDeviceNodes {
    of_node: DeviceNodes,
    slot: SlotId,
    turns: Semaphore,
}

impl DeviceNodes {
    /// Of a node with these GPUs.
    #[must_use]
    pub fn new(node: NodeClient, gpus: &[DeviceUuid]) -> Self {
        Self { node, gpus: gpus.into() }
    }

    /// Asked for this slot's processes.
    #[must_use]
    pub fn of_slot(&self, slot: SlotId) -> SlotDeviceNodes {
        let turns = Semaphore::new(limits::LOOKS_OF_MEMBER);
        SlotDeviceNodes { of_node: self.clone(), slot, turns }
    }
}

impl SlotDeviceNodes {
    /// The GPUs whose device nodes the process has; `None` where that could not be found out, or is of no interest: outside of
    /// a container all have those of the only GPU.
    pub async fn of(&self, process: ProcessKey, in_container: bool) -> Option<Vec<DeviceUuid>> {
        if self.of_node.gpus.len() < if in_container { 1 } else { 2 } {
            return None;
        }
        let _turn = self.turns.acquire().await.ok()?;
        let slot = self.slot.clone();
        let command = Command::Reachable { slot, pid: process.pid, started: process.started };
        match self.of_node.node.ask(command).await {
            Ok((Answer::Reachable(gpus), _)) => Some(gpus),
            Ok(_) | Err(AskError::Gone) => None,
            Err(e) => {
                tracing::warn!(%process, error = %e, "the device nodes of a process could not be looked at");
                None
            }
        }
    }
}
