//! One connection to the node: requests out, answers and notices in. Knows no CUDA.
//!
//! Whoever waits for an answer reads the socket itself, so a call costs no hop between threads. Of several waiting
//! threads one holds the read token (the receive buffer) and hands the others what is theirs; when it leaves, the
//! token goes to the next. When nobody has called for a moment the [`listener`] thread watches for notices instead.
//! It only reads while nobody waits, so an answer never wakes the wrong thread.

mod listener;
mod state;

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, ClientBody, ClientMessage, Event, RequestId};
use gpu_handoff_protocol::socket::{self, Received, RecvBuffer, SeqPacket};
use gpu_handoff_protocol::{BufferId, BufferInfo, LeaseId, Refusal, limits as wire};
use rustix::event::PollFlags;

use crate::error::Fault;
use crate::limits;
use state::{End, Slot, State};

/// Who is told what concerns buffers. Called with the connection locked: it must be quick, call no driver and not
/// call the connection back.
pub(crate) trait Sink: Send + Sync {
    /// A lease of this buffer has come and is about to be handed to its caller.
    fn granted(&self, buffer: &BufferInfo);
    /// That lease found no caller and is given back.
    fn ungranted(&self, id: BufferId);
    /// Something happened to a leased buffer. True: [`sweep`](Self::sweep) has something to do.
    fn notice(&self, event: &Event) -> bool;
    /// The connection has ended.
    fn lost(&self);
    /// Unmaps what ended. Called without the lock, on the listener thread.
    fn sweep(&self);
}

/// What reading the socket gave.
enum Read {
    Packet(Result<(BrokerMessage, bool), Refusal>),
    Nothing,
    Closed,
}

pub(crate) struct Connection {
    socket: SeqPacket,
    /// The process that connected. Rights belong to it alone.
    process: u32,
    state: Mutex<State>,
    /// Where the listener waits while others read.
    quiet: Condvar,
    sink: Arc<dyn Sink>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(socket: SeqPacket, sink: Arc<dyn Sink>) -> Self {
        let state = Mutex::new(State::new());
        Self { socket, process: std::process::id(), state, quiet: Condvar::new(), sink }
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
        let pending = Pending { connection: self, request, started: Instant::now() };
        match self.send(request, body) {
            // The peer is gone, but what it said before may still be there to read: the wait finds out.
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Ok(pending)
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(Fault::TimedOut(limits::SEND)),
            Err(e) => Err(Fault::Io(e)),
            Ok(()) => Ok(pending),
        }
    }

    fn send(&self, request: RequestId, body: ClientBody) -> io::Result<()> {
        let packet = codec::encode_client(&ClientMessage { request, body });
        if self.socket.try_send(&packet)? {
            return Ok(());
        }
        self.socket.send(&packet, Some(Instant::now() + limits::SEND))
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
        if !self.is_own_process() {
            return;
        }
        // A poisoned or ended connection has no leases left to give back.
        if let Ok(mut state) = self.state.lock()
            && state.end.is_none()
        {
            state.unsent.push(lease);
            self.flush(&mut state);
        }
    }

    /// Sends the releases that wait for room. They get another chance with every packet that comes in: while the
    /// connection is full there are answers to come.
    fn flush(&self, state: &mut State) {
        while !state.unsent.is_empty() {
            let count = state.unsent.len().min(wire::MESSAGE_ITEMS);
            let body = ClientBody::Release(state.unsent[..count].to_vec());
            let request = state.number();
            match self.socket.try_send(&codec::encode_client(&ClientMessage { request, body })) {
                Ok(true) => drop(state.unsent.drain(..count)),
                Ok(false) => return,
                // The connection ends, and the leases with it: whoever reads next will see it.
                Err(_) => return state.unsent.clear(),
            }
        }
    }

    /// Forgets a request. A lease that comes for it, or has come, is given back.
    fn abandon(&self, request: RequestId) {
        let Ok(mut state) = self.state.lock() else { return };
        if state.close(request, &*self.sink) {
            let number = state.number();
            let body = ClientBody::Cancel { request };
            // Best effort: without room the node finds out when its answer comes back as a release.
            let _ = self.socket.try_send(&codec::encode_client(&ClientMessage { request: number, body }));
        }
        self.flush(&mut state);
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&self, watch: RequestId) {
        if self.is_own_process() {
            self.abandon(watch);
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

    /// Waits until `take` finds something in the slot, reading the socket if nobody else does.
    fn wait<T>(
        &self,
        request: RequestId,
        deadline: Instant,
        mut take: impl FnMut(&mut Slot) -> Option<Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let (started, mut tried) = (Instant::now(), false);
        let mut state = self.lock()?;
        state.waiting += 1;
        state.waits = state.waits.wrapping_add(1);
        let outcome = loop {
            if let Some(outcome) = state.slot(request).and_then(&mut take) {
                break outcome;
            }
            if let Some(end) = &state.end {
                break Err(end.fault());
            }
            // Looked at after one attempt, so that no time at all is still enough for what is there.
            if tried && Instant::now() >= deadline {
                break Err(Fault::TimedOut(started.elapsed()));
            }
            tried = true;
            state = match state.reader.take() {
                Some(buffer) => self.lead(state, buffer, deadline)?,
                None => Self::follow(state, request, deadline)?,
            };
        };
        self.leave(&mut state);
        outcome
    }

    /// Holds the read token until one packet has come, or the deadline.
    fn lead<'a>(
        &'a self,
        unlocked: MutexGuard<'a, State>,
        mut buffer: RecvBuffer,
        deadline: Instant,
    ) -> Result<MutexGuard<'a, State>, Fault> {
        drop(unlocked);
        let read = match socket::wait(&[(self.socket.as_fd(), PollFlags::IN)], Some(deadline)) {
            Ok(true) => self.read(&mut buffer),
            Ok(false) => Read::Nothing,
            Err(_) => Read::Closed,
        };
        let mut state = self.lock()?;
        state.reader = Some(buffer);
        self.take_in(&mut state, read);
        Ok(state)
    }

    /// Sleeps until the holder of the read token has something for this request, or hands the token on.
    fn follow(
        mut state: MutexGuard<'_, State>,
        request: RequestId,
        deadline: Instant,
    ) -> Result<MutexGuard<'_, State>, Fault> {
        let Some(wake) = state.slot(request).map(Slot::enter) else {
            return Err(Fault::unexpected("an open request"));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let (mut state, _) = wake.wait_timeout(state, left)?;
        if let Some(slot) = state.slot(request) {
            slot.leave();
        }
        Ok(state)
    }

    /// Hands the read token on, and wakes the listener if it sleeps until the last waiting thread has left.
    fn leave(&self, state: &mut State) {
        state.waiting -= 1;
        if state.waiting > 0 {
            state.wake_one();
        } else if state.listener_sleeps {
            self.quiet.notify_one();
        }
    }

    /// Reads one packet, if there is one.
    fn read(&self, buffer: &mut RecvBuffer) -> Read {
        match self.socket.try_recv(buffer) {
            Ok(Received::Frame(frame)) => Read::Packet(codec::decode_broker(frame)),
            Ok(Received::Nothing) => Read::Nothing,
            Ok(Received::Closed) | Err(_) => Read::Closed,
        }
    }

    /// Gives what was read to whom it belongs.
    fn take_in(&self, state: &mut State, read: Read) {
        match read {
            Read::Nothing => return,
            Read::Closed => self.finish(state, End::Lost(None)),
            Read::Packet(packet) => {
                let end = match packet {
                    Ok((message, more)) => state.dispatch(message, more, &*self.sink),
                    Err(refusal) => Some(End::Unreadable(refusal)),
                };
                if let Some(end) = end {
                    self.socket.end();
                    self.finish(state, end);
                }
            }
        }
        if state.sweep {
            self.quiet.notify_one();
        }
        self.flush(state);
    }

    fn finish(&self, state: &mut State, end: End) {
        if state.end.is_none() {
            state.end = Some(end);
            state.unsent.clear();
            state.sweep = true;
            self.sink.lost();
        }
        state.wake_all();
        self.quiet.notify_one();
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
        self.connection.abandon(self.request);
    }
}
