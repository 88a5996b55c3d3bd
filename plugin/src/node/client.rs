//! The broker's side of its line to the node: what it is told at the start, and asking for what it may not do itself.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqListener, SeqPacket};
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{DeviceUuid, Refusal, SlotId};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::sleep_until;

use super::policy::unpacked;
use super::words::{Answer, Command, FromBroker, FromNode, Setup};
use crate::identity::ProcessKey;
use crate::identity::cgroup::ContainerId;
use crate::limits;
use crate::members::{Holds, Member};
use crate::tells::Tells;

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
    /// The line to the node.
    pub socket: SeqPacket,
}

/// Takes up what the node says first. Waits for it in the thread that calls.
///
/// # Errors
/// When standard input is no line to a node, or the node says something else.
pub fn take_up() -> anyhow::Result<Start> {
    let by_hand = "the broker is started by `gpu-handoff-plugin node`, over a socket: start that";
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
    Ok(Start { setup, policy, members, state, lock, socket })
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

/// The line itself: one task of the broker.
#[derive(Debug)]
pub struct Line {
    socket: AsyncSeqPacket,
    asks: mpsc::Receiver<Ask>,
    tells: Arc<Tells>,
    waiting: HashMap<u64, oneshot::Sender<Outcome>>,
    last: u64,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ask").field(&self.command).finish()
    }
}

impl Line {
    /// The line over this socket, and who asks through it. What is left in `tells` goes along.
    ///
    /// # Errors
    /// What registering the socket answers.
    pub fn new(socket: SeqPacket, tells: Arc<Tells>) -> io::Result<(Self, NodeClient)> {
        let (sender, asks) = mpsc::channel(limits::NODE_COMMANDS);
        let socket = AsyncSeqPacket::new(socket)?;
        Ok((Self { socket, asks, tells, waiting: HashMap::new(), last: 0 }, NodeClient { asks: sender }))
    }

    /// Tells the node that the broker serves.
    ///
    /// # Errors
    /// What the socket answers.
    pub async fn say_ready(&self) -> io::Result<()> {
        self.say(&FromBroker::Ready).await
    }

    /// Carries commands and answers until the line ends. `news` is told of members. `stop` is told when the node wants the
    /// broker to end, and dropped when the line has ended.
    pub async fn run(mut self, stop: oneshot::Sender<()>, news: mpsc::Sender<News>) {
        let mut stop = Some(stop);
        let mut buffer = RecvBuffer::new();
        let mut not_before = Instant::now();
        let tells = Arc::clone(&self.tells);
        loop {
            tokio::select! {
                () = async { sleep_until(not_before.into()).await; tells.stirred().await } => {
                    not_before = Instant::now() + limits::TELL_PAUSE;
                    for word in tells.take() {
                        if self.say(&word).await.is_err() {
                            return;
                        }
                    }
                }
                received = self.socket.recv(&mut buffer) => {
                    let Ok(Some(frame)) = received else { return };
                    let told = match read(&frame) {
                        Ok(FromNode::Member(member)) => {
                            with_socket(member, frame.descriptors).map(|(member, socket)| News::Came(member, socket))
                        }
                        Ok(FromNode::Left(slot)) => Ok(News::Left(slot)),
                        Ok(FromNode::Containers { slot, containers }) => Ok(News::Containers(slot, containers)),
                        Ok(FromNode::Holds { slot, holds }) => Ok(News::Holds(slot, holds)),
                        Ok(FromNode::HeldBack { slot, with }) => {
                            Ok(News::HeldBack(slot, with.and_then(|refused| refused.refusal())))
                        }
                        Ok(FromNode::Ending { slot, within_ms }) => {
                            Ok(News::Ending(slot, Instant::now() + Duration::from_millis(within_ms)))
                        }
                        Ok(FromNode::Policy) => unpacked(frame.descriptors).map(|policy| News::Policy(Box::new(policy))),
                        Ok(FromNode::Answer { id, outcome }) => {
                            self.deliver(id, outcome, frame.descriptors);
                            continue;
                        }
                        Ok(FromNode::Stop) => {
                            // Whoever waited for it may have ended already.
                            let _ = stop.take().map(|stop| stop.send(()));
                            continue;
                        }
                        Ok(FromNode::Setup(_) | FromNode::Begin) => Err(anyhow::anyhow!("a second setup")),
                        Err(e) => Err(e),
                    };
                    match told {
                        // Whoever takes it is the one who waits for this line's end, too.
                        Ok(told) => if news.send(told).await.is_err() { return },
                        Err(e) => return tracing::error!(error = %e, "the node said what it does not say to a broker that serves"),
                    }
                }
                // Never more in flight than the node takes.
                Some(ask) = self.asks.recv(), if self.waiting.len() < limits::NODE_COMMANDS => {
                    self.last += 1;
                    let id = self.last;
                    self.waiting.insert(id, ask.answer);
                    if self.say(&FromBroker::Ask { id, command: ask.command }).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn deliver(&mut self, id: u64, outcome: Result<Answer, String>, mut descriptors: Vec<OwnedFd>) {
        match self.waiting.remove(&id) {
            // Nobody may wait for it any more; then a descriptor is closed, which ends what is behind it.
            Some(asker) => {
                let _ = asker.send(outcome.map(|a| (a, descriptors.pop())).map_err(AskError::Refused));
            }
            None => tracing::warn!(id, ?outcome, "the node answered what was not asked"),
        }
    }

    async fn say(&self, word: &FromBroker) -> io::Result<()> {
        self.socket.send(&Outgoing { bytes: serde_json::to_vec(word)?, descriptors: Vec::new() }).await
    }
}
