//! The thread that reads while nobody calls: notices for an idle application, and the unmapping that they ask for.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;

use gpu_handoff_protocol::socket::{self, SeqPacket};
use rustix::event::PollFlags;

use super::Connection;
use super::reading::{Read, read};
use super::state::{End, Listener, State};
use crate::error::Fault;
use crate::limits;

/// What the thread does next.
enum Turn<'a> {
    Over,
    Rejoin,
    Poll(MutexGuard<'a, State>, Arc<SeqPacket>),
}

impl Connection {
    /// Starts the thread. It ends when the connection does.
    pub(crate) fn listen(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let connection = Arc::clone(self);
        std::thread::Builder::new().name("gpu-handoff".to_owned()).spawn(move || {
            // Only a panic of another thread makes this fail, and then every call says so.
            let _ = connection.serve_notices();
            connection.sweep();
        })
    }

    fn serve_notices(&self) -> Result<(), Fault> {
        loop {
            match self.next_turn()? {
                Turn::Over => return Ok(()),
                Turn::Rejoin => self.rejoin()?,
                Turn::Poll(state, socket) => self.poll(state, &socket)?,
            }
        }
    }

    /// Waits for a packet, where nobody else does, and for room, where something is to be sent.
    fn poll(&self, mut state: MutexGuard<'_, State>, socket: &SeqPacket) -> Result<(), Fault> {
        state.room_watched = !state.all_sent();
        let mut events = if state.waiting == 0 { PollFlags::IN } else { PollFlags::empty() };
        events.set(PollFlags::OUT, state.room_watched);
        state.listener = Listener::Polls;
        drop(state);
        // Polled without the read token: a caller that comes meanwhile reads its answer itself, and whatever comes
        // before it. The bell tells of what that caller leaves to this thread.
        let ready = socket::wait(&[(socket.as_fd(), events), (self.bell.as_fd(), PollFlags::IN)], None);
        let mut state = self.answer_bell()?;
        let had_room = std::mem::take(&mut state.room_watched);
        if ready.is_err() {
            self.finish(&mut state, End::Lost(None));
        }
        let some = self.flush(&mut state);
        self.read_all(&mut state);
        if had_room && !some && !state.all_sent() && state.end.is_none() {
            // Room for packets, but not for their descriptors; nothing tells when there is.
            drop(self.quiet.wait_timeout(state, limits::SEND_PAUSE)?);
        }
        Ok(())
    }

    /// Back from a poll: what the bell was rung for is there to be seen.
    pub(super) fn answer_bell(&self) -> Result<MutexGuard<'_, State>, Fault> {
        let mut state = self.lock()?;
        if std::mem::replace(&mut state.listener, Listener::Awake) == Listener::Called {
            // It was rung before this thread got the lock, so there is something to take.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        Ok(state)
    }

    /// Waits, without using the processor, until nobody has called for [`limits::QUIET`], or there is something to do.
    fn next_turn(&self) -> Result<Turn<'_>, Fault> {
        let mut state = self.lock()?;
        let mut seen = None;
        loop {
            if std::mem::take(&mut state.sweep) {
                drop(state);
                self.sweep();
                state = self.lock()?;
                continue;
            }
            if state.end.is_some() {
                return Ok(Turn::Over);
            }
            let Some(socket) = state.socket() else { return Ok(Turn::Rejoin) };
            if !state.all_sent() {
                return Ok(Turn::Poll(state, socket));
            }
            if seen == Some(state.waits) {
                if state.waiting == 0 {
                    return Ok(Turn::Poll(state, socket));
                }
                // Somebody waits long: sleep until the last of them leaves.
                state.listener = Listener::Sleeps;
                state = self.quiet.wait(state)?;
                state.listener = Listener::Awake;
            } else {
                seen = Some(state.waits);
                state = self.quiet.wait_timeout(state, limits::QUIET)?.0;
            }
        }
    }

    /// Has what is over unmapped and dropped.
    pub(super) fn sweep(&self) {
        let done = self.state.lock().map(|mut state| state.claims.take_done()).unwrap_or_default();
        self.sink.sweep(done);
    }

    /// Has the listener look at what is to be done, whatever it does now.
    pub(super) fn wake_listener(&self, state: &mut State) {
        if state.listener == Listener::Polls {
            state.listener = Listener::Called;
            // Cannot fail: the counter was zero.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        } else {
            self.quiet.notify_one();
        }
    }

    /// Reads all that is there, unless somebody waits and reads it himself.
    fn read_all(&self, state: &mut State) {
        while state.waiting == 0 && state.end.is_none() {
            let Some(socket) = state.socket() else { return };
            let Some(mut buffer) = state.reader.take() else { return };
            let read = read(&socket, &mut buffer);
            state.reader = Some(buffer);
            if matches!(read, Read::Nothing) {
                return;
            }
            self.take_in(state, read);
        }
    }
}
