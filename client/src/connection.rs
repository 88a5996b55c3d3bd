//! One connection to the node: requests out, answers and notices in. Knows no CUDA.
//!
//! Whoever waits for an answer reads the socket itself, so a call costs no hop between threads. Of several waiting
//! threads one holds the read token (the receive buffer) and hands the others what is theirs; when it leaves, the
//! token goes to the next. When nobody has called for a moment the [`listener`] thread watches for notices instead.
//! It only reads while nobody waits, so an answer never wakes the wrong thread.
//!
//! When the broker is gone, the listener [looks for another one](rejoin) and has what this process has restored there.
//! Until then nobody reads, whoever waits goes on waiting, and what had no answer is asked again.

mod claims;
mod events;
mod listener;
mod reading;
mod rejoin;
mod slot;
mod state;
mod unsent;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gpu_handoff_cuda::process::Process;
use gpu_handoff_protocol::codec::{self, Outgoing};
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, ClientMessage, Event, RequestId};
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::{BufferId, BufferInfo, BufferName, Instance, LeaseId};
use rustix::event::EventfdFlags;

use crate::again::{Again, Kept};
use crate::deadline::after;
use crate::error::Fault;
use crate::limits;
pub(crate) use rejoin::Way;
use slot::Slot;
use state::{End, State};
use unsent::Unsent;

/// Who is told what concerns buffers. Called with the connection locked: it must be quick, call no driver and not
/// call the connection back.
pub(crate) trait Sink: Send + Sync {
    /// A lease of this buffer has come and is about to be handed to its caller.
    fn granted(&self, buffer: &BufferInfo);
    /// That lease found no caller and is given back. [`sweep`](Self::sweep) will be called.
    fn ungranted(&self, id: BufferId);
    /// Something happened to a leased buffer. True: [`sweep`](Self::sweep) has something to do.
    fn notice(&self, event: &Event) -> bool;
    /// This lease is lost: another broker does not restore it. The others of its buffer may be there still.
    fn lease_lost(&self, buffer: BufferId, lease: LeaseId);
    /// This publication is lost: another broker does not restore it.
    fn buffer_lost(&self, id: BufferId);
    /// Another broker is there. It knows nothing of buffers that this process does not lease at present, and will tell
    /// nothing of them.
    fn rejoined(&self);
    /// The connection has ended.
    fn lost(&self);
    /// Has what ended unmapped, and the memory of these publications let go of, on another thread: the driver may take long.
    /// Called without the lock, on the listener thread.
    fn sweep(&self, over: Vec<Arc<Again>>);
}

pub(crate) struct Connection {
    way: Way,
    /// The process that connected. Rights belong to it alone.
    process: Process,
    state: Mutex<State>,
    /// Where the listener waits while others read.
    quiet: Condvar,
    /// An eventfd that calls the listener from its poll: what others read may leave it something to unmap.
    bell: OwnedFd,
    sink: Arc<dyn Sink>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection that was made this way. It is not made again before it is [welcome](Self::welcome).
    pub(crate) fn new(socket: SeqPacket, way: Way, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::new(State::new(socket));
        Ok(Self { way, process: Process::current(), state, quiet: Condvar::new(), bell, sink })
    }

    /// This broker has said welcome.
    pub(crate) fn welcome(&self, instance: Instance) -> Result<(), Fault> {
        self.lock()?.instance = Some(instance);
        Ok(())
    }

    /// Which broker there is, or was last.
    pub(crate) fn instance(&self) -> Option<Instance> {
        self.state.lock().ok().and_then(|state| state.instance)
    }

    /// Refuses to work in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Fault> {
        if self.is_own_process() { Ok(()) } else { Err(Fault::Forked) }
    }

    pub(crate) fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    /// Asks, and waits until `deadline` for the whole answer.
    pub(crate) fn call(&self, body: ClientBody, deadline: Instant) -> Result<BrokerBody, Fault> {
        self.start(body)?.answer(deadline)
    }

    /// Asks, and leaves the waiting for later.
    pub(crate) fn start(&self, body: ClientBody) -> Result<Pending<'_>, Fault> {
        self.begin(Slot::new(body, Vec::new()))
    }

    /// Asks to publish, with what is kept of each publication, and waits for the answer.
    pub(crate) fn publish(
        &self,
        body: ClientBody,
        kept: Vec<Kept>,
        deadline: Instant,
    ) -> Result<BrokerBody, Fault> {
        self.begin(Slot::new(body, kept))?.answer(deadline)
    }

    /// Says that a buffer of this name is about to be published, if there is room for that. It makes no difference but to
    /// how soon everybody on the way hears of it then: they wake up meanwhile.
    pub(crate) fn announce(&self, name: &BufferName) {
        if let Ok(mut state) = self.state.lock()
            && let Some(socket) = state.socket()
        {
            let message =
                ClientMessage { request: state.number(), body: ClientBody::Announce(vec![name.clone()]) };
            drop(state);
            // Whoever reads next sees that the broker is gone.
            let _ = socket.try_send(&codec::encode_client(&message));
        }
    }

    /// Asks; [`answered`](Self::answered) tells when there is an answer.
    pub(crate) fn ask(&self, body: ClientBody) -> Result<RequestId, Fault> {
        Ok(self.start(body)?.keep())
    }

    /// The whole answer to what was asked, which is over then. `None`: there is none yet.
    pub(crate) fn answered(&self, request: RequestId) -> Result<Option<BrokerBody>, Fault> {
        match self.wait(request, Instant::now(), Slot::answered) {
            Err(Fault::TimedOut(_)) => Ok(None),
            outcome => {
                self.abandon(request, true);
                outcome.map(Some)
            }
        }
    }

    /// Forgets what was asked.
    pub(crate) fn forget(&self, request: RequestId) {
        if self.is_own_process() {
            self.abandon(request, true);
        }
    }

    fn begin(&self, mut slot: Slot) -> Result<Pending<'_>, Fault> {
        self.check_process()?;
        let started = Instant::now();
        let request = self.lock()?.number();
        let packet = slot.packet(request);
        // Where the connection has ended the slot is dropped with it locked, but not the memory.
        let _kept = slot.kept.clone();
        let socket = self.lock()?.open(request, slot)?;
        let fault = match socket.map_or(Ok(()), |socket| send(&socket, &packet)) {
            Ok(()) => None,
            // The peer is gone, but what it said before may still be there to read: the wait finds out.
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => None,
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Some(Fault::TimedOut(limits::SEND)),
            Err(e) => Some(Fault::Io(e)),
        };
        match fault {
            None => Ok(Pending { connection: self, request, started }),
            Some(fault) => {
                self.abandon(request, false);
                Err(fault)
            }
        }
    }

    /// Takes the next event of a watch; `None` at the deadline.
    pub(crate) fn event(&self, watch: RequestId, deadline: Instant) -> Result<Option<Event>, Fault> {
        self.check_process()?;
        match self.wait(watch, deadline, Slot::next_event) {
            Ok(event) => Ok(Some(event)),
            Err(Fault::TimedOut(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Gives a lease back without waiting for the answer, nor for room in the connection.
    pub(crate) fn release_later(&self, lease: LeaseId) {
        self.tell_later(|unsent| unsent.release(lease));
    }

    /// Revokes published buffers without waiting for the answers, nor for room in the connection.
    pub(crate) fn retire_later(&self, ids: impl Iterator<Item = BufferId>) {
        self.tell_later(|unsent| ids.for_each(|id| unsent.retire(id)));
    }

    fn tell_later(&self, add: impl FnOnce(&mut Unsent)) {
        if !self.is_own_process() {
            return;
        }
        // Over a poisoned or ended connection nothing is leased or published any more.
        if let Ok(mut state) = self.state.lock()
            && state.end.is_none()
        {
            add(&mut state.unsent);
            self.flush(&mut state);
        }
    }

    /// Sends what waits for room. What still finds none has another chance with every packet that comes in, and the
    /// listener waits for room. False: nothing was sent.
    fn flush(&self, state: &mut State) -> bool {
        let (mut some, Some(socket)) = (false, state.socket()) else { return false };
        while let Some((request, packet)) = state.next_packet() {
            match socket.try_send(&packet) {
                Ok(true) => state.sent(request),
                Ok(false) => {
                    if !state.room_watched {
                        self.wake_listener(state);
                    }
                    return some;
                }
                // The broker is gone: whoever reads next will see it, and the next one is told.
                Err(_) => return some,
            }
            some = true;
        }
        some
    }

    /// Forgets a request. What comes for it, or has come, is given back: leases are released, buffers retired.
    fn abandon(&self, request: RequestId, was_sent: bool) {
        let Ok(mut state) = self.state.lock() else { return };
        let (is_open, slot) = state.close(request, was_sent, &*self.sink).unzip();
        if is_open == Some(true) && was_sent {
            state.unsent.cancel(request);
        }
        if state.sweep {
            self.wake_listener(&mut state);
        }
        self.flush(&mut state);
        drop(state);
        // It may hold the last hold on memory.
        drop(slot);
    }

    /// A publication of ours was retired: its memory need not be exported again.
    pub(crate) fn retired(&self, id: BufferId) {
        // Dropped after the lock: it may ask the driver to free the memory.
        let _done = self.state.lock().ok().and_then(|mut state| state.claims.retired(id));
    }

    /// Ends the connection for both sides.
    pub(crate) fn end(&self) {
        if !self.is_own_process() {
            return;
        }
        if let Ok(mut state) = self.state.lock() {
            self.finish(&mut state, End::Lost(None));
        }
    }

    /// Has the connection ended?
    pub(crate) fn has_ended(&self) -> bool {
        !self.is_own_process() || self.state.lock().map_or(true, |state| state.end.is_some())
    }

    /// Does the listener watch the socket?
    #[cfg(test)]
    pub(crate) fn listener_polls(&self) -> bool {
        self.state.lock().unwrap().listener == state::Listener::Polls
    }

    /// Is another broker looked for?
    #[cfg(test)]
    pub(crate) fn is_away(&self) -> bool {
        self.state.lock().unwrap().socket().is_none()
    }

    /// Does a caller hold the read token?
    #[cfg(test)]
    pub(crate) fn somebody_reads(&self) -> bool {
        self.state.lock().unwrap().reader.is_none()
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Fault> {
        Ok(self.state.lock()?)
    }
}

fn send(socket: &SeqPacket, packet: &Outgoing) -> io::Result<()> {
    if socket.try_send(packet)? {
        return Ok(());
    }
    socket.send(packet, Some(after(limits::SEND)))
}

/// A request whose answer is still to come. Dropping it forgets the request.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    connection: &'a Connection,
    request: RequestId,
    started: Instant,
}

impl Pending<'_> {
    /// Waits for the whole answer.
    pub(crate) fn answer(self, deadline: Instant) -> Result<BrokerBody, Fault> {
        match self.connection.wait(self.request, deadline, Slot::answered) {
            Err(Fault::TimedOut(_)) => Err(Fault::TimedOut(self.elapsed())),
            Ok(BrokerBody::Refused(refusal)) => Err(Fault::Refused(refusal)),
            other => other,
        }
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Keeps the request open and gives its number.
    fn keep(self) -> RequestId {
        let request = self.request;
        std::mem::forget(self);
        request
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.connection.abandon(self.request, true);
    }
}
