//! How many descriptors this process may have.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits;

/// Raises the soft limit to the hard one, and gives what may be kept beside what the door itself needs.
///
/// The table of descriptors grows to that now: growing it later, with threads running, would stall them for
/// milliseconds.
///
/// # Errors
/// What the system calls answer.
pub fn raise() -> io::Result<usize> {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard })?;
    let most = hard.map_or(usize::MAX, |hard| usize::try_from(hard).unwrap_or(usize::MAX));
    let room = most.saturating_sub(limits::OWN_DESCRIPTORS).min(limits::KEPT_ITEMS);
    let last = i32::try_from(room + limits::OWN_DESCRIPTORS.min(most) - 1).unwrap_or(i32::MAX);
    drop(rustix::io::fcntl_dupfd_cloexec(io::stderr().as_fd(), last)?);
    Ok(room)
}
