//! What a stranger may send.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket::SeqPacket;

/// How long the close of [`closes_late`] takes.
pub(crate) const LINGER: Duration = Duration::from_secs(20);

/// Leaves such a one unread where nobody accepts, and nobody else has it any more. Gives who is to read from it.
pub(crate) fn send_late(to: &Path) -> TcpStream {
    let (late, silent) = closes_late();
    let connection = SeqPacket::connect(to).unwrap();
    let packet = Outgoing { bytes: vec![0], descriptors: vec![Arc::new(late)] };
    assert!(connection.try_send(&packet).unwrap());
    silent
}

/// Reads to the end: there is one when the socket is closed.
pub(crate) fn is_closed(mut silent: &TcpStream) {
    silent.set_read_timeout(Some(LINGER / 2)).unwrap();
    silent.read_to_end(&mut Vec::new()).unwrap();
}

/// A TCP socket whose close waits for somebody who does not read, and who that is.
pub(crate) fn closes_late() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let silent = listener.accept().unwrap().0;
    socket.set_nonblocking(true).unwrap();
    while (&socket).write(&[0; 64 << 10]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    (socket.into(), silent)
}
