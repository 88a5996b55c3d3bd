//! What is published, before the registry sees it: a vmm buffer's descriptor goes to a GPU worker, which says on which
//! device the memory really is and how large it is. A legacy handle cannot be checked: the buffer stays `unverified`.
//!
//! Vetting is a task of the lane, not of the session: whatever becomes of the application, the lane keeps its copy of a
//! descriptor until the worker has answered. What is no GPU memory the worker has closed by then, so that the last close of
//! a stranger's file, which can block, is always the lane's. Of what is proven to be memory the worker may close its copy
//! after the answer, and last: that lets memory go, which has the worker's time to end in, like the inspection.

use std::cell::RefCell;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Waker};
use std::time::Instant;

use gpu_handoff_policy::Quota;
use gpu_handoff_protocol::message::{Carrier, Publication};
use gpu_handoff_protocol::{BootTag, BufferFacts, BufferId, Code, Refusal};
use gpu_handoff_sys::random::random;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::gpu::{Inspector, Verdict};
use crate::limits;
use crate::registry::{Vetted, check_range};

type Outcomes = Vec<Result<Vetted, Refusal>>;

/// Where a member's publications are vetted.
#[derive(Debug)]
pub(super) struct Desk {
    tasks: RefCell<JoinSet<()>>,
    /// The member's share of the worker.
    turns: Arc<Semaphore>,
    /// Room for descriptors that wait for their verdict, and how much there is.
    room: Arc<Semaphore>,
    limit: usize,
    /// What the member may publish at all.
    quota: watch::Receiver<Quota>,
}

/// What becomes of a packet for whose descriptors there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithoutRoom {
    /// It is refused: whoever publishes faster than the GPU worker looks is to wait for the answers.
    Refused,
    /// It waits, for [`limits::ROOM_PATIENCE`] at most: what is shown again after a restart comes all at once.
    Waits,
}

impl Desk {
    /// As many descriptors may wait for their verdict as `limit` says; no less than one packet may bring. The member may publish
    /// what its quota says at the time.
    pub(super) fn new(limit: usize, quota: watch::Receiver<Quota>) -> Self {
        let turns = Arc::new(Semaphore::new(limits::INSPECTIONS_OF_MEMBER));
        Self { tasks: RefCell::default(), turns, room: Arc::new(Semaphore::new(limit)), limit, quota }
    }

    fn no_room(&self, own: u32) -> Refusal {
        let wanted = format!("at most {}", self.limit);
        let undecided = self.limit.saturating_sub(self.room.available_permits());
        Refusal::new(Code::QuotaInFlight)
            .compared_with("descriptors that are inspected", wanted, format!("{undecided}, and {own} more"))
            .with_remedy("wait for the answers to what was sent before sending more")
    }

    /// Begins to vet all items of a packet, and gives their outcomes, in order. Whoever drops the answer leaves no
    /// inspection half done.
    pub(super) fn begin(
        &self,
        items: Vec<Publication>,
        boot: BootTag,
        inspector: Rc<Inspector>,
        without_room: WithoutRoom,
    ) -> impl Future<Output = Outcomes> + 'static {
        let count = items.len();
        // What comes back was held against the quota when it was new; whether it still fits is the registry's to say.
        let most = if without_room == WithoutRoom::Refused { self.quota.borrow().bytes } else { u64::MAX };
        let own = items.iter().filter(|item| matches!(item.carrier, Carrier::Descriptor(_))).count();
        let own = u32::try_from(own).unwrap_or(u32::MAX);
        let (mut asker, answer) = oneshot::channel();
        let turns = Arc::clone(&self.turns);
        let mut tasks = self.tasks.borrow_mut();
        // Those that have ended are let go; a task that broke off is answered for below.
        while tasks.try_join_next().is_some() {}
        let refuse = move |asker: oneshot::Sender<Outcomes>, refusal: &Refusal| {
            // The items are closed in the lane, wherever this is called.
            let _ = asker.send((0..count).map(|_| Err(refusal.clone())).collect());
        };
        let room = Arc::clone(&self.room);
        let undecided = Arc::clone(&room).try_acquire_many_owned(own).map_err(|_| self.no_room(own));
        match (undecided, without_room) {
            (Err(refusal), WithoutRoom::Refused) => refuse(asker, &refusal),
            (undecided, _) => {
                let mut vetting = Box::pin(async move {
                    let undecided = match undecided {
                        Ok(undecided) => undecided,
                        Err(refusal) => match wait_for_room(room, own, &mut asker).await {
                            Some(undecided) => undecided,
                            None => return refuse(asker, &refusal),
                        },
                    };
                    publications(items, boot, most, &inspector, &turns, asker).await;
                    drop(undecided);
                });
                // Begun at once: mostly the worker is asked by this already.
                if vetting.as_mut().poll(&mut task::Context::from_waker(Waker::noop())).is_pending() {
                    tasks.spawn_local(vetting);
                }
            }
        }
        async move { answer.await.unwrap_or_else(|_| (0..count).map(|_| Err(broken_off())).collect()) }
    }

    /// Waits for the inspections that are under way: their sessions are gone.
    pub(super) async fn finish(&self) {
        let mut tasks = self.tasks.take();
        let ended = async { while tasks.join_next().await.is_some() {} };
        // What is not over by then waits for a worker that is beyond serving anybody.
        let _ = timeout(limits::INSPECTION_TIME + limits::WORKER_END_TIME, ended).await;
    }
}

/// Waits for room, first come first served, for as long as somebody waits for the answer, and not for ever.
async fn wait_for_room(
    room: Arc<Semaphore>,
    own: u32,
    asker: &mut oneshot::Sender<Outcomes>,
) -> Option<OwnedSemaphorePermit> {
    tokio::select! {
        undecided = timeout(limits::ROOM_PATIENCE, room.acquire_many_owned(own)) => undecided.ok()?.ok(),
        () = asker.closed() => None,
    }
}

/// Vets all items of a packet, in order, for as long as somebody waits for the answer.
async fn publications(
    items: Vec<Publication>,
    boot: BootTag,
    most: u64,
    inspector: &Inspector,
    turns: &Semaphore,
    asker: oneshot::Sender<Outcomes>,
) {
    let mut vetted = Vec::with_capacity(items.len());
    for item in items {
        if asker.is_closed() {
            return;
        }
        vetted.push(publication(item, boot, most, inspector, turns).await);
    }
    // The session may be gone; what it published ends here, in the lane.
    let _ = asker.send(vetted);
}

async fn publication(
    publication: Publication,
    boot: BootTag,
    most: u64,
    inspector: &Inspector,
    turns: &Semaphore,
) -> Result<Vetted, Refusal> {
    let begin = Instant::now();
    let facts = &publication.facts;
    // The rest is the registry's: what this node's policy and the member's quota say.
    check_range(facts.offset, facts.size, facts.allocation_size)?;
    let checked = match &publication.carrier {
        Carrier::Legacy(_) => None,
        Carrier::Descriptor(fd) => {
            fits(publication.facts.allocation_size, most)?;
            let _turn = turns.acquire().await.map_err(|_| broken_off())?;
            check(&publication.facts, fd, inspector).await?;
            Some(begin.elapsed())
        }
    };
    Ok(Vetted { id: draw_id(boot)?, publication, checked })
}

/// No worker is asked for a range of addresses that is larger than all that the member may publish. What it comes to with what
/// the member has is the registry's to say.
fn fits(bytes: u64, most: u64) -> Result<(), Refusal> {
    if bytes <= most {
        return Ok(());
    }
    let (wanted, found) = (format!("at most {most}"), format!("{bytes} in one buffer"));
    Err(Refusal::new(Code::QuotaBytes).compared_with("bytes", wanted, found))
}

async fn check(facts: &BufferFacts, fd: &Arc<OwnedFd>, inspector: &Inspector) -> Result<(), Refusal> {
    match inspector.inspect(fd, facts.device, facts.allocation_size).await? {
        Verdict::GpuMemory { device: Some(found) } if found == facts.device => Ok(()),
        Verdict::GpuMemory { device } => {
            let found = device.map_or_else(|| "memory of another GPU".to_owned(), |d| d.to_string());
            Err(Refusal::new(Code::DeviceMismatch).compared_with("device", facts.device, found))
        }
        Verdict::NotGpuMemory { answer } => {
            Err(Refusal::new(Code::NotGpuMemory).compared_with("descriptor", "exported GPU memory", answer))
        }
        Verdict::SizeMismatch { actual } => {
            let found = actual.map_or_else(|| "another size".to_owned(), |bytes| bytes.to_string());
            Err(Refusal::new(Code::SizeMismatch).compared_with("bytes", facts.allocation_size, found))
        }
        Verdict::GpuLost { answer } => {
            Err(Refusal::new(Code::GpuLost).compared_with("device", facts.device, answer))
        }
        Verdict::OutOfMemory { answer } => Err(Refusal::new(Code::WorkerFailed)
            .compared_with("gpu worker", "room to look at the descriptor", answer)
            .with_remedy("free memory of the GPU, or of the node, then publish again")),
        Verdict::Failed { why } => {
            Err(Refusal::new(Code::WorkerFailed).compared_with("descriptor", "inspected", why))
        }
    }
}

fn draw_id(boot: BootTag) -> Result<BufferId, Refusal> {
    let random = random().map_err(|e| {
        Refusal::new(Code::WorkerFailed)
            .compared_with("random bits", "128", e)
            .with_remedy("publish again; if it stays, the node's kernel gives no random numbers")
    })?;
    Ok(BufferId { boot, random: u128::from_ne_bytes(random) })
}

fn broken_off() -> Refusal {
    Refusal::new(Code::WorkerFailed)
        .compared_with("vetting", "done", "broken off")
        .with_remedy("publish again; if it stays, look at the node daemon's log")
}
