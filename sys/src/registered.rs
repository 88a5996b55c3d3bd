//! Descriptors that a tokio runtime watches.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the current runtime.
///
/// # Errors
/// What `epoll_ctl` answers: `EPERM` for a file that cannot be waited for.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `OwnedFd` keeps one descriptor number open for as long as it lives, and `AsyncFd` owns it and removes
    // it from the runtime before it drops it.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(Into::into)
}
