//! A thread that closes what was kept: closing the last descriptor of GPU memory takes the driver half a millisecond,
//! and longer where a GPU is in trouble; nobody who connects has to wait for that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::memory::Descriptor;

/// The thread. Ends, with all closed, when this is dropped.
#[derive(Debug)]
pub struct Closer {
    /// Its length is bounded by what may be kept: what waits here takes the room of something kept.
    queue: Option<Sender<Descriptor>>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Closer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no room for one.
    pub fn start() -> io::Result<Self> {
        let (queue, closing) = channel::<Descriptor>();
        let waiting = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&waiting);
        let thread = std::thread::Builder::new().name("closer".to_owned()).spawn(move || {
            for descriptor in closing {
                drop(descriptor);
                count.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(Self { queue: Some(queue), waiting, thread: Some(thread) })
    }

    /// Closes a descriptor that was kept, soon.
    pub fn close(&self, descriptor: Descriptor) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Only a thread that panicked takes no more; then it is closed here.
        if self.queue.as_ref().is_none_or(|queue| queue.send(descriptor).is_err()) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Descriptors that are not closed yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported on standard error already.
            let _ = thread.join();
        }
    }
}
