//! Socket options that rustix lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_PASSPIDFD` of `asm-generic/socket.h` (Linux 6.5).
const SO_PASSPIDFD: libc::c_int = 76;

/// Asks for a pidfd of the sender with each packet that this socket receives. The daemon never does; a stranger who
/// shares a socket with it may.
///
/// # Errors
/// What `setsockopt` answers.
pub fn pass_pidfd(socket: BorrowedFd<'_>) -> io::Result<()> {
    let one: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&one)).unwrap_or(0);
    // SAFETY: `socket` is open for the call, `one` is live and `length` is its size.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSPIDFD, (&raw const one).cast(), length)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
