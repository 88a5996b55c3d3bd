//! The thread that reads while nobody calls: notices for an idle application, and the unmapping that they ask for.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;

use gpu_handoff_protocol::socket;
use rustix::event::PollFlags;

use super::Connection;
use super::reading::Read;
use super::state::{End, Listener, State};
use crate::error::Fault;
use crate::limits;

impl Connection {
    /// Starts the thread. It ends when the connection does.
    pub(crate) fn listen(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let connection = Arc::clone(self);
        std::thread::Builder::new().name("gpu-handoff".to_owned()).spawn(move || {
            // Only a panic of another thread makes this fail, and then every call says so.
            let _ = connection.serve_notices();
            connection.sink.sweep();
        })
    }

    fn serve_notices(&self) -> Result<(), Fault> {
        loop {
            let Some(mut state) = self.until_quiet()? else { return Ok(()) };
            state.listener = Listener::Polls;
            drop(state);
            // Polled without the read token: a caller that comes meanwhile reads its answer itself, and whatever comes
            // before it. The bell tells of what that caller leaves to this thread.
            let on = [self.socket.as_fd(), self.bell.as_fd()].map(|fd| (fd, PollFlags::IN));
            let ready = socket::wait(&on, None);
            let mut state = self.lock()?;
            if std::mem::replace(&mut state.listener, Listener::Awake) == Listener::Called {
                // It was rung before this thread got the lock, so there is something to take.
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            if ready.is_err() {
                self.finish(&mut state, End::Lost(None));
            }
            self.read_all(&mut state);
        }
    }

    /// Waits, without using the processor, until nobody has called for [`limits::QUIET`]. `None`: it is all over.
    fn until_quiet(&self) -> Result<Option<MutexGuard<'_, State>>, Fault> {
        let mut state = self.lock()?;
        let mut seen = None;
        loop {
            if std::mem::take(&mut state.sweep) {
                drop(state);
                self.sink.sweep();
                state = self.lock()?;
                continue;
            }
            if state.end.is_some() {
                return Ok(None);
            }
            if seen == Some(state.waits) {
                if state.waiting == 0 {
                    return Ok(Some(state));
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
            let Some(mut buffer) = state.reader.take() else { return };
            let read = self.read(&mut buffer);
            state.reader = Some(buffer);
            if matches!(read, Read::Nothing) {
                return;
            }
            self.take_in(state, read);
        }
    }
}
