//! A node for tests of the broker.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::sync::Mutex;

use super::{Line, NodeClient};
use crate::node::children::told_alone;
use crate::node::words::pipe::Ear;
use crate::node::words::{Command, FromBroker, FromNode};
use crate::tells::Tells;

/// The node's ends of a line.
#[derive(Debug)]
pub struct NodeEnd {
    socket: AsyncSeqPacket,
    ear: Mutex<Ear>,
    /// What the broker leaves to be told.
    pub tells: Arc<Tells>,
}

/// A line, who asks through it, and the node at its other end.
#[must_use]
pub fn line(tells: Arc<Tells>) -> (Line, NodeClient, NodeEnd) {
    let (ours, theirs) = told_alone().unwrap();
    let (heard, words) = std::io::pipe().unwrap();
    let (line, client) = Line::new(theirs, words.into(), Arc::clone(&tells)).unwrap();
    let (socket, ear) = (AsyncSeqPacket::new(ours).unwrap(), Ear::new(heard.into()).unwrap());
    (line, client, NodeEnd { socket, ear: Mutex::new(ear), tells })
}

impl NodeEnd {
    /// What the broker says next.
    pub async fn hear(&self) -> FromBroker {
        let word = self.ear.lock().await.hear().await.unwrap().unwrap();
        serde_json::from_slice(&word).unwrap()
    }

    /// The next command, and its number.
    pub async fn asked(&self) -> (u64, Command) {
        match self.hear().await {
            FromBroker::Ask { id, command } => (id, command),
            other => panic!("{other:?}"),
        }
    }

    /// Says something.
    pub async fn say(&self, word: &FromNode) {
        self.say_with(word, Vec::new()).await;
    }

    /// Says something with descriptors.
    pub async fn say_with(&self, word: &FromNode, descriptors: Vec<Arc<OwnedFd>>) {
        let bytes = serde_json::to_vec(word).unwrap();
        self.socket.send(&Outgoing { bytes, descriptors }).await.unwrap();
    }
}
