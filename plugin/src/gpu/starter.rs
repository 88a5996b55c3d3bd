//! Starting and ending worker processes: the broker may not, the node does it.

use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::socket::SeqPacket;

use crate::node::client::{AskError, NodeClient};
use crate::node::words::{Answer, Command, Ending};

/// Starts workers.
#[derive(Debug, Clone)]
pub struct Starter(NodeClient);

/// A worker that was started.
#[derive(Debug)]
pub(super) struct Started {
    /// Our end of its request socket. A worker that is well ends by itself when this ends.
    pub(super) socket: SeqPacket,
    /// Its process.
    pub(super) process: Process,
}

/// A worker's process.
#[derive(Debug)]
pub(super) struct Process {
    node: NodeClient,
    number: u64,
    /// Its number.
    pub(super) pid: u32,
}

impl Starter {
    /// One that asks this node.
    #[must_use]
    pub const fn new(node: NodeClient) -> Self {
        Self(node)
    }

    /// Starts a worker that sees one GPU, or all of them. Promises no more than that the process was started: its first
    /// word tells whether it can work.
    pub(super) async fn start(&self, gpu: Option<DeviceUuid>) -> Result<Started, AskError> {
        match self.0.ask(Command::StartWorker { gpu }).await? {
            (Answer::Started { worker: number, pid }, Some(socket)) => {
                let process = Process { node: self.0.clone(), number, pid };
                Ok(Started { socket: SeqPacket::from_own(socket), process })
            }
            _ => Err(AskError::Strange),
        }
    }
}

impl Process {
    /// Kills it, unless it has ended already, and says how it ended, and with what status, once it has.
    pub(super) async fn end(self) -> Result<(Ending, String), AskError> {
        match self.node.ask(Command::EndWorker { worker: self.number }).await? {
            (Answer::Ended { ending, how }, _) => Ok((ending, how)),
            _ => Err(AskError::Strange),
        }
    }
}
