//! A lane asks what a descriptor is.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::{Code, DeviceUuid, Refusal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{Instrument, Span, warn};

use super::Verdict;
use super::look::Look;
use super::road::{Answer, Link, Road};
use super::strikes::Strikes;
use super::wire::{Begun, Request};
use super::workers::{Need, NotReady, Reach, WorkerNeed};
use crate::limits;
use crate::members::Holds;

/// One lane's way to the workers. For the lane's thread alone.
#[derive(Debug)]
pub struct Inspector {
    reach: Reach,
    lane: u32,
    /// The GPUs that the lane's member holds.
    holds: watch::Receiver<Holds>,
    roads: Rc<RefCell<HashMap<DeviceUuid, Rc<Road>>>>,
    /// Those that hand answers out.
    tasks: RefCell<JoinSet<()>>,
    buffer: Rc<RefCell<RecvBuffer>>,
    next_id: Cell<u64>,
    /// Workers that broke over a descriptor of this lane's member.
    broken: Rc<RefCell<Strikes>>,
    /// The worker that was asked last, until it is told that it will be asked again: once for each time it was.
    asked: RefCell<Weak<Road>>,
    /// The lane's, for what is logged on its behalf.
    span: Span,
}

impl Inspector {
    /// The way of the lane of this number, whose member holds these GPUs; it receives into
    /// `buffer`.
    #[must_use]
    pub fn new(
        reach: Reach,
        lane: u32,
        holds: watch::Receiver<Holds>,
        buffer: Rc<RefCell<RecvBuffer>>,
    ) -> Self {
        let (roads, tasks, asked) = (Rc::default(), RefCell::default(), RefCell::default());
        Self {
            reach,
            lane,
            holds,
            roads,
            tasks,
            buffer,
            next_id: Cell::new(1),
            broken: Rc::default(),
            asked,
            span: Span::current(),
        }
    }

    /// Something to inspect is about to come, most likely for the worker that was asked last: it wakes up meanwhile.
    pub fn announce(&self) {
        if let Some(road) = self.asked.take().upgrade() {
            // Whether it hears it makes no difference but to how soon it answers.
            let _ = road.link.requests.try_send(&Request::Awake.packet(None));
        }
    }

    /// What the claimed GPU's worker finds the descriptor to be, against the size that is claimed of it.
    ///
    /// The descriptor is sent from the caller's own thread. The caller's copy must outlive the request, so this is not to
    /// be dropped before it is done: then the worker has closed its own copy of what is no memory, or serves nobody any
    /// more. Its copy of what is proven to be memory it may have for a moment longer.
    ///
    /// # Errors
    /// `DEVICE_MISMATCH` for a GPU that the node does not have, `NOT_GPU_MEMORY` for what does not look like memory,
    /// `MEMBER_SUSPENDED`, `GPU_WORKER_TIMEOUT` or `GPU_WORKER_FAILED`.
    pub async fn inspect(
        &self,
        fd: &Arc<OwnedFd>,
        device: DeviceUuid,
        bytes: u64,
    ) -> Result<Verdict, Refusal> {
        self.may_ask()?;
        self.node_has(device).await?;
        let mut road = self.road(device).await?;
        look(&road.link, fd)?;
        let _turn = self.reach.at_a_time.acquire().await.map_err(|_| stopping())?;
        // Its turn may have come after a while.
        self.may_ask()?;
        for _ in 1..limits::INSPECTION_TRIES {
            if let Some(verdict) = self.ask(&road, fd, bytes).await? {
                self.asked.replace(Rc::downgrade(&road));
                return Ok(verdict);
            }
            // Where this one has not been seen to be gone, it is now; the next road is behind that in the queue.
            self.need(device, WorkerNeed::Replacement(road.link.generation)).await?;
            road = self.open(self.new_link(device).await?).await?;
        }
        let verdict = self.ask(&road, fd, bytes).await?;
        verdict.ok_or_else(|| {
            let wanted = format!("one of {} that begins", limits::INSPECTION_TRIES);
            Refusal::new(Code::WorkerFailed).compared_with("gpu worker", wanted, "each was replaced before")
        })
    }

    /// Whoever breaks workers again and again keeps the others waiting.
    fn may_ask(&self) -> Result<(), Refusal> {
        self.broken.borrow().check(Instant::now())
    }

    async fn node_has(&self, device: DeviceUuid) -> Result<(), Refusal> {
        let gpus = &self.reach.gpus;
        if gpus.has(device) {
            return Ok(());
        }
        // What a member may not use anyway is no reason to ask the driver.
        let may_hold = !matches!(&*self.holds.borrow(), Holds::These(held) if !held.contains(&device));
        if may_hold && !gpus.are_all_known() {
            let (asker, answer) = oneshot::channel();
            self.reach.needs.send(Need::Gpus(asker)).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())?.map_err(not_ready)?;
            if gpus.has(device) {
                return Ok(());
            }
        }
        let known: Vec<String> = gpus.known().map(ToString::to_string).collect();
        let found = match &known[..] {
            [] => "a node without GPUs".to_owned(),
            some => format!("a node with {}", some.join(", ")),
        };
        Err(Refusal::new(Code::DeviceMismatch).compared_with("device", device, found))
    }

    /// Asks one worker; `None`: it had to go before it began.
    async fn ask(&self, road: &Road, fd: &Arc<OwnedFd>, bytes: u64) -> Result<Option<Verdict>, Refusal> {
        if road.link.hangs() {
            // Over what was let go after its answer, most likely: nobody waits for that, so nobody has said so.
            self.need(road.link.gpu, WorkerNeed::Stuck(road.link.generation)).await?;
        }
        let id = self.next_id.replace(self.next_id.get() + 1);
        let number = Begun { lane: self.lane, id };
        let packet = Request::Inspect { number, bytes }.packet(Some(Arc::clone(fd)));
        let answer = road.expect(id);
        let sent = match road.link.requests.try_send(&packet) {
            // Timers have their price: one is set only where there is something to wait for.
            Ok(false) => timeout(limits::INSPECTION_TIME, road.link.send(&packet)).await,
            other => Ok(other.map(drop)),
        };
        if !matches!(sent, Ok(Ok(()))) {
            road.forget(id);
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
            // Others had its time, or their descriptors are in the way: that is nobody's fault.
            Err(_elapsed) if !road.link.hangs() => return Err(too_late("room in its queue")),
            Err(_elapsed) => {
                self.need(road.link.gpu, WorkerNeed::Stuck(road.link.generation)).await?;
                return Ok(None);
            }
        }
        match answer.await {
            Ok(Answer::Verdict(verdict)) => {
                // The worker ends by it, as by a crash.
                if matches!(verdict, Verdict::Failed { .. }) {
                    broke_one(&self.broken, road.link.gpu);
                }
                Ok(Some(verdict))
            }
            Ok(Answer::NotBegun) => Ok(None),
            Ok(Answer::Hung) => {
                broke_one(&self.broken, road.link.gpu);
                Err(too_late("an answer"))
            }
            Ok(Answer::Crashed) => {
                broke_one(&self.broken, road.link.gpu);
                Err(died())
            }
            Ok(Answer::Lost) | Err(_) => Err(died()),
        }
    }

    /// The road to the worker that is there, or to one that is started.
    async fn road(&self, gpu: DeviceUuid) -> Result<Rc<Road>, Refusal> {
        let known = self.roads.borrow().get(&gpu).filter(|road| !road.is_over()).cloned();
        if let Some(road) = known {
            return Ok(road);
        }
        match self.reach.current.of(gpu) {
            Some(link) => self.open(link).await,
            None => self.open(self.new_link(gpu).await?).await,
        }
    }

    /// Makes this lane known to a worker, unless it is.
    async fn open(&self, link: Arc<Link>) -> Result<Rc<Road>, Refusal> {
        let gpu = link.gpu;
        let same = |road: &&Rc<Road>| Arc::ptr_eq(&road.link, &link);
        if let Some(road) = self.roads.borrow().get(&gpu).filter(same) {
            return Ok(Rc::clone(road));
        }
        let failed =
            |e: io::Error| Refusal::new(Code::WorkerFailed).compared_with("gpu worker", "reachable", e);
        let (road, register) = Road::new(link, self.lane).map_err(failed)?;
        // A worker that is gone by now is found to be so by whoever asks it.
        match timeout(limits::INSPECTION_TIME, road.link.send(&register)).await {
            Ok(Err(e)) if !has_ended(&e) => return Err(failed(e)),
            Err(_elapsed) => return Err(too_late("room in its queue")),
            Ok(_) => {}
        }
        let needs = self.reach.needs.clone();
        let need = move |need| {
            // A full queue has somebody else's word of it.
            let _ = needs.try_send(Need::Worker(gpu, need));
        };
        self.roads.borrow_mut().insert(gpu, Rc::clone(&road));
        let (served, roads, buffer) = (Rc::clone(&road), Rc::clone(&self.roads), Rc::clone(&self.buffer));
        let broken = Rc::clone(&self.broken);
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        let serving = async move {
            served.serve(&buffer, need, || broke_one(&broken, gpu)).await;
            // What is left of a worker that is gone takes no descriptors.
            let mut roads = roads.borrow_mut();
            if roads.get(&gpu).is_some_and(|road| Rc::ptr_eq(road, &served)) {
                roads.remove(&gpu);
            }
        };
        tasks.spawn_local(serving.instrument(self.span.clone()));
        Ok(road)
    }

    /// The worker that the supervisor knows, or one that it starts.
    async fn new_link(&self, gpu: DeviceUuid) -> Result<Arc<Link>, Refusal> {
        let (asker, answer) = oneshot::channel();
        let asked = async {
            self.need(gpu, WorkerNeed::Link(asker)).await?;
            answer.await.map_err(|_| stopping())
        };
        match timeout(limits::WORKER_WAIT_TIME, asked).await {
            Ok(outcome) => outcome?.map_err(not_ready),
            Err(_elapsed) => {
                let wanted = format!("ready within {:?}", limits::WORKER_WAIT_TIME);
                Err(not_ready(NotReady::failed(wanted, "no word of one")))
            }
        }
    }

    async fn need(&self, gpu: DeviceUuid, need: WorkerNeed) -> Result<(), Refusal> {
        self.reach.needs.send(Need::Worker(gpu, need)).await.map_err(|_| stopping())
    }
}

/// Another worker broke over a descriptor of the member.
fn broke_one(broken: &RefCell<Strikes>, gpu: DeviceUuid) {
    let now = Instant::now();
    let times = broken.borrow_mut().add(now);
    warn!(%gpu, times, "a descriptor of the member broke the gpu worker");
    if let Err(refusal) = broken.borrow().check(now) {
        warn!(%refusal, "the member may not publish vmm buffers for a while");
    }
}

/// Looks at the descriptor, in the lane's own thread: what does not look like memory is never sent on.
fn look(link: &Link, fd: &Arc<OwnedFd>) -> Result<(), Refusal> {
    let Some(wanted) = link.look else { return Ok(()) };
    let refused = |found: &dyn std::fmt::Display| {
        Err(Refusal::new(Code::NotGpuMemory).compared_with("descriptor", wanted, found))
    };
    match Look::at(fd.as_fd()) {
        Ok(found) if found == wanted => Ok(()),
        Ok(found) => refused(&found),
        Err(e) => refused(&e),
    }
}

fn not_ready(NotReady { wanted, found, code }: NotReady) -> Refusal {
    let what = if code == Code::WorkerFailed { "gpu worker" } else { "device" };
    Refusal::new(code).compared_with(what, wanted, found)
}

fn too_late(what: &str) -> Refusal {
    let wanted = format!("{what} within {:?}", limits::INSPECTION_TIME);
    Refusal::new(Code::WorkerTimeout).compared_with("gpu worker", wanted, "none")
}

fn died() -> Refusal {
    Refusal::new(Code::WorkerFailed).compared_with("gpu worker", "alive", "it ended before it answered")
}

fn stopping() -> Refusal {
    Refusal::new(Code::ShuttingDown).compared_with("node daemon", "serving", "stopping")
}

/// Whether nobody is there to take a packet, rather than that this packet could not be sent.
fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Gpus, Starter, Workers};
    use crate::node::client::testing;

    fn holds(holds: Holds) -> watch::Receiver<Holds> {
        watch::channel(holds).1
    }

    #[tokio::test]
    async fn the_driver_is_not_asked_for_a_gpu_that_the_member_does_not_hold() {
        let (_line, client, _node) = testing::line(Arc::default());
        let gpu = |n| DeviceUuid::from_bytes([n; 16]);
        // Nobody serves: whoever asks the driver has its question lie there.
        let (_workers, reach) = Workers::new(Starter::new(client), Gpus::new([gpu(1)], []));
        let inspector = Inspector::new(reach.clone(), 0, holds(Holds::These(vec![gpu(1)])), Rc::default());
        let fd = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        let refusal = inspector.inspect(&fd, gpu(2), 1).await.unwrap_err();
        assert_eq!(refusal.code(), Code::DeviceMismatch);
        assert_eq!(reach.needs.capacity(), reach.needs.max_capacity());
        // Whoever may use all of the node's has it asked.
        let inspector = Inspector::new(reach.clone(), 0, holds(Holds::All), Rc::default());
        let asked = inspector.inspect(&fd, gpu(2), 1);
        tokio::select! {
            biased;
            outcome = asked => panic!("{outcome:?}"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(reach.needs.capacity(), reach.needs.max_capacity() - 1);
    }
}
