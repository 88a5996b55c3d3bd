//! Asking a worker what a descriptor is, with a deadline for each request.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{Code, Refusal};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::{Request, Verdict};
use crate::limits;

/// What becomes of a request that a worker took.
#[derive(Debug)]
pub(super) enum Answer {
    /// It was inspected.
    Verdict(Verdict),
    /// The worker had to go before it began: the next one may be asked.
    NotBegun,
}

/// The road to one worker process, for as long as it lives.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) generation: u64,
    pub(super) socket: AsyncSeqPacket,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
}

impl Link {
    pub(super) fn new(generation: u64, socket: AsyncSeqPacket) -> Self {
        Self { generation, socket, waiting: Mutex::default() }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        // The map is whole at every step, so a thread that panicked beside it leaves nothing half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands an answer to whoever waits for it.
    pub(super) fn deliver(&self, id: u64, verdict: Verdict) {
        if let Some(asker) = self.waiting().remove(&id) {
            // Nobody waits any more: the answer came after its deadline.
            let _ = asker.send(Answer::Verdict(verdict));
        }
    }

    /// The worker is gone. Whoever waits may ask again, or learns it by the end of its channel.
    pub(super) fn abandon(&self, may_ask_again: bool) {
        let waiting = std::mem::take(&mut *self.waiting());
        if may_ask_again {
            for asker in waiting.into_values() {
                let _ = asker.send(Answer::NotBegun);
            }
        }
    }
}

/// Why there is no worker.
#[derive(Debug, Clone)]
pub(super) struct NotReady {
    pub(super) wanted: String,
    pub(super) found: String,
}

/// Who waits for the road to a worker.
pub(super) type Asker = oneshot::Sender<Result<Arc<Link>, NotReady>>;

/// What the supervisor is asked for.
#[derive(Debug)]
pub(super) enum Need {
    /// The road to a worker that is ready.
    Link(Asker),
    /// Another worker than this one, which does not answer.
    Replacement(u64),
}

/// Asks GPU workers what descriptors are. Clones share one worker.
#[derive(Debug, Clone)]
pub struct Inspector {
    needs: mpsc::Sender<Need>,
    current: Arc<Mutex<Option<Arc<Link>>>>,
    next_id: Arc<AtomicU64>,
    at_a_time: Arc<Semaphore>,
}

impl Inspector {
    pub(super) fn new(needs: mpsc::Sender<Need>, current: Arc<Mutex<Option<Arc<Link>>>>) -> Self {
        let at_a_time = Arc::new(Semaphore::new(limits::INSPECTIONS));
        Self { needs, current, next_id: Arc::new(AtomicU64::new(1)), at_a_time }
    }

    /// What a worker finds the descriptor to be, against the size that is claimed of it.
    ///
    /// The descriptor is sent from the caller's own thread. The caller's copy must outlive the request, so this is not to
    /// be dropped before it is done: then the worker has closed its own copy, or serves nobody any more.
    ///
    /// # Errors
    /// `GPU_WORKER_TIMEOUT` or `GPU_WORKER_FAILED`.
    pub async fn inspect(&self, fd: &Arc<OwnedFd>, bytes: u64) -> Result<Verdict, Refusal> {
        let _turn = self.at_a_time.acquire().await.map_err(|_| stopping())?;
        let mut link = self.link().await?;
        for _ in 1..limits::INSPECTION_TRIES {
            if let Some(verdict) = self.ask(&link, fd, bytes).await? {
                return Ok(verdict);
            }
            // Where this one has not been seen to be gone, it is now; the next road is behind that in the queue.
            self.need(Need::Replacement(link.generation)).await?;
            link = self.new_link().await?;
        }
        let verdict = self.ask(&link, fd, bytes).await?;
        verdict.ok_or_else(|| {
            let wanted = format!("one of {} that begins", limits::INSPECTION_TRIES);
            Refusal::new(Code::WorkerFailed).compared_with("gpu worker", wanted, "each was replaced before")
        })
    }

    /// Asks one worker; `None`: it had to go before it began.
    async fn ask(&self, link: &Link, fd: &Arc<OwnedFd>, bytes: u64) -> Result<Option<Verdict>, Refusal> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (asker, mut answer) = oneshot::channel();
        let packet = packet(Request { id, bytes }, fd)?;
        link.waiting().insert(id, asker);
        let sent = timeout(limits::INSPECTION_TIME, send(link, &packet)).await;
        if !matches!(sent, Ok(Ok(()))) {
            link.waiting().remove(&id);
        }
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(e)) if has_ended(&e) => return Ok(None),
            Ok(Err(e)) => {
                return Err(Refusal::new(Code::WorkerFailed).compared_with(
                    "descriptor",
                    "sent to the gpu worker",
                    e,
                ));
            }
            Err(_elapsed) => return Err(self.too_late(link, "room in its queue").await),
        }
        match timeout(limits::INSPECTION_TIME, &mut answer).await {
            Ok(answer) => told(answer),
            Err(_elapsed) => {
                let refusal = self.too_late(link, "an answer").await;
                // The worker has the descriptor until it is killed, and the caller's copy has to outlive that.
                let _ = timeout(limits::WORKER_END_TIME, answer).await;
                link.waiting().remove(&id);
                Err(refusal)
            }
        }
    }

    /// Has a worker replaced that does not do what it should.
    async fn too_late(&self, link: &Link, what: &str) -> Refusal {
        if let Err(stopping) = self.need(Need::Replacement(link.generation)).await {
            return stopping;
        }
        let wanted = format!("{what} within {:?}", limits::INSPECTION_TIME);
        Refusal::new(Code::WorkerTimeout).compared_with("gpu worker", wanted, "none")
    }

    async fn link(&self) -> Result<Arc<Link>, Refusal> {
        let known = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Some(link) => Ok(link),
            None => self.new_link().await,
        }
    }

    /// The road that the supervisor knows, or that of a worker that it starts.
    async fn new_link(&self) -> Result<Arc<Link>, Refusal> {
        let not_ready = |NotReady { wanted, found }| {
            Refusal::new(Code::WorkerFailed).compared_with("gpu worker", wanted, found)
        };
        let (asker, answer) = oneshot::channel();
        let asked = async {
            self.need(Need::Link(asker)).await?;
            answer.await.map_err(|_| stopping())
        };
        match timeout(limits::WORKER_WAIT_TIME, asked).await {
            Ok(outcome) => outcome?.map_err(not_ready),
            Err(_elapsed) => {
                let wanted = format!("ready within {:?}", limits::WORKER_WAIT_TIME);
                Err(not_ready(NotReady { wanted, found: "no word of one".to_owned() }))
            }
        }
    }

    async fn need(&self, need: Need) -> Result<(), Refusal> {
        self.needs.send(need).await.map_err(|_| stopping())
    }
}

fn packet(request: Request, fd: &Arc<OwnedFd>) -> Result<Outgoing, Refusal> {
    let bytes = serde_json::to_vec(&request)
        .map_err(|e| Refusal::new(Code::WorkerFailed).compared_with("request", "encoded", e))?;
    Ok(Outgoing { bytes, descriptors: vec![Arc::clone(fd)] })
}

fn told(answer: Result<Answer, oneshot::error::RecvError>) -> Result<Option<Verdict>, Refusal> {
    match answer {
        Ok(Answer::Verdict(verdict)) => Ok(Some(verdict)),
        Ok(Answer::NotBegun) => Ok(None),
        Err(_) => Err(Refusal::new(Code::WorkerFailed).compared_with(
            "gpu worker",
            "alive",
            "it ended before it answered",
        )),
    }
}

fn stopping() -> Refusal {
    Refusal::new(Code::ShuttingDown).compared_with("node daemon", "serving", "stopping")
}

/// Whether nobody is there to take a packet, rather than that this packet could not be sent.
fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

/// Sends from this thread. The socket is registered with the supervisor's runtime, not with this thread's, so a full
/// queue is looked at again after a pause.
async fn send(link: &Link, packet: &Outgoing) -> io::Result<()> {
    while !link.socket.try_send(packet)? {
        sleep(limits::WORKER_QUEUE_PAUSE).await;
    }
    Ok(())
}
