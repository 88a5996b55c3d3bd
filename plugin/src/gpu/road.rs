//! A lane's connection to one worker process: requests go by a socket that all lanes share, answers come by the lane's
//! own, and wake its thread alone.

use std::cell::{Cell, RefCell};
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
use super::wire::{Begun, Note, Reply, Request};
use super::workers::WorkerNeed;
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
    /// Where the worker notes what it is at.
    notes: OwnedFd,
    fate: watch::Sender<Option<Fate>>,
}

impl Link {
    pub(super) fn new(
        gpu: DeviceUuid,
        generation: u64,
        requests: AsyncSeqPacket,
        look: Option<Look>,
        notes: OwnedFd,
    ) -> Self {
        Self { gpu, generation, requests, look, notes, fate: watch::Sender::new(None) }
    }

    /// What the worker is at.
    pub(super) fn noted(&self) -> Note {
        let mut bytes = [0; Note::BYTES];
        match rustix::io::pread(&self.notes, &mut bytes[..], 0) {
            Ok(Note::BYTES) => Note::from_bytes(bytes),
            // It never began anything, or cut its own notes off.
            _ => Note::default(),
        }
    }

    /// Whether the worker has been at one request for too long; what else waits for it is not to blame.
    pub(super) fn hangs(&self) -> bool {
        let note = self.noted();
        note.begun != Begun::default() && note.age() >= limits::INSPECTION_TIME
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
    /// The request that got a verdict last; 0: none has.
    answered: Cell<u64>,
    /// The request over which the worker was found to hang before its fate was known; 0: none. Its member has been told so.
    hung: Cell<u64>,
    /// Stirred when there is a deadline to keep.
    begun: Notify,
}

impl Road {
    /// A new one, and what registers it with the worker.
    pub(super) fn new(link: Arc<Link>, lane: u32) -> io::Result<(Rc<Self>, Outgoing)> {
        let (ours, theirs) = SeqPacket::pair()?;
        let replies = AsyncSeqPacket::new(ours)?;
        let theirs: OwnedFd = theirs.into_fd();
        let register = Request::Register { lane }.packet(Some(Arc::new(theirs)));
        let (waiting, begun) = (RefCell::default(), Notify::new());
        let (answered, hung) = (Cell::new(0), Cell::new(0));
        Ok((Rc::new(Self { link, lane, replies, waiting, answered, hung, begun }), register))
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

    /// Hands answers out until the worker is gone and every request is answered. `need` is told where another worker is
    /// needed, `broke` where the worker broke over this lane's descriptor when it had answered for it.
    pub(super) async fn serve(
        &self,
        buffer: &RefCell<RecvBuffer>,
        need: impl Fn(WorkerNeed),
        broke: impl FnOnce(),
    ) {
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
                    self.look_at_overdue(Instant::now(), &need);
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
        let fate = self.fate(&need).await;
        // What it answered before it went.
        while let Ok(Some(frame)) = self.replies.try_recv_in(buffer) {
            self.read(&frame.bytes);
        }
        if self.broke_after_its_answer(fate) {
            broke();
        }
        for (id, waiting) in self.waiting.take() {
            let _ = waiting.asker.send(self.by_fate(id, fate));
        }
    }

    /// What became of the worker; `None`: the daemon stops.
    async fn fate(&self, need: &impl Fn(WorkerNeed)) -> Option<Fate> {
        let mut fate = self.link.fate.subscribe();
        // Its end becomes known soon, mostly; else it has lost its way to this lane, and is of no use to it.
        if timeout(limits::WORKER_FATE_TIME, fate.wait_for(Option::is_some)).await.is_err() {
            need(WorkerNeed::Replacement(self.link.generation));
        }
        fate.wait_for(Option::is_some).await.ok().and_then(|fate| *fate)
    }

    fn read(&self, bytes: &[u8]) {
        match Reply::read(bytes) {
            Some(Reply { id, verdict }) => {
                self.answered.set(id);
                self.deliver(id, Answer::Verdict(verdict));
            }
            None => tracing::warn!("the gpu worker answered what is no answer"),
        }
    }

    /// A request's own time begins when the worker begins it; what it waits for before that is others' time. So the worker
    /// is given up only when it has begun nothing for the time that one request may take.
    fn look_at_overdue(&self, now: Instant, need: &impl Fn(WorkerNeed)) {
        let note = self.link.noted();
        let left = limits::INSPECTION_TIME.checked_sub(note.age()).filter(|left| !left.is_zero());
        let mut lost = Vec::new();
        for (id, waiting) in self.waiting.borrow_mut().iter_mut().filter(|(_, w)| w.due <= now) {
            match left {
                // It has gone on.
                Some(left) => (waiting.due, waiting.overdue) = (now + left, false),
                None if waiting.overdue => lost.push(*id),
                None => {
                    // It learns what became of it when the worker has ended, or is given up.
                    waiting.overdue = true;
                    waiting.due = now + limits::WORKER_FATE_TIME;
                    need(WorkerNeed::Stuck(self.link.generation));
                }
            }
        }
        for id in lost {
            let is_begun = note.begun == Begun { lane: self.lane, id };
            if is_begun {
                self.hung.set(id);
            }
            self.deliver(id, if is_begun { Answer::Hung } else { Answer::Lost });
        }
    }

    /// Memory is let go after the answer, and is noted as begun until then. Whoever was to blame already, before an answer that
    /// came late, is so once.
    fn broke_after_its_answer(&self, fate: Option<Fate>) -> bool {
        match fate {
            Some(Fate::Hung(begun) | Fate::Crashed(begun)) => {
                let (answered, hung) = (self.answered.get(), self.hung.get());
                begun.lane == self.lane && begun.id != 0 && begun.id == answered && begun.id != hung
            }
            _ => false,
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn road(lane: u32) -> (Rc<Road>, OwnedFd, SeqPacket) {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let notes = memfd_create("notes", MemfdFlags::CLOEXEC).unwrap();
        let written = notes.try_clone().unwrap();
        let gpu = DeviceUuid::from_bytes([1; 16]);
        let link = Link::new(gpu, 3, AsyncSeqPacket::new(ours).unwrap(), None, notes);
        (Road::new(Arc::new(link), lane).unwrap().0, written, theirs)
    }

    #[tokio::test]
    async fn a_request_that_waits_for_others_has_all_of_its_own_time() {
        let (road, notes, _worker) = road(0);
        let mut now = Instant::now();
        let stuck = RefCell::new(0);
        let need = |need| {
            assert!(matches!(need, WorkerNeed::Stuck(3)), "{need:?}");
            *stuck.borrow_mut() += 1;
        };
        let note = |note: Note| assert_eq!(rustix::io::pwrite(&notes, &note.to_bytes(), 0), Ok(Note::BYTES));
        let mut answer = road.expect(7);
        // Others', one after the other: for as long as it takes.
        for id in 1..20 {
            now += limits::INSPECTION_TIME * 2;
            note(Note::now(Begun { lane: 1, id }));
            road.look_at_overdue(now, &need);
        }
        assert_eq!(*stuck.borrow(), 0, "the worker is given up though it goes on");
        // One that takes too long, for which this one is not to blame.
        let began_long_ago = |begun: Begun| {
            let mut bytes = [0; Note::BYTES];
            bytes[..Begun::BYTES].copy_from_slice(&begun.to_bytes());
            Note::from_bytes(bytes)
        };
        note(began_long_ago(Begun { lane: 1, id: 20 }));
        now += limits::INSPECTION_TIME;
        road.look_at_overdue(now, &need);
        assert_eq!(*stuck.borrow(), 1);
        assert!(answer.try_recv().is_err());
        now += limits::WORKER_FATE_TIME;
        road.look_at_overdue(now, &need);
        assert!(matches!(answer.try_recv(), Ok(Answer::Lost)));
        // Its own.
        let mut answer = road.expect(8);
        note(began_long_ago(Begun { lane: 0, id: 8 }));
        for wait in [limits::INSPECTION_TIME, limits::WORKER_FATE_TIME] {
            now += wait;
            road.look_at_overdue(now, &need);
        }
        assert_eq!(*stuck.borrow(), 2);
        assert!(matches!(answer.try_recv(), Ok(Answer::Hung)));
        // It is to blame once, however late the worker's fate is known.
        let fate = Some(Fate::Hung(Begun { lane: 0, id: 8 }));
        assert!(!road.broke_after_its_answer(fate));
        // Though it answers in the end.
        let late = |id| road.read(&Reply { id, verdict: Verdict::GpuMemory { device: None } }.packet().bytes);
        late(8);
        assert!(!road.broke_after_its_answer(fate));
        late(9);
        assert!(road.broke_after_its_answer(Some(Fate::Crashed(Begun { lane: 0, id: 9 }))));
    }

    #[tokio::test]
    async fn who_breaks_a_worker_after_its_answer_is_to_blame() {
        let (road, _notes, _worker) = road(4);
        let mut answer = road.expect(9);
        road.read(&Reply { id: 9, verdict: Verdict::GpuMemory { device: None } }.packet().bytes);
        assert!(matches!(answer.try_recv(), Ok(Answer::Verdict(_))));
        let at = |lane, id| Begun { lane, id };
        for fate in [Fate::Hung(at(4, 9)), Fate::Crashed(at(4, 9))] {
            assert!(road.broke_after_its_answer(Some(fate)), "{fate:?}");
        }
        for fate in [
            Fate::Over,
            Fate::Died(at(4, 9)),
            Fate::Crashed(at(5, 9)),
            Fate::Hung(at(4, 8)),
            Fate::Crashed(at(0, 0)),
        ] {
            assert!(!road.broke_after_its_answer(Some(fate)), "{fate:?}");
        }
    }
}
