//! One connection to the node: requests out, answers and notices in. Knows no CUDA.
//!
//! Whoever waits for an answer reads the socket itself, so a call costs no hop between threads. Of several waiting
//! threads one holds the read token (the receive buffer) and hands the others what is theirs; when it leaves, the
//! token goes to the next. When nobody has called for a moment the [`listener`] thread watches for notices instead.
//! It only reads while nobody waits, so an answer never wakes the wrong thread.

mod listener;
mod reading;
mod state;
mod unsent;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, ClientMessage, Event, RequestId};
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::{BufferId, BufferInfo, LeaseId};
use rustix::event::EventfdFlags;

use crate::deadline::after;
use crate::error::Fault;
use crate::limits;
use state::{End, Slot, State};
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
    /// The connection has ended.
    fn lost(&self);
    /// Unmaps what ended. Called without the lock, on the listener thread.
    fn sweep(&self);
}

pub(crate) struct Connection {
    socket: SeqPacket,
    /// The process that connected. Rights belong to it alone.
    process: u32,
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
    pub(crate) fn new(socket: SeqPacket, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::new(State::new());
        Ok(Self { socket, process: std::process::id(), state, quiet: Condvar::new(), bell, sink })
    }

    /// Refuses to work in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), Fault> {
        if self.is_own_process() { Ok(()) } else { Err(Fault::Forked) }
    }

    pub(crate) fn is_own_process(&self) -> bool {
        std::process::id() == self.process
    }

    /// Asks, and waits until `deadline` for the whole answer.
    pub(crate) fn call(&self, body: ClientBody, deadline: Instant) -> Result<BrokerBody, Fault> {
        self.start(body)?.answer(deadline)
    }

    /// Asks, and leaves the waiting for later.
    pub(crate) fn start(&self, body: ClientBody) -> Result<Pending<'_>, Fault> {
        self.begin(body, Slot::answer())
    }

    /// Asks for events.
    pub(crate) fn watch(&self) -> Result<RequestId, Fault> {
        let pending = self.begin(ClientBody::Watch, Slot::events())?;
        Ok(pending.keep())
    }

    fn begin(&self, body: ClientBody, slot: Slot) -> Result<Pending<'_>, Fault> {
        self.check_process()?;
        let request = self.lock()?.open(slot)?;
        let started = Instant::now();
        let fault = match self.send(request, body) {
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

    fn send(&self, request: RequestId, body: ClientBody) -> io::Result<()> {
        let packet = codec::encode_client(&ClientMessage { request, body });
        if self.socket.try_send(&packet)? {
            return Ok(());
        }
        self.socket.send(&packet, Some(after(limits::SEND)))
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

    /// Sends what waits for room. It gets another chance with every packet that comes in: while the connection is full
    /// there are answers to come.
    fn flush(&self, state: &mut State) {
        while let Some(body) = state.unsent.first() {
            let leases = if let ClientBody::Release(leases) = &body { leases.len() } else { 0 };
            let request = state.number();
            match self.socket.try_send(&codec::encode_client(&ClientMessage { request, body })) {
                Ok(true) => state.unsent.sent(leases),
                Ok(false) => return,
                // The connection ends, and all of it with it: whoever reads next will see it.
                Err(_) => return state.unsent.clear(),
            }
        }
    }

    /// Forgets a request. What comes for it, or has come, is given back: leases are released, buffers retired.
    fn abandon(&self, request: RequestId, was_sent: bool) {
        let Ok(mut state) = self.state.lock() else { return };
        if state.close(request, &*self.sink) && was_sent {
            state.unsent.cancel(request);
        }
        if state.sweep {
            self.wake_listener(&mut state);
        }
        self.flush(&mut state);
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&self, watch: RequestId) {
        if self.is_own_process() {
            self.abandon(watch, true);
        }
    }

    /// Ends the connection for both sides.
    pub(crate) fn end(&self) {
        if !self.is_own_process() {
            return;
        }
        self.socket.end();
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

    /// Does a caller hold the read token?
    #[cfg(test)]
    pub(crate) fn somebody_reads(&self) -> bool {
        self.state.lock().unwrap().reader.is_none()
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Fault> {
        Ok(self.state.lock()?)
    }
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
