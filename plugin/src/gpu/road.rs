//! A lane's connection to one worker process: requests go by a socket that all lanes share, answers come by the lane's
//! own, and wake its thread alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Verdict;
use super::look::Look;
use super::wire::{Begun, Reply, Request};
use crate::limits;

/// What became of a worker, and what it had noted last that it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It ended in good order, or was not wanted any more.
    Over,
    /// It did not answer in time.
    Hung(Begun),
    /// It ended by a fault of its own.
    Crashed(Begun),
    /// It was killed by somebody.
    Died(Begun),
}

/// What becomes of a request that a worker took.
#[derive(Debug)]
pub(super) enum Answer {
    /// It was inspected.
    Verdict(Verdict),
    /// The worker had to go before it began: the next one may be asked.
    NotBegun,
    /// The worker hung over it.
    Hung,
    /// The worker crashed over it.
    Crashed,
    /// The worker was killed, or never told what became of it.
    Lost,
}

/// One worker process, for as long as it lives. All lanes share it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) gpu: DeviceUuid,
    pub(super) generation: u64,
    pub(super) requests: AsyncSeqPacket,
    /// What memory looks like that the worker exported itself.
    pub(super) look: Option<Look>,
    fate: watch::Sender<Option<Fate>>,
}

impl Link {
    pub(super) fn new(
        gpu: DeviceUuid,
        generation: u64,
        requests: AsyncSeqPacket,
        look: Option<Look>,
    ) -> Self {
        Self { gpu, generation, requests, look, fate: watch::Sender::new(None) }
    }

    /// Tells all lanes what became of the worker.
    pub(super) fn tell(&self, fate: Fate) {
        self.fate.send_replace(Some(fate));
    }

    /// Sends from this thread. The socket is registered with the supervisor's runtime, not with this thread's, so a full
    /// queue is looked at again after a pause.
    pub(super) async fn send(&self, packet: &Outgoing) -> io::Result<()> {
        while !self.requests.try_send(packet)? {
            sleep(limits::WORKER_QUEUE_PAUSE).await;
        }
        Ok(())
    }
}

/// What a request waits for.
#[derive(Debug)]
struct Waiting {
    asker: oneshot::Sender<Answer>,
    due: Instant,
    overdue: bool,
}

/// A lane's connection to one worker.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) link: Arc<Link>,
    lane: u32,
    replies: AsyncSeqPacket,
    waiting: RefCell<HashMap<u64, Waiting>>,
    /// Stirred when there is a deadline to keep.
    begun: Notify,
}

impl Road {
    /// A new one, and what registers it with the worker.
    pub(super) fn new(link: Arc<Link>, lane: u32) -> io::Result<(Rc<Self>, Outgoing)> {
        let (ours, theirs) = SeqPacket::pair()?;
        let replies = AsyncSeqPacket::new(ours)?;
        let theirs: OwnedFd = theirs.into_fd();
        let register = Request::Register { lane }.packet(Arc::new(theirs));
        let (waiting, begun) = (RefCell::default(), Notify::new());
        Ok((Rc::new(Self { link, lane, replies, waiting, begun }), register))
    }

    /// Whether the worker is gone.
    pub(super) fn is_over(&self) -> bool {
        self.link.fate.borrow().is_some()
    }

    /// Expects an answer.
    pub(super) fn expect(&self, id: u64) -> oneshot::Receiver<Answer> {
        let (asker, answer) = oneshot::channel();
        let waiting = Waiting { asker, due: Instant::now() + limits::INSPECTION_TIME, overdue: false };
        let mut all = self.waiting.borrow_mut();
        if all.is_empty() {
            self.begun.notify_one();
        }
        all.insert(id, waiting);
        answer
    }

    /// Expects no answer any more.
    pub(super) fn forget(&self, id: u64) {
        self.waiting.borrow_mut().remove(&id);
    }

    fn deliver(&self, id: u64, answer: Answer) {
        if let Some(waiting) = self.waiting.borrow_mut().remove(&id) {
            // Nobody waits any more: the daemon stops.
            let _ = waiting.asker.send(answer);
        }
    }

    /// Hands answers out until the worker is gone and every request is answered. `hung` is called once for each request
    /// whose time is over.
    pub(super) async fn serve(&self, buffer: &RefCell<RecvBuffer>, hung: impl Fn(u64)) {
        let mut fate = self.link.fate.subscribe();
        let mut watchdog = std::pin::pin!(sleep_until(Instant::now()));
        let mut guarded = false;
        loop {
            tokio::select! {
                biased;
                reply = self.replies.recv_in(buffer) => match reply {
                    Ok(Some(frame)) => self.read(&frame.bytes),
                    _ => break,
                },
                _ = fate.wait_for(Option::is_some) => break,
                // One that is set stays set: it is looked at when it has passed, not with every request.
                () = &mut watchdog, if guarded => {
                    self.look_at_overdue(&hung);
                    let next = self.waiting.borrow().values().map(|w| w.due).min();
                    guarded = next.is_some();
                    if let Some(next) = next {
                        watchdog.as_mut().reset(next);
                    }
                }
                () = self.begun.notified(), if !guarded => {
                    guarded = true;
                    watchdog.as_mut().reset(Instant::now() + limits::INSPECTION_TIME);
                }
            }
        }
        let fate = self.fate(&hung).await;
        // What it answered before it went.
        while let Ok(Some(frame)) = self.replies.try_recv_in(buffer) {
            self.read(&frame.bytes);
        }
        for (id, waiting) in self.waiting.take() {
            let _ = waiting.asker.send(self.by_fate(id, fate));
        }
    }

    /// What became of the worker; `None`: the daemon stops.
    async fn fate(&self, hung: &impl Fn(u64)) -> Option<Fate> {
        let mut fate = self.link.fate.subscribe();
        // Its end becomes known soon, mostly; else it has lost its way to this lane, and is of no use to it.
        if timeout(limits::WORKER_FATE_TIME, fate.wait_for(Option::is_some)).await.is_err() {
            hung(self.link.generation);
        }
        fate.wait_for(Option::is_some).await.ok().and_then(|fate| *fate)
    }

    fn read(&self, bytes: &[u8]) {
        match Reply::read(bytes) {
            Some(Reply { id, verdict }) => self.deliver(id, Answer::Verdict(verdict)),
            None => tracing::warn!("the gpu worker answered what is no answer"),
        }
    }

    fn look_at_overdue(&self, hung: &impl Fn(u64)) {
        let now = Instant::now();
        let mut lost = Vec::new();
        for (id, waiting) in self.waiting.borrow_mut().iter_mut().filter(|(_, w)| w.due <= now) {
            if waiting.overdue {
                lost.push(*id);
            } else {
                // It learns what became of it when the worker has ended, or is given up.
                waiting.overdue = true;
                waiting.due = now + limits::WORKER_FATE_TIME;
                hung(self.link.generation);
            }
        }
        for id in lost {
            self.deliver(id, Answer::Hung);
        }
    }

    /// What a worker's fate means for a request that it has not answered.
    fn by_fate(&self, id: u64, fate: Option<Fate>) -> Answer {
        let own = Begun { lane: self.lane, id };
        match fate {
            Some(Fate::Hung(begun)) if begun == own => Answer::Hung,
            Some(Fate::Crashed(begun)) if begun == own => Answer::Crashed,
            Some(Fate::Died(begun)) if begun == own => Answer::Lost,
            Some(_) => Answer::NotBegun,
            None => Answer::Lost,
        }
    }
}
