//! Asking a worker what a descriptor is, with a deadline for each request.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{Code, Refusal};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::{Request, Verdict};
use crate::limits;

/// The road to one worker process, for as long as it lives.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) generation: u64,
    pub(super) socket: AsyncSeqPacket,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Verdict>>>,
}

impl Link {
    pub(super) fn new(generation: u64, socket: AsyncSeqPacket) -> Self {
        Self { generation, socket, waiting: Mutex::default() }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Verdict>>> {
        // The map is whole at every step, so a thread that panicked beside it leaves nothing half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands an answer to whoever waits for it.
    pub(super) fn deliver(&self, id: u64, verdict: Verdict) {
        if let Some(asker) = self.waiting().remove(&id) {
            // Nobody waits any more: the answer came after its deadline.
            let _ = asker.send(verdict);
        }
    }

    /// The worker is gone: whoever waits learns it by the end of its channel.
    pub(super) fn abandon(&self) {
        self.waiting().clear();
    }
}

/// What the supervisor is asked for.
#[derive(Debug)]
pub(super) enum Need {
    /// The road to a live worker.
    Link(oneshot::Sender<Result<Arc<Link>, String>>),
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
    /// The descriptor is sent from the caller's own thread, and the caller's copy outlives the request.
    ///
    /// # Errors
    /// `GPU_WORKER_TIMEOUT` or `GPU_WORKER_FAILED`.
    pub async fn inspect(&self, fd: &Arc<OwnedFd>, bytes: u64) -> Result<Verdict, Refusal> {
        let _turn = self.at_a_time.acquire().await.map_err(|_| Refusal::new(Code::ShuttingDown))?;
        let link = self.link().await?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (asker, answer) = oneshot::channel();
        link.waiting().insert(id, asker);
        let outcome = timeout(limits::INSPECTION_TIME, ask(&link, Request { id, bytes }, fd, answer)).await;
        link.waiting().remove(&id);
        match outcome {
            Ok(Ok(verdict)) => Ok(verdict),
            Ok(Err(refusal)) => Err(refusal),
            Err(_elapsed) => {
                self.need(Need::Replacement(link.generation)).await?;
                let limit = format!("an answer within {:?}", limits::INSPECTION_TIME);
                Err(Refusal::new(Code::WorkerTimeout).compared_with("gpu worker", limit, "none"))
            }
        }
    }

    async fn link(&self) -> Result<Arc<Link>, Refusal> {
        let known = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(link) = known {
            return Ok(link);
        }
        let (asker, answer) = oneshot::channel();
        self.need(Need::Link(asker)).await?;
        let link = answer.await.map_err(|_| Refusal::new(Code::ShuttingDown))?;
        link.map_err(|why| Refusal::new(Code::WorkerFailed).compared_with("gpu worker", "started", why))
    }

    async fn need(&self, need: Need) -> Result<(), Refusal> {
        self.needs.send(need).await.map_err(|_| Refusal::new(Code::ShuttingDown))
    }
}

async fn ask(
    link: &Link,
    request: Request,
    fd: &Arc<OwnedFd>,
    answer: oneshot::Receiver<Verdict>,
) -> Result<Verdict, Refusal> {
    let died = |found: String| Refusal::new(Code::WorkerFailed).compared_with("gpu worker", "alive", found);
    let bytes = serde_json::to_vec(&request).map_err(|e| died(e.to_string()))?;
    let packet = Outgoing { bytes, descriptors: vec![Arc::clone(fd)] };
    send(link, &packet).await.map_err(|e| died(e.to_string()))?;
    answer.await.map_err(|_| died("it ended before it answered".to_owned()))
}

/// Sends from this thread. The socket is registered with the supervisor's runtime, so a full queue is waited out in
/// turns of this thread's own runtime; it is full only while the worker is [`limits::INSPECTIONS`] requests behind.
async fn send(link: &Link, packet: &Outgoing) -> std::io::Result<()> {
    while !link.socket.try_send(packet)? {
        tokio::task::yield_now().await;
    }
    Ok(())
}
