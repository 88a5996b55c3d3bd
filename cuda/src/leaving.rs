//! The end of the process. The driver takes itself apart when `main` has returned, and a thread that is in it then, or goes
//! into it afterwards, crashes the process. So threads that work in the background say when they go into the driver, and
//! none is let in any more once the process is leaving.

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// How long the end of the process waits for those that are in the driver: they may wait for streams that nobody will set free.
const PATIENCE: Duration = Duration::from_secs(1);

static GATE: Gate = Gate { state: Mutex::new(State { inside: 0, of: 0 }), left: Condvar::new() };
static REGISTERED: Once = Once::new();

struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

struct State {
    inside: usize,
    /// The process that is leaving; 0: none.
    of: u32,
}

/// One that is in the driver.
#[derive(Debug)]
#[must_use = "the process waits for this at its end"]
pub struct Inside(());

/// Goes into the driver in the background. Does not come back where the process is leaving. To be called when the driver is
/// loaded: what is registered first ends last.
pub fn go_in() -> Inside {
    REGISTERED.call_once(|| {
        // SAFETY: the function is there for as long as the process, takes and gives nothing, and does not unwind: it holds
        // a lock that nobody panics under. Where there is no room for it, the process ends as it would without it.
        unsafe { libc::atexit(leave) };
    });
    let mut state = GATE.lock();
    while state.of == std::process::id() {
        drop(state);
        std::thread::park();
        state = GATE.lock();
    }
    state.inside += 1;
    Inside(())
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

/// The process is leaving. A forked child has none of the threads that were inside.
extern "C" fn leave() {
    let Ok(mut state) = GATE.state.try_lock() else {
        // Held for a moment, or for good in a forked child.
        return;
    };
    state.of = std::process::id();
    let _ = GATE.left.wait_timeout_while(state, PATIENCE, |state| state.inside > 0);
}
