//! Sockets at which connections come.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::{SeqPacket, new_socket, retry};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket in the file system.
#[derive(Debug)]
pub struct SeqListener(OwnedFd);

impl SeqListener {
    /// Binds the path, after removing a socket that an earlier process left there, and listens.
    ///
    /// # Errors
    /// What the system calls answer; `AddrInUse` when somebody listens there, or the path is something else than a socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        remove_stale_socket(path)?;
        let socket = new_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self(socket))
    }

    /// Takes over a listening socket of our own making.
    #[must_use]
    pub fn from_own(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Accepts one connection without waiting; `None`: nobody is there.
    ///
    /// # Errors
    /// What `accept` answers: `EMFILE` when the process has no descriptor left.
    pub fn try_accept(&self) -> io::Result<Option<OwnedFd>> {
        try_accept(self.as_fd())
    }

    /// The descriptor itself.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for SeqListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SeqListener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Accepts one connection without waiting; `None`: nobody is there.
pub(crate) fn try_accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match retry(|| rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        // Only what nobody listens on is a leftover: a full queue or another type of socket is somebody's.
        Ok(found) if found.file_type().is_socket() => match SeqPacket::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        },
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}
