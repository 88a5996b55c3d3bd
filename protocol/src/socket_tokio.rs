//! The sockets of [`crate::socket`] for programs that run on tokio.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use gpu_handoff_sys::registered::register;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until};

use crate::codec::{Frame, Outgoing};
use crate::limits;
use crate::socket::{self, Received, RecvBuffer, Sent, SeqListener, SeqPacket};

/// One end of a connection, registered with the runtime: for reading alone, because a socket that is watched for room
/// wakes its thread with every packet that the peer takes out. Room is watched for only where there is none.
#[derive(Debug)]
pub struct AsyncSeqPacket(AsyncFd<OwnedFd>);

impl AsyncSeqPacket {
    /// Registers a connection with the current runtime.
    ///
    /// # Errors
    /// What `epoll_ctl` answers.
    pub fn new(socket: SeqPacket) -> io::Result<Self> {
        register(socket.into_fd(), Interest::READABLE).map(Self)
    }

    /// Connects to a listening socket. Unix sockets connect at once or not at all.
    ///
    /// # Errors
    /// What `socket` or `connect` answer.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::new(SeqPacket::connect(path)?)
    }

    /// Receives one packet; `None`: the peer has ended the connection. Safe to cancel.
    ///
    /// # Errors
    /// What `recvmsg` answers.
    pub async fn recv(&self, buffer: &mut RecvBuffer) -> io::Result<Option<Frame>> {
        self.recv_by(|socket| socket::try_recv(socket, buffer)).await
    }

    /// Receives as [`recv`](Self::recv), into a buffer that others of this thread use too, while nothing is there for this
    /// one.
    ///
    /// # Errors
    /// What `recvmsg` answers.
    pub async fn recv_in(&self, buffer: &RefCell<RecvBuffer>) -> io::Result<Option<Frame>> {
        self.recv_by(|socket| socket::try_recv(socket, &mut buffer.borrow_mut())).await
    }

    async fn recv_by(
        &self,
        mut receive: impl FnMut(BorrowedFd<'_>) -> io::Result<Received>,
    ) -> io::Result<Option<Frame>> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|s| would_block(receive(s.as_fd())?)) {
                Ok(Ok(Received::Frame(frame))) => return Ok(Some(frame)),
                Ok(Ok(_)) => return Ok(None),
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }

    /// Receives one packet without waiting; `None`: nothing is there, or the peer has ended the connection.
    ///
    /// # Errors
    /// What `recvmsg` answers.
    pub fn try_recv_in(&self, buffer: &RefCell<RecvBuffer>) -> io::Result<Option<Frame>> {
        match socket::try_recv(self.as_fd(), &mut buffer.borrow_mut())? {
            Received::Frame(frame) => Ok(Some(frame)),
            Received::Nothing | Received::Closed => Ok(None),
        }
    }

    /// Sends one packet without waiting; `Ok(false)`: there is no room, in the peer's queue or among the
    /// descriptors in flight; [`AsyncSeqPacket::send`] waits for either.
    ///
    /// # Errors
    /// What `sendmsg` answers.
    pub fn try_send(&self, packet: &Outgoing) -> io::Result<bool> {
        Ok(socket::try_send(self.as_fd(), packet)? == Sent::Whole)
    }

    /// Sends one packet, waiting for room in the peer's queue and among the descriptors in flight. Safe to cancel: a
    /// packet is sent whole or not at all. The runtime needs its timers.
    ///
    /// # Errors
    /// What `sendmsg` answers.
    pub async fn send(&self, packet: &Outgoing) -> io::Result<()> {
        let mut watched: Option<AsyncFd<OwnedFd>> = None;
        let mut sent = socket::try_send(self.as_fd(), packet)?;
        loop {
            sent = match sent {
                Sent::Whole => return Ok(()),
                Sent::TooManyInFlight => {
                    sleep(Duration::from_millis(limits::IN_FLIGHT_PAUSE_MS)).await;
                    socket::try_send(self.as_fd(), packet)?
                }
                Sent::QueueFull => {
                    let watched = match &mut watched {
                        Some(watched) => watched,
                        none => {
                            none.insert(register(self.as_fd().try_clone_to_owned()?, Interest::WRITABLE)?)
                        }
                    };
                    let mut ready = watched.writable().await?;
                    match ready.try_io(|s| match socket::try_send(s.as_fd(), packet)? {
                        Sent::QueueFull => Err(io::ErrorKind::WouldBlock.into()),
                        other => Ok(other),
                    }) {
                        Ok(outcome) => outcome?,
                        Err(_would_block) => Sent::QueueFull,
                    }
                }
            };
        }
    }

    /// Ends the connection for both sides, whoever else holds copies of the descriptor.
    pub fn end(&self) {
        socket::end(self.as_fd());
    }
}

impl AsFd for AsyncSeqPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// `Nothing` as the error by which tokio clears its readiness.
fn would_block(received: Received) -> io::Result<Received> {
    match received {
        Received::Nothing => Err(io::ErrorKind::WouldBlock.into()),
        other => Ok(other),
    }
}

/// A listening socket, registered with the runtime.
#[derive(Debug)]
pub struct AsyncSeqListener(AsyncFd<OwnedFd>);

impl AsyncSeqListener {
    /// Registers a listening socket with the current runtime.
    ///
    /// # Errors
    /// What `epoll_ctl` answers.
    pub fn new(listener: SeqListener) -> io::Result<Self> {
        register(listener.into_fd(), Interest::READABLE).map(Self)
    }

    /// Binds and listens, see [`SeqListener::bind`].
    ///
    /// # Errors
    /// What the system calls answer.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Self::new(SeqListener::bind(path)?)
    }

    /// Accepts one connection, but none before `rest_until`: after a failure, mostly for want of descriptors, trying again
    /// at once would fail at once. Safe to cancel.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub async fn accept_from(&self, rest_until: Instant) -> io::Result<OwnedFd> {
        sleep_until(rest_until).await;
        self.accept().await
    }

    /// Accepts one connection. Safe to cancel.
    ///
    /// # Errors
    /// What `accept` answers: `EMFILE` when the process has no descriptor left.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|l| {
                socket::listener::try_accept(l.as_fd())?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
            }) {
                Ok(outcome) => return outcome,
                Err(_would_block) => {}
            }
        }
    }
}
