//! Closing what strangers may have put something into. A listening socket goes with the connections that nobody accepted, and with
//! what was sent over these, descriptors too; a close of such a one takes for as long as whoever sent it likes. So it is done in
//! threads of their own, so many at a time; what finds none stays open until another is closed. Node and broker have one each.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SendError, channel};
use std::thread::{Builder, JoinHandle};

use tracing::warn;

use crate::limits;

/// Who closes.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    /// Those that have not come back.
    threads: Vec<JoinHandle<()>>,
    waiting: VecDeque<Arc<OwnedFd>>,
}

impl Closer {
    /// Has it closed, and does not wait for that. Nobody else may have it, who would be the last then.
    pub(crate) fn close(&mut self, descriptor: Arc<OwnedFd>) {
        self.waiting.push_back(descriptor);
        self.threads.retain(|thread| !thread.is_finished());
        while self.threads.len() < limits::CLOSERS {
            let Some(next) = self.waiting.pop_front() else { return };
            // Handed over when there is somebody to take it: it is never dropped here.
            let (hand, taken) = channel::<Arc<OwnedFd>>();
            match Builder::new().name("closer".to_owned()).spawn(move || drop(taken.recv())) {
                Ok(thread) => {
                    self.threads.push(thread);
                    if let Err(SendError(next)) = hand.send(next) {
                        self.waiting.push_front(next);
                    }
                }
                Err(e) => {
                    warn!(error = %e, "a slot that is gone stays open: there is no thread to close it");
                    return self.waiting.push_front(next);
                }
            }
        }
        warn!(
            waiting = self.waiting.len(),
            "slots that are gone stay open: what was sent to others of them does not close"
        );
    }
}

impl Drop for Closer {
    /// What waits is left to the end of the process: the kernel lets nobody's close wait for that.
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.waiting));
    }
}

#[cfg(test)]
pub(crate) mod testing;
