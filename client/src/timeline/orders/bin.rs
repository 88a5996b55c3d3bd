//! Letting go of memory on a thread of its own: unmapping and freeing may take the driver long, or wait for streams which
//! wait for news that others read.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gpu_handoff_cuda::leaving::go_in;
use gpu_handoff_protocol::{Code, Refusal};

use super::outlive::Outliving;
use crate::again::Again;
use crate::import::Mapping;
use crate::lease::Held;
use crate::limits;
use crate::order::Ordered;
use crate::timeline::hold::Hold;
use crate::timeline::line::Line;

/// A lease that is given back on a stream. Here it has been: only its memory, and its hold on the timeline, are left.
pub(crate) type Leaving = (Held, Option<Ordered>, OnStream);

/// What is dropped where it may take long.
#[derive(Debug)]
pub(crate) enum Trash {
    Line(#[expect(dead_code, reason = "held for its drop")] Box<Line>),
    Hold(#[expect(dead_code, reason = "held for its drop")] Arc<Hold>),
    Outliving(#[expect(dead_code, reason = "held for its drop")] Outliving),
    Lease(#[expect(dead_code, reason = "held for its drop")] Box<Leaving>),
    Mappings(#[expect(dead_code, reason = "held for its drop")] Vec<Arc<Mapping>>),
    Published(#[expect(dead_code, reason = "held for its drop")] Vec<Arc<Again>>),
}

/// A lease that is given back on a stream, and counts until that is done.
#[derive(Debug)]
pub(crate) struct OnStream(Arc<Bin>);

/// Holds what is to be let go of: each mapping, publication and timeline once, and as many leases as there may be on
/// streams. The thread starts with the first of them.
#[derive(Debug, Default)]
pub(crate) struct Bin {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    trash: VecDeque<Trash>,
    on_streams: usize,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

impl Bin {
    /// Drops something on the thread. Where there is none and none can be started, it is dropped here.
    pub(crate) fn discard(self: &Arc<Self>, trash: Trash) {
        let mut state = self.lock();
        if state.stop || self.need_thread(&mut state).is_err() {
            drop(state);
            drop(trash);
            return;
        }
        state.trash.push_back(trash);
        self.bell.notify_one();
    }

    /// Starts the thread, if it is not there yet.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        self.need_thread(&mut self.lock())
    }

    fn need_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if state.thread.is_none() {
            let bin = Arc::clone(self);
            let thread = std::thread::Builder::new().name("gpu-handoff-u".to_owned());
            state.thread = Some(thread.spawn(move || bin.let_go())?);
        }
        Ok(())
    }

    /// Counts a lease that is given back on a stream from now on.
    pub(crate) fn on_stream(self: &Arc<Self>) -> Result<OnStream, Refusal> {
        let mut state = self.lock();
        if state.on_streams >= limits::LEASES_ON_STREAMS {
            let (most, found) = (format!("fewer than {}", limits::LEASES_ON_STREAMS), state.on_streams);
            let refusal = Refusal::new(Code::TooManyRequests);
            let refusal = refusal.compared_with("leases that are given back on streams", most, found);
            return Err(refusal.with_remedy("let the streams come so far before giving back more on them"));
        }
        state.on_streams += 1;
        Ok(OnStream(Arc::clone(self)))
    }

    /// Ends the thread, after what is to be let go of.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = self.lock();
            state.stop = true;
            state.thread.take()
        };
        self.bell.notify_all();
        // It may be the one that lets go of the last that there is of the client.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic of that thread has been reported on standard error already.
            let _ = thread.join();
        }
    }

    fn let_go(&self) {
        let mut state = self.lock();
        loop {
            if let Some(trash) = state.trash.pop_front() {
                drop(state);
                let inside = go_in();
                drop(trash);
                drop(inside);
                state = self.lock();
            } else if state.stop {
                return;
            } else {
                state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OnStream {
    fn drop(&mut self) {
        self.0.lock().on_streams -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_leases_are_given_back_on_streams_at_a_time() {
        let bin = Arc::new(Bin::default());
        let mut held: Vec<OnStream> =
            (0..limits::LEASES_ON_STREAMS).map(|_| bin.on_stream().unwrap()).collect();
        assert_eq!(bin.on_stream().unwrap_err().code(), Code::TooManyRequests);
        held.pop();
        held.push(bin.on_stream().unwrap());
        assert!(bin.on_stream().is_err());
    }

    #[test]
    fn what_is_thrown_away_is_let_go_of_on_another_thread() {
        let bin = Arc::new(Bin::default());
        let again = Arc::new(Again::Nothing);
        let held = Arc::downgrade(&again);
        bin.discard(Trash::Published(vec![again]));
        bin.stop();
        assert!(held.upgrade().is_none());
        // Afterwards, where it is thrown away.
        let again = Arc::new(Again::Nothing);
        let held = Arc::downgrade(&again);
        bin.discard(Trash::Published(vec![again]));
        assert!(held.upgrade().is_none());
    }
}
