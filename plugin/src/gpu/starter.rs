//! Starting and ending worker processes: the broker may not, the node does it.

use gpu_handoff_protocol::socket::SeqPacket;

use crate::node::client::{AskError, NodeClient};
use crate::node::words::{Answer, Command};

/// Starts workers.
#[derive(Debug, Clone)]
pub struct Starter(NodeClient);

/// A worker process that was started.
#[derive(Debug)]
pub(super) struct Worker {
    node: NodeClient,
    number: u64,
    /// Its process.
    pub(super) pid: u32,
}

impl Starter {
    /// One that asks this node.
    #[must_use]
    pub const fn new(node: NodeClient) -> Self {
        Self(node)
    }

    /// Starts a worker, and gives our end of its request socket.
    pub(super) async fn start(&self) -> Result<(Worker, SeqPacket), AskError> {
        match self.0.ask(Command::StartWorker).await? {
            (Answer::Started { worker: number, pid }, Some(socket)) => {
                Ok((Worker { node: self.0.clone(), number, pid }, SeqPacket::from_own(socket)))
            }
            _ => Err(AskError::Strange),
        }
    }
}

impl Worker {
    /// Kills it, and says with what status it ended, once it has.
    pub(super) async fn end(self) -> Result<String, AskError> {
        match self.node.ask(Command::EndWorker { worker: self.number }).await? {
            (Answer::Ended { how }, _) => Ok(how),
            _ => Err(AskError::Strange),
        }
    }
}
