//! One packet with every descriptor that came along.
//!
//! rustix skips control messages that it does not know, and one of those brings a descriptor: whoever shares a
//! socket's file description can set `SO_PASSPIDFD` on it, and from then on each packet leaves a pidfd in the
//! receiver's table. Here every descriptor is owned: those of `SCM_RIGHTS` are returned, pidfds are closed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `SCM_PIDFD` of `linux/socket.h` (Linux 6.5).
const SCM_PIDFD: libc::c_int = 4;

/// A packet that was received.
#[derive(Debug)]
pub struct Packet {
    /// Bytes written to the caller's room.
    pub bytes: usize,
    /// The descriptors that the sender attached.
    pub descriptors: Vec<OwnedFd>,
    /// The process that sent the packet, by its number in our own PID namespace: where the socket asks for credentials
    /// (`SO_PASSCRED`) and did so already when the packet was sent. `None` as well for one that has no number here.
    pub sender: Option<u32>,
    /// Descriptors were lost.
    pub control_truncated: bool,
    /// The packet was longer than the room for it.
    pub bytes_truncated: bool,
}

/// Receives one packet without waiting. `control` is the room for control messages.
///
/// # Errors
/// What `recvmsg` answers: `WouldBlock` when nothing is there.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], control: &mut [u64]) -> io::Result<Packet> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` is numbers and pointers, for all of which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let count = loop {
        // SAFETY: `header` and `part` are live and state the sizes of `bytes` and `control`, which nobody else uses.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        match usize::try_from(count) {
            Ok(count) => break count,
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                other => return Err(other),
            },
        }
    };
    let (descriptors, sender) = take_control(&header);
    Ok(Packet {
        bytes: count,
        descriptors,
        sender,
        control_truncated: header.msg_flags & libc::MSG_CTRUNC != 0,
        bytes_truncated: header.msg_flags & libc::MSG_TRUNC != 0,
    })
}

/// Owns every descriptor of a received header, once, and keeps those that were attached; and says who sent it.
fn take_control(header: &libc::msghdr) -> (Vec<OwnedFd>, Option<u32>) {
    let (mut attached, mut sender) = (Vec::new(), None);
    // SAFETY: the kernel has filled the room for control messages and stated how much of it, in `header`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: a pointer that is not null is to a whole `cmsghdr` within that room.
    while let Some(message) = unsafe { next.as_ref() } {
        // SAFETY: a computation on numbers.
        let head = unsafe { libc::CMSG_LEN(0) } as usize;
        let length = message.cmsg_len.saturating_sub(head);
        // SAFETY: the payload begins right after the header of the message.
        let payload = unsafe { libc::CMSG_DATA(next) };
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_SOCKET, kind @ (libc::SCM_RIGHTS | SCM_PIDFD)) => {
                // SAFETY: that many bytes of descriptors, which the kernel has just put into our table and told nobody
                // else of, are in this message, and it is looked at once.
                let owned = unsafe { own(payload.cast(), length / size_of::<libc::c_int>()) };
                if kind == libc::SCM_RIGHTS {
                    attached.extend(owned);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                // SAFETY: the message holds a whole `ucred`; nothing says that it is aligned.
                let credentials = unsafe { payload.cast::<libc::ucred>().read_unaligned() };
                // 0 stands for a process that has no number here, and for a packet that was sent before we asked.
                sender = u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0);
            }
            _ => {}
        }
        // SAFETY: as for the first; `next` is the message before.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    (attached, sender)
}

/// Owns descriptors by their numbers; one that is negative is a pidfd that could not be made.
///
/// # Safety
/// `numbers` points at `count` numbers; those that are not negative are open and owned by nobody.
unsafe fn own(numbers: *const libc::c_int, count: usize) -> Vec<OwnedFd> {
    // SAFETY: there are `count` of them, by the caller's promise; nothing says that they are aligned.
    let read = (0..count).map(|i| unsafe { numbers.add(i).read_unaligned() });
    // SAFETY: open, and owned by nobody, by the caller's promise.
    read.filter(|number| *number >= 0).map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    /// The pidfds of this process in its own table.
    fn pidfds() -> usize {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links
            .filter_map(|e| std::fs::read_link(e.path()).ok())
            .filter(|l| l.to_string_lossy().contains("pidfd"))
            .count()
    }

    #[test]
    fn options_that_a_stranger_sets_leave_nothing_behind() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        crate::options::pass_pidfd(b.as_fd()).unwrap();
        rustix::net::sockopt::set_socket_passcred(&b, true).unwrap();
        let before = pidfds();
        for round in 0..50 {
            let fds = [a.as_fd(); 3];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
            let bytes = [io::IoSlice::new(b"x")];
            rustix::net::sendmsg(&a, &bytes, &mut control, rustix::net::SendFlags::empty()).unwrap();
            let packet = receive(b.as_fd(), &mut [0; 8], &mut [0; 32]).unwrap();
            assert_eq!((packet.bytes, packet.descriptors.len()), (1, 3), "round {round}");
            assert!(!packet.control_truncated);
        }
        assert!(pidfds() < before + 10, "{} pidfds before, {} after", before, pidfds());
    }

    #[test]
    fn nothing_there_would_block() {
        let (_a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let error = receive(b.as_fd(), &mut [0; 8], &mut [0; 32]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_packet_names_its_sender_from_when_that_was_asked_for() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let told = || receive(b.as_fd(), &mut [0; 8], &mut [0; 32]).unwrap().sender;
        rustix::net::send(&a, b"x", rustix::net::SendFlags::empty()).unwrap();
        rustix::net::sockopt::set_socket_passcred(&b, true).unwrap();
        assert_eq!(told(), None, "it was sent before");
        rustix::net::send(&a, b"x", rustix::net::SendFlags::empty()).unwrap();
        assert_eq!(told(), Some(std::process::id()));
        // Another process speaks through the same socket.
        let mut other = std::process::Command::new("sh");
        other.args(["-c", "echo x"]).stdout(a.try_clone().unwrap());
        let mut other = other.spawn().unwrap();
        let (pid, status) = (other.id(), other.wait().unwrap());
        assert!(status.success());
        // It has ended and was reaped; the packet names it all the same.
        assert_eq!(told(), Some(pid));
    }
}
