//! Is the whole way open? A real round trip, as an application would make it.

use std::io;
use std::path::Path;
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, ClientMessage, Welcome};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::{PROTOCOL_VERSION, Refusal, codec};

use crate::limits;

/// Why the way is not open.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// The sidecar's socket cannot be reached.
    #[error("cannot reach the sidecar's socket")]
    Connect(#[source] io::Error),
    /// The connection failed or took too long.
    #[error("no answer came through the sidecar's socket")]
    Talk(#[source] io::Error),
    /// The daemon, or the sidecar in its place, said no.
    #[error("the node daemon does not serve this pod")]
    Refused(#[source] Refusal),
    /// The answer was none to a hello.
    #[error("the answer to the hello was none")]
    Strange,
}

/// Says hello and waits for the welcome.
///
/// # Errors
/// See [`NotReady`].
pub fn check(socket: &Path) -> Result<Welcome, NotReady> {
    let deadline = Some(Instant::now() + limits::READY_TIME);
    let connection = SeqPacket::connect(socket).map_err(NotReady::Connect)?;
    let program = "gpu-handoff-sidecar ready".to_owned();
    let hello = ClientMessage { request: 1, body: ClientBody::Hello { version: PROTOCOL_VERSION, program } };
    connection.send(&codec::encode_client(&hello), deadline).map_err(NotReady::Talk)?;
    let frame = connection.recv(&mut RecvBuffer::new(), deadline).map_err(NotReady::Talk)?;
    let frame = frame.ok_or_else(|| NotReady::Talk(io::ErrorKind::UnexpectedEof.into()))?;
    match codec::decode_broker(frame).map_err(NotReady::Refused)?.0.body {
        BrokerBody::Welcome(welcome) => Ok(welcome),
        BrokerBody::Refused(refusal) => Err(NotReady::Refused(refusal)),
        _ => Err(NotReady::Strange),
    }
}
