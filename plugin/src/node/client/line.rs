//! The line itself: what the node says, and what is said to it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use gpu_handoff_protocol::codec::Frame;
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;

use super::{Ask, AskError, News, NodeClient, Outcome, read, unpacked, with_socket};
use crate::limits;
use crate::node::words::pipe::Mouth;
use crate::node::words::{Answer, FromBroker, FromNode};
use crate::tells::Tells;

/// The line itself: one task of the broker.
#[derive(Debug)]
pub struct Line {
    socket: AsyncSeqPacket,
    mouth: Mouth,
    asks: mpsc::Receiver<Ask>,
    tells: Arc<Tells>,
    waiting: HashMap<u64, oneshot::Sender<Outcome>>,
    last: u64,
}

impl Line {
    /// The line by which the node says something over this socket and is told something by this pipe, and who asks it. What is left
    /// in `tells` goes along.
    ///
    /// # Errors
    /// What registering them answers.
    pub fn new(socket: SeqPacket, words: OwnedFd, tells: Arc<Tells>) -> io::Result<(Self, NodeClient)> {
        let (sender, asks) = mpsc::channel(limits::NODE_COMMANDS);
        let (socket, mouth) = (AsyncSeqPacket::new(socket)?, Mouth::new(words)?);
        Ok((
            Self { socket, mouth, asks, tells, waiting: HashMap::new(), last: 0 },
            NodeClient { asks: sender },
        ))
    }

    /// Tells the node that the broker serves.
    ///
    /// # Errors
    /// What the pipe answers.
    pub fn say_ready(&mut self) -> io::Result<()> {
        self.mouth.say(&FromBroker::Ready)
    }

    /// Carries commands and answers until the line ends. `news` is told of members. `stop` is told when the node wants the
    /// broker to end, and dropped when the line has ended. `beats` is written to again and again for as long as the broker
    /// does what it is for: how many policies it has taken in.
    pub async fn run(
        mut self,
        stop: oneshot::Sender<()>,
        news: mpsc::Sender<News>,
        mut beats: watch::Receiver<u64>,
    ) {
        let mut stop = Some(stop);
        let mut buffer = RecvBuffer::new();
        let mut not_before = Instant::now();
        let tells = Arc::clone(&self.tells);
        loop {
            // While the node does not read, it is heard all the same: it may wait for that.
            let has_room = self.mouth.has_room();
            tokio::select! {
                () = async { sleep_until(not_before.into()).await; tells.stirred().await }, if has_room => {
                    not_before = Instant::now() + limits::TELL_PAUSE;
                    for word in tells.take() {
                        if self.mouth.say(&word).is_err() {
                            return;
                        }
                    }
                }
                Ok(()) = beats.changed(), if has_room => {
                    let policies = *beats.borrow_and_update();
                    if self.mouth.say(&FromBroker::Alive { policies }).is_err() {
                        return;
                    }
                }
                said = self.mouth.go_on() => if said.is_err() { return },
                received = self.socket.recv(&mut buffer) => {
                    let Ok(Some(frame)) = received else { return };
                    match self.heard(frame, &mut stop) {
                        Ok(None) => {}
                        // Whoever takes it is the one who waits for this line's end, too.
                        Ok(Some(told)) => if news.send(told).await.is_err() { return },
                        Err(e) => return tracing::error!(error = %e, "the node said what it does not say to a broker that serves"),
                    }
                }
                // Never more in flight than the node takes.
                Some(ask) = self.asks.recv(), if has_room && self.waiting.len() < limits::NODE_COMMANDS => {
                    self.last += 1;
                    let id = self.last;
                    self.waiting.insert(id, ask.answer);
                    if self.mouth.say(&FromBroker::Ask { id, command: ask.command }).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// What the node said, as far as it is news of members.
    fn heard(
        &mut self,
        frame: Frame,
        stop: &mut Option<oneshot::Sender<()>>,
    ) -> anyhow::Result<Option<News>> {
        let news = match read(&frame)? {
            FromNode::Member(member) => {
                let (member, socket) = with_socket(member, frame.descriptors)?;
                News::Came(member, socket)
            }
            FromNode::Left(slot) => News::Left(slot),
            FromNode::Containers { slot, containers } => News::Containers(slot, containers),
            FromNode::Holds { slot, holds } => News::Holds(slot, holds),
            FromNode::HeldBack { slot, with } => {
                News::HeldBack(slot, with.and_then(|refused| refused.refusal()))
            }
            FromNode::Ending { slot, within_ms } => {
                News::Ending(slot, Instant::now() + Duration::from_millis(within_ms))
            }
            FromNode::Policy => News::Policy(Box::new(unpacked(frame.descriptors)?)),
            FromNode::Answer { id, outcome } => {
                self.deliver(id, outcome, frame.descriptors);
                return Ok(None);
            }
            FromNode::Stop => {
                // Whoever waited for it may have ended already.
                let _ = stop.take().map(|stop| stop.send(()));
                return Ok(None);
            }
            FromNode::Setup(_) | FromNode::Begin => bail!("a second setup"),
        };
        Ok(Some(news))
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
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::node::words::Command;

    #[tokio::test]
    async fn a_node_that_says_much_before_it_hears_is_heard() {
        let (line, client, node) = testing::line(Arc::default());
        let (news, mut told) = mpsc::channel(limits::NODE_NEWS);
        let mut tasks = tokio::task::JoinSet::new();
        let lines = tasks.spawn(line.run(oneshot::channel().0, news, watch::channel(0).1));
        // Far more than fits between them is asked, and nobody reads it.
        let long = "x".repeat(200).parse::<gpu_handoff_protocol::SlotId>();
        let slot = long.unwrap_or_else(|_| "s".parse().unwrap());
        for _ in 0..limits::NODE_COMMANDS {
            let (client, slot) = (client.clone(), slot.clone());
            tasks.spawn(async move { drop(client.ask(Command::Evict { slot }).await) });
        }
        let tells = Arc::clone(&node.tells);
        for code in gpu_handoff_protocol::Code::ALL {
            for i in 0..64 {
                let refusal = gpu_handoff_protocol::Refusal::new(*code).compared_with(
                    "a",
                    "b".repeat(200),
                    "c".repeat(200),
                );
                tells.refused(&format!("s{i}").parse().unwrap(), &refusal);
            }
        }
        let patience = Duration::from_secs(30);
        for i in 0..2_000 {
            let left = FromNode::Left(format!("l{i}").parse().unwrap());
            tokio::time::timeout(patience, node.say(&left)).await.expect("the node waits");
            while let Ok(Some(News::Left(_))) =
                tokio::time::timeout(Duration::from_millis(1), told.recv()).await
            {}
        }
        assert!(!lines.is_finished());
        // And then it hears all of it, in order.
        let mut last = 0;
        while last < limits::NODE_COMMANDS as u64 {
            if let FromBroker::Ask { id, .. } = tokio::time::timeout(patience, node.hear()).await.unwrap() {
                assert_eq!(id, last + 1);
                last = id;
            }
        }
    }
}
