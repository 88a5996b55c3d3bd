//! Which process connected a socket: the kernel's word, never the peer's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `SO_PEERPIDFD` of `asm-generic/socket.h` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// The process that connected a socket, as the kernel recorded it at that moment.
#[derive(Debug)]
pub struct Peer {
    /// Process number in our own PID namespace.
    pub pid: Pid,
    /// Effective user at the moment of connecting, in our own user namespace.
    pub uid: u32,
    /// A descriptor of that very process.
    pub pidfd: OwnedFd,
    /// Whether the pidfd came with the socket (Linux 6.5) or was opened by number afterwards. In the latter case the
    /// caller must make sure that the number was not reused in between.
    pub exact: bool,
}

/// Names the process that connected the other end of `socket`.
///
/// # Errors
/// `NotFound` when that process is gone or is not visible from our PID namespace; else what the kernel answers.
pub fn peer_of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let credentials = rustix::net::sockopt::socket_peercred(socket)?;
    let (pidfd, exact) = match peer_pidfd(socket) {
        Ok(fd) => (fd, true),
        Err(e) if is_unknown_option(&e) => (pidfd_open(credentials.pid, PidfdFlags::empty())?, false),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Err(io::ErrorKind::NotFound.into()),
        Err(e) => return Err(e),
    };
    let pid = pid_of(pidfd.as_fd())?;
    if pid != credentials.pid {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Peer { pid, uid: credentials.uid.as_raw(), pidfd, exact })
}

fn is_unknown_option(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EINVAL | libc::EOPNOTSUPP))
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of_val(&fd)).unwrap_or(0);
    // SAFETY: `socket` is open for the call; `fd` and `length` are live, properly aligned, and `length` states the
    // size of `fd`, so the kernel writes at most one int.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast::<libc::c_void>(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    if fd < 0 {
        return Err(Errno::SRCH.into());
    }
    // SAFETY: the kernel has just put this descriptor into our table and told nobody else of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The process number of a pidfd, in our own PID namespace.
///
/// # Errors
/// `NotFound` when the process has been reaped or is not visible from our PID namespace.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<Pid> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = info.lines().find_map(|l| l.strip_prefix("Pid:")).and_then(|n| n.trim().parse::<i32>().ok());
    number.filter(|n| *n > 0).and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_pair_was_connected_by_ourselves() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = peer_of(a.as_fd()).unwrap();
        assert_eq!(peer.pid, rustix::process::getpid());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(pid_of(peer.pidfd.as_fd()).unwrap(), peer.pid);
    }

    #[test]
    fn something_other_than_a_socket_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_of(file.as_fd()).is_err());
        assert!(pid_of(file.as_fd()).is_err());
    }
}
