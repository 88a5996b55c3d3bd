//! The thread that reads while nobody calls: notices for an idle application, and the unmapping that they ask for.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;

use gpu_handoff_protocol::socket;
use rustix::event::PollFlags;

use super::Connection;
use super::reading::Read;
use super::state::{End, State};
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
            let Some(state) = self.until_quiet()? else { return Ok(()) };
            drop(state);
            // Polled without the read token: a caller that comes meanwhile reads its answer itself.
            let ready = socket::wait(&[(self.socket.as_fd(), PollFlags::IN)], None);
            let mut state = self.lock()?;
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
                state.listener_sleeps = true;
                state = self.quiet.wait(state)?;
                state.listener_sleeps = false;
            } else {
                seen = Some(state.waits);
                state = self.quiet.wait_timeout(state, limits::QUIET)?.0;
            }
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
