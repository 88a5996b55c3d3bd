//! Socket options that rustix lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SO_PASSPIDFD` of `asm-generic/socket.h` (Linux 6.5).
const SO_PASSPIDFD: libc::c_int = 76;
/// `SK_MEMINFO_VARS` of `linux/sock_diag.h`: what `SO_MEMINFO` tells.
const MEMINFO_VALUES: usize = 9;
/// `SK_MEMINFO_WMEM_ALLOC` of `linux/sock_diag.h`.
const MEMINFO_WMEM_ALLOC: usize = 2;

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

/// Bytes that the kernel holds of what was sent through this socket and not yet read by its peer, with what it spends on
/// each packet. 0: everything was read, or thrown away with the peer.
///
/// # Errors
/// What `getsockopt` answers (`SO_MEMINFO`, Linux 4.12).
pub fn unread_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut values = [0u32; MEMINFO_VALUES];
    let mut length = libc::socklen_t::try_from(size_of_val(&values)).unwrap_or(0);
    // SAFETY: `socket` is open for the call, `values` is live, and `length` is its size in bytes.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match answer {
        0 => Ok(usize::try_from(values[MEMINFO_WMEM_ALLOC]).unwrap_or(usize::MAX)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
    use std::os::fd::AsFd;

    fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn what_the_peer_has_not_read_is_told_and_a_packet_costs_more_than_its_bytes() {
        let (a, b) = pair();
        let unread = || unread_bytes(a.as_fd()).unwrap();
        assert_eq!(unread(), 0);
        let mut last = 0;
        for _ in 0..3 {
            send(&a, &[7; 100], SendFlags::empty()).unwrap();
            assert!(unread() >= last + 100 + 512, "{} after {last}", unread());
            last = unread();
        }
        for _ in 0..3 {
            recv(&b, &mut [0; 200], RecvFlags::empty()).unwrap();
            assert!(unread() < last);
            last = unread();
        }
        assert_eq!(unread(), 0);
    }

    #[test]
    fn what_is_unread_outlives_our_end_of_the_connection_but_not_the_peers() {
        let (a, b) = pair();
        send(&a, &[7; 100], SendFlags::empty()).unwrap();
        rustix::net::shutdown(&a, rustix::net::Shutdown::Both).unwrap();
        assert!(unread_bytes(a.as_fd()).unwrap() > 0);
        drop(b);
        assert_eq!(unread_bytes(a.as_fd()).unwrap(), 0);
    }
}
