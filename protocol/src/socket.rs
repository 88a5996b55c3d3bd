//! Packets with descriptors over `SOCK_SEQPACKET` Unix sockets.
//!
//! A connection that was handed on shares its file description with a stranger, who may clear `O_NONBLOCK` at any
//! time. So every send and receive here asks the kernel not to wait, waiting is done in `poll` alone, and a
//! connection ends by `shutdown`: closing our descriptor would not tell the peer while others hold copies. The
//! stranger may also set `SO_PASSPIDFD`, so receiving owns every descriptor, known or not ([`gpu_handoff_sys`]).
//!
//! The kernel counts the descriptors that are in flight (sent, and not yet received) for the sender's user, over all
//! its processes, whatever pod they are in. Once they are more than the sender's `RLIMIT_NOFILE`, packets with
//! descriptors are refused with `ETOOMANYREFS`, unless the sender has `CAP_SYS_RESOURCE` or `CAP_SYS_ADMIN`. That may
//! be somebody else's doing and passes, so it counts as "no room": no connection ends by it, and those that wait try
//! again every [`limits::IN_FLIGHT_PAUSE_MS`]. The daemon caps what each member may leave unread of what it sends. What
//! remains: another program of the daemon's user that parks descriptors delays what has to bring one, for as long as
//! they are parked. So the daemon's user should be nobody else's.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use gpu_handoff_sys::receive::receive;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};

use crate::codec::{self, Frame, Outgoing};
use crate::limits;
use crate::message::{BrokerBody, BrokerMessage};
use crate::refusal::{Code, Refusal};

pub use listener::SeqListener;

/// Most descriptors that the kernel lets one packet carry; all are received, so that all are owned and counted.
const KERNEL_DESCRIPTORS: usize = 253;

/// Room for one received packet, reused from packet to packet.
#[derive(Debug)]
pub struct RecvBuffer {
    bytes: Box<[u8]>,
    control: Box<[u64]>,
}

impl RecvBuffer {
    /// Room for the largest packet and one byte more, so that a longer one is noticed; and for what a stranger may have
    /// asked for beside descriptors: the sender's credentials, and a pidfd of it.
    #[must_use]
    pub fn new() -> Self {
        let control = rustix::cmsg_space!(ScmRights(KERNEL_DESCRIPTORS), ScmCredentials(1), ScmRights(1));
        Self {
            bytes: vec![0; limits::MESSAGE_BYTES + 1].into(),
            control: vec![0; control.div_ceil(size_of::<u64>())].into(),
        }
    }
}

impl Default for RecvBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// What one attempt to receive gave.
#[derive(Debug)]
pub enum Received {
    /// A packet.
    Frame(Frame),
    /// Nothing is there yet.
    Nothing,
    /// The peer has ended the connection.
    Closed,
}

/// One end of a connection.
#[derive(Debug)]
pub struct SeqPacket(OwnedFd);

impl SeqPacket {
    /// Connects to a listening socket.
    ///
    /// # Errors
    /// What `socket` or `connect` answer.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = new_socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// What `socketpair` answers.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// Takes over a descriptor that a stranger handed on, if it is one end of a connected `SOCK_SEQPACKET` Unix
    /// socket. Anything else is closed here.
    ///
    /// # Errors
    /// `NOT_A_CONNECTION`, with what was found.
    pub fn from_stranger(fd: OwnedFd) -> Result<Self, Refusal> {
        match describe(fd.as_fd()) {
            Ok(()) => Ok(Self(fd)),
            Err(found) => Err(Refusal::new(Code::NotAConnection).compared_with(
                "descriptor",
                "a connected SOCK_SEQPACKET Unix socket",
                found,
            )),
        }
    }

    /// Takes over a descriptor of our own making.
    #[must_use]
    pub fn from_own(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Has the kernel name the sender of each packet from now on ([`Frame::sender`]).
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn name_senders(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_passcred(&self.0, true)?)
    }

    /// Sends one packet without waiting. `Ok(false)`: there is no room, in the peer's queue or among the descriptors in
    /// flight; [`SeqPacket::send`] waits for either.
    ///
    /// # Errors
    /// What `sendmsg` answers: `EPIPE` and `ECONNRESET` when the peer is gone.
    pub fn try_send(&self, packet: &Outgoing) -> io::Result<bool> {
        Ok(try_send(self.as_fd(), packet)? == Sent::Whole)
    }

    /// Receives one packet without waiting. Every descriptor that came along is owned before anything is checked.
    ///
    /// # Errors
    /// What `recvmsg` answers.
    pub fn try_recv(&self, buffer: &mut RecvBuffer) -> io::Result<Received> {
        try_recv(self.as_fd(), buffer)
    }

    /// Sends one packet, waiting for room in `poll` until the deadline.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, else what `sendmsg` answers.
    pub fn send(&self, packet: &Outgoing, deadline: Option<Instant>) -> io::Result<()> {
        loop {
            let (events, until) = match try_send(self.as_fd(), packet)? {
                Sent::Whole => return Ok(()),
                Sent::QueueFull => (PollFlags::OUT, deadline),
                // Only the end of the connection cuts the pause short.
                Sent::TooManyInFlight => {
                    let again = Instant::now() + Duration::from_millis(limits::IN_FLIGHT_PAUSE_MS);
                    (PollFlags::empty(), Some(deadline.map_or(again, |d| d.min(again))))
                }
            };
            if !wait(&[(self.as_fd(), events)], until)? && deadline.is_some_and(|d| d <= Instant::now()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Receives one packet, waiting in `poll` until the deadline. `None`: the peer has ended the connection.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, else what `recvmsg` answers.
    pub fn recv(&self, buffer: &mut RecvBuffer, deadline: Option<Instant>) -> io::Result<Option<Frame>> {
        loop {
            match self.try_recv(buffer)? {
                Received::Frame(frame) => return Ok(Some(frame)),
                Received::Closed => return Ok(None),
                Received::Nothing => {
                    if !wait(&[(self.as_fd(), PollFlags::IN)], deadline)? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    /// Says no to an application's connection as a whole, and ends it.
    pub fn refuse(&self, refusal: &Refusal) {
        let message = BrokerMessage { request: 0, body: BrokerBody::Refused(refusal.clone()) };
        for packet in codec::encode_broker(&message) {
            // The refusal is a courtesy: a peer that cannot take it learns by the end of the connection.
            let _ = self.try_send(&packet);
        }
        self.end();
    }

    /// Ends the connection for both sides, whoever else holds copies of the descriptor.
    pub fn end(&self) {
        end(self.as_fd());
    }

    /// The descriptor itself.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for SeqPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SeqPacket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What one attempt to send gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The packet is on its way.
    Whole,
    /// The peer's queue is full: try again when the socket is writable.
    QueueFull,
    /// Our user has too many descriptors in flight, see the module's words: try again after a pause.
    TooManyInFlight,
}

/// Sends one packet without waiting.
pub(crate) fn try_send(socket: BorrowedFd<'_>, packet: &Outgoing) -> io::Result<Sent> {
    let fds: Vec<BorrowedFd<'_>> = packet.descriptors.iter().map(AsFd::as_fd).collect();
    // Most packets carry one descriptor or none.
    let (mut few, mut many) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], Vec::new());
    let space: &mut [MaybeUninit<u8>] = match fds.len() {
        0 | 1 => &mut few,
        more => {
            many.resize(rustix::cmsg_space!(ScmRights(more)), MaybeUninit::uninit());
            &mut many
        }
    };
    let mut control = SendAncillaryBuffer::new(space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [io::IoSlice::new(&packet.bytes)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match retry(|| rustix::net::sendmsg(socket, &bytes, &mut control, flags)) {
        Ok(_) => Ok(Sent::Whole),
        Err(Errno::AGAIN) => Ok(Sent::QueueFull),
        Err(Errno::TOOMANYREFS) => Ok(Sent::TooManyInFlight),
        Err(other) => Err(other.into()),
    }
}

/// Receives one packet without waiting. Every descriptor that came along is owned before anything is checked.
pub(crate) fn try_recv(socket: BorrowedFd<'_>, buffer: &mut RecvBuffer) -> io::Result<Received> {
    let mut packet = receive(socket, &mut buffer.bytes, &mut buffer.control);
    if packet.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset) {
        // The peer closed with packets of ours unread. The kernel says so once, ahead of what the peer had said before:
        // its refusal, mostly.
        packet = receive(socket, &mut buffer.bytes, &mut buffer.control);
    }
    let packet = match packet {
        Ok(packet) => packet,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(Received::Closed),
        Err(other) => return Err(other),
    };
    if packet.bytes == 0 {
        return Ok(Received::Closed);
    }
    Ok(Received::Frame(Frame {
        bytes: buffer.bytes[..packet.bytes].to_vec(),
        descriptors: packet.descriptors,
        control_truncated: packet.control_truncated,
        bytes_truncated: packet.bytes_truncated,
        sender: packet.sender,
    }))
}

/// Ends a connection for both sides.
pub(crate) fn end(socket: BorrowedFd<'_>) {
    // A peer that has ended first makes this ENOTCONN: the wanted state is reached.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Waits in `poll` until one of the descriptors is ready, or until the deadline (`Ok(false)`).
///
/// # Errors
/// What `poll` answers.
pub fn wait(on: &[(BorrowedFd<'_>, PollFlags)], deadline: Option<Instant>) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> =
        on.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = left.map(|d| Timespec {
            tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(d.subsec_nanos()),
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(other) => return Err(other.into()),
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Says what a stranger's descriptor is, unless it is what we want.
fn describe(fd: BorrowedFd<'_>) -> Result<(), &'static str> {
    let Ok(kind) = sockopt::socket_type(fd) else {
        return Err("no socket");
    };
    if sockopt::socket_domain(fd) != Ok(AddressFamily::UNIX) {
        return Err("a socket of another family");
    }
    if kind != SocketType::SEQPACKET {
        return Err("a Unix socket of another type");
    }
    if sockopt::socket_acceptconn(fd) != Ok(false) {
        return Err("a listening socket");
    }
    rustix::net::getpeername(fd).map(drop).map_err(|_| "a socket that is not connected")
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

pub(crate) mod listener;
#[cfg(test)]
mod tests;
