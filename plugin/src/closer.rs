//! Closing what strangers may have put something into. A listening socket goes with the connections that nobody accepted, and with
//! what was sent over these, descriptors too; a close of such a one takes for as long as whoever sent it likes. So it is done in
//! threads of their own, so many at a time, and so many of one namespace; what finds none stays open until one of them comes back.
//! Node and broker have one each, and see to it that not too much waits: the node takes no member in without room for it, the broker,
//! which cannot say no to who leaves, ends at [`most_unclosed`]. What is open when the process ends the kernel closes, and waits
//! for nobody's lingering then.

use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use gpu_handoff_protocol::Namespace;
use tracing::warn;

use crate::limits;

/// How many slots that are gone may stay open in a broker that may have so many descriptors open. They are kept for them, so
/// that none of its other work is without a descriptor before it ends for them.
pub(crate) const fn most_unclosed(descriptors: u64) -> u64 {
    let share = descriptors / limits::UNCLOSED_SHARE;
    if share < limits::UNCLOSED { share } else { limits::UNCLOSED }
}

/// What strangers may have put something into: dropped, it stays open until the process ends.
#[derive(Debug)]
pub(crate) struct Unclosed(ManuallyDrop<Arc<OwnedFd>>);

impl Unclosed {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(ManuallyDrop::new(Arc::new(descriptor)))
    }

    /// To be passed on: nobody may have that for longer than this is here.
    pub(crate) fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }

    fn close(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

/// Who closes.
#[derive(Debug, Default)]
pub(crate) struct Closer(Arc<Mutex<Left>>);

/// What is left to close.
#[derive(Debug, Default)]
struct Left {
    /// And whose it was.
    waiting: VecDeque<(Namespace, Unclosed)>,
    threads: usize,
    /// Those of them that have not taken anything yet.
    starting: usize,
    /// What those have not come back from.
    closing: BTreeMap<Namespace, usize>,
}

impl Closer {
    /// Has it closed, and does not wait for that.
    pub(crate) fn close(&self, namespace: &Namespace, descriptor: Unclosed) {
        let mut left = locked(&self.0);
        left.waiting.push_back((namespace.clone(), descriptor));
        if left.threads < limits::CLOSERS && left.next_at().is_some() {
            let all = Arc::clone(&self.0);
            match Builder::new().name("closer".to_owned()).spawn(move || close_all(&all)) {
                Ok(_) => {
                    left.threads += 1;
                    left.starting += 1;
                }
                Err(e) => warn!(error = %e, "a slot that is gone stays open: there is no thread to close it"),
            }
        } else {
            let waiting = left.waiting.len();
            warn!(waiting, %namespace, "slots that are gone stay open: what was sent to others of them does not close");
        }
    }

    /// How many stay open.
    pub(crate) fn waiting(&self) -> usize {
        let left = locked(&self.0);
        // Whoever starts takes one at once.
        left.waiting.len().saturating_sub(left.starting)
    }

    /// How many of this namespace do.
    pub(crate) fn waiting_of(&self, namespace: &Namespace) -> usize {
        let left = locked(&self.0);
        let own = left.waiting.iter().filter(|(of, _)| of == namespace).count();
        own.saturating_sub(left.starting)
    }
}

impl Left {
    /// Which may be closed now.
    fn next_at(&self) -> Option<usize> {
        let closing = |namespace| self.closing.get(namespace).copied().unwrap_or_default();
        self.waiting.iter().position(|(namespace, _)| closing(namespace) < limits::CLOSERS_OF_NAMESPACE)
    }

    fn next(&mut self) -> Option<(Namespace, Unclosed)> {
        let (namespace, next) = self.waiting.remove(self.next_at()?)?;
        *self.closing.entry(namespace.clone()).or_default() += 1;
        Some((namespace, next))
    }

    fn is_closed(&mut self, namespace: &Namespace) {
        if let Some(closing) = self.closing.get_mut(namespace) {
            *closing = closing.saturating_sub(1);
            if *closing == 0 {
                self.closing.remove(namespace);
            }
        }
    }
}

fn close_all(left: &Mutex<Left>) {
    let mut now = locked(left);
    now.starting = now.starting.saturating_sub(1);
    loop {
        let Some((namespace, next)) = now.next() else {
            now.threads = now.threads.saturating_sub(1);
            return;
        };
        drop(now);
        next.close();
        now = locked(left);
        now.is_closed(&namespace);
    }
}

fn locked(left: &Mutex<Left>) -> MutexGuard<'_, Left> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod testing;
