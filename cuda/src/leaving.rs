//! The end of the process. The driver takes itself apart when `main` has returned, and a thread that is in it then, or goes
//! into it afterwards, crashes the process. So threads that work in the background say when they go into the driver, and
//! none is let in any more once the process is leaving.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::process::Process;

/// How long the end of the process waits for those that are in the driver: they may wait for streams that nobody will set free.
const PATIENCE: Duration = Duration::from_secs(1);

static GATE: Gate = Gate { state: Mutex::new(State { inside: 0, closed: false }), left: Condvar::new() };
/// The process whose threads go in. A forked child has none of them.
static PROCESS: OnceLock<Process> = OnceLock::new();

struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

struct State {
    inside: usize,
    /// The process is leaving.
    closed: bool,
}

/// One that is in the driver.
#[derive(Debug)]
#[must_use = "the process waits for this at its end"]
pub struct Inside(());

/// Has the process close the gate before the driver takes itself apart. For when the driver has just become ready: what is
/// registered first ends last.
pub(crate) fn register() {
    PROCESS.get_or_init(|| {
        // SAFETY: the function is there for as long as the process, takes and gives nothing, and does not unwind: it holds
        // a lock that nobody panics under. Where there is no room for it, the process ends as it would without it.
        unsafe { libc::atexit(leave) };
        Process::current()
    });
}

/// Goes into the driver in the background. Does not come back where the process is leaving.
pub fn go_in() -> Inside {
    let mut state = GATE.lock();
    while state.closed {
        drop(state);
        std::thread::park();
        state = GATE.lock();
    }
    state.inside += 1;
    Inside(())
}

/// Whether nobody is let in any more. Who went to the gate then never comes back, so nobody may wait for a thread that does. For
/// the process itself: in a forked child the lock may have been taken along.
#[must_use]
pub fn is_closed() -> bool {
    GATE.lock().closed
}

impl Drop for Inside {
    fn drop(&mut self) {
        GATE.lock().inside -= 1;
        GATE.left.notify_all();
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process is leaving. In a forked child the lock may have been taken along, and nobody is there to give it back.
extern "C" fn leave() {
    if !PROCESS.get().is_some_and(|process| process.is_current()) {
        return;
    }
    let mut state = GATE.lock();
    state.closed = true;
    let _ = GATE.left.wait_timeout_while(state, PATIENCE, |state| state.inside > 0);
}
