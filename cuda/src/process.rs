//! Which process this is, told from the one that it was forked from. Its number alone does not say: a child that the first
//! process of a PID namespace forks into a new one has the same number, 1.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks ago the process is that first asked.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCHED: Once = Once::new();

/// A process. Two are the same only if they are one; to be compared with those that it was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    generation: u64,
}

impl Process {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        WATCHED.call_once(count_forks);
        // The number still tells a child that was made without the C library's knowledge.
        Self { pid: std::process::id(), generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// Whether it is this one.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Its number in its own PID namespace.
    #[must_use]
    pub const fn pid(self) -> u32 {
        self.pid
    }
}

/// Nobody has a process to compare with before this.
fn count_forks() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only adds to an atomic, which is allowed in a child of a threaded process, and does not unwind. It is
    // there for as long as the C library calls it: a library that is unloaded takes its handlers along. Where there is no
    // memory for it, processes are told by their numbers alone.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process_though_it_had_the_same_number() {
        let own = Process::current();
        assert!(own.is_current() && own.pid() == std::process::id());
        // SAFETY: the child of this process with threads calls what may be called there, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let now = Process::current();
            let differs = !own.is_current() && now.generation != own.generation && now.is_current();
            // SAFETY: it takes a plain number.
            unsafe { libc::_exit(if differs { 7 } else { 1 }) };
        }
        let mut code = 0;
        // SAFETY: the child is ours and is waited for once; the code lives through the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut code, 0) }, child);
        assert_eq!((libc::WIFEXITED(code), libc::WEXITSTATUS(code)), (true, 7));
        assert!(own.is_current());
    }
}
