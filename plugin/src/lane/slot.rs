//! The sidecar's connection to its slot, and the connections that it hands on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use gpu_handoff_protocol::codec::{self, Frame};
use gpu_handoff_protocol::message::{SidecarBody, SidecarMessage, SlotBody, SlotMessage, Version};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION, Refusal, limits as wire};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::{Context, Newcomer, Place};
use crate::{identity, limits};

/// Serves one connection to the slot until it ends or breaks the rules.
pub(super) async fn serve(context: Rc<Context>, fd: OwnedFd) {
    let socket = match AsyncSeqPacket::new(SeqPacket::from_own(fd)) {
        Ok(socket) => socket,
        Err(e) => return warn!(error = %e, "a sidecar's connection cannot be watched"),
    };
    match admit(&context, &socket) {
        Err(refusal) => {
            warn!(%refusal, "connection to the slot refused");
            say(&socket, 0, SlotBody::Refused(refusal)).await;
        }
        Ok(_place) => {
            if let Err(refusal) = converse(&context, &socket).await {
                warn!(%refusal, "the sidecar's connection ends");
                say(&socket, 0, SlotBody::Refused(refusal)).await;
            }
        }
    }
    socket.end();
}

/// Checks who connected to the slot, and that there is a place.
fn admit(context: &Context, socket: &AsyncSeqPacket) -> Result<Place, Refusal> {
    identity::identify_sidecar(socket.as_fd(), context.spec.door)?;
    let limit = limits::SLOT_CONNECTIONS;
    context.slot_connections.take(limit).ok_or_else(|| too_many("connections to the slot", limit as u64))
}

async fn converse(context: &Rc<Context>, socket: &AsyncSeqPacket) -> Result<(), Refusal> {
    let mut buffer = RecvBuffer::new();
    let hello = timeout(Duration::from_millis(wire::HELLO_MS), next(socket, &mut buffer)).await;
    let Some(first) = hello.map_err(|_| Refusal::new(Code::HelloExpected))?? else { return Ok(()) };
    let SidecarBody::Hello { version } = first.body else { return Err(Refusal::new(Code::HelloExpected)) };
    check_version(version)?;
    let (pod, group) = (context.spec.pod.clone(), context.spec.group.clone());
    say(socket, first.request, SlotBody::Welcome { version: PROTOCOL_VERSION, pod, group }).await;
    info!("sidecar connected");
    while let Some(message) = next(socket, &mut buffer).await? {
        let SidecarBody::HandOn(fd) = message.body else { return Err(Refusal::new(Code::HelloExpected)) };
        // A sidecar that floods must not keep the other tasks of its lane from running.
        tokio::task::consume_budget().await;
        let outcome = receive(context, fd).await;
        if let Err(refusal) = &outcome {
            warn!(%refusal, "connection handed on is refused");
        }
        say(socket, message.request, SlotBody::HandedOn(outcome)).await;
    }
    info!("sidecar disconnected");
    Ok(())
}

/// Takes in a connection that was handed on: checks what it is, and who is behind it.
async fn receive(context: &Context, fd: OwnedFd) -> Result<(), Refusal> {
    let socket = SeqPacket::from_stranger(fd)?;
    let admitted = place_for_one_more(context)
        .and_then(|place| Ok((place, identity::identify(socket.as_fd(), context.spec.door)?)));
    let (place, process) = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => {
            socket.refuse(&refusal);
            return Err(refusal);
        }
    };
    socket.name_senders().map_err(|e| not_a_connection(&e))?;
    let connection = AsyncSeqPacket::new(socket).map_err(|e| not_a_connection(&e))?;
    debug!(%process, "connection handed on");
    let newcomer = Newcomer { connection, process, place };
    context.newcomers.send(newcomer).await.map_err(|_| Refusal::new(Code::ShuttingDown))
}

fn place_for_one_more(context: &Context) -> Result<Place, Refusal> {
    let limit = context.spec.quota.connections;
    let places = usize::try_from(limit).unwrap_or(usize::MAX);
    context.connections.take(places).ok_or_else(|| too_many("connections", limit))
}

fn too_many(what: &str, limit: u64) -> Refusal {
    Refusal::new(Code::TooManyConnections).compared_with(what, format!("at most {limit}"), "one more")
}

fn not_a_connection(error: &io::Error) -> Refusal {
    Refusal::new(Code::NotAConnection).compared_with("descriptor", "one that can be watched", error)
}

async fn next(socket: &AsyncSeqPacket, buffer: &mut RecvBuffer) -> Result<Option<SidecarMessage>, Refusal> {
    let frame: Option<Frame> = socket.recv(buffer).await.unwrap_or_else(|e| {
        debug!(error = %e, "receiving from the sidecar failed");
        None
    });
    frame.map(codec::decode_sidecar).transpose()
}

/// Answers; a sidecar that does not read is one that is gone.
async fn say(socket: &AsyncSeqPacket, request: u64, body: SlotBody) {
    let patience = Duration::from_millis(wire::HELLO_MS);
    for packet in codec::encode_slot(&SlotMessage { request, body }) {
        if !matches!(timeout(patience, socket.send(&packet)).await, Ok(Ok(()))) {
            return socket.end();
        }
    }
}

/// Refuses a version that this daemon does not serve: its own minor version and the two before it.
pub(super) fn check_version(found: Version) -> Result<(), Refusal> {
    let (major, minor) = PROTOCOL_VERSION;
    let served = minor.saturating_sub(2)..=minor;
    if found.0 == major && served.contains(&found.1) {
        return Ok(());
    }
    let wanted = format!("{major}.{} to {major}.{minor}", served.start());
    Err(Refusal::new(Code::UnsupportedVersion).compared_with(
        "version",
        wanted,
        format!("{}.{}", found.0, found.1),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_served_versions_pass() {
        assert_eq!(check_version(PROTOCOL_VERSION), Ok(()));
        assert_eq!(check_version((0, 99)).unwrap_err().code(), Code::UnsupportedVersion);
        assert_eq!(check_version((9, 1)).unwrap_err().code(), Code::UnsupportedVersion);
    }
}
