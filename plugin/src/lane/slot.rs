//! The sidecar's connection to its slot, and the connections that it hands on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use gpu_handoff_protocol::codec::{self, Frame};
use gpu_handoff_protocol::message::{SidecarBody, SidecarMessage, SlotBody, SlotMessage, Version};
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION, Refusal, limits as wire};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::in_flight::Line;
use super::keepsakes::KeeperId;
use super::offers::Offering;
use super::{Context, Newcomer, Place};
use crate::{identity, limits};

/// Serves one connection to the slot until it ends or breaks the rules.
pub(super) async fn serve(context: Rc<Context>, fd: OwnedFd) {
    let socket = match AsyncSeqPacket::new(SeqPacket::from_own(fd)) {
        Ok(socket) => Line::new(socket, &context.in_flight),
        Err(e) => return warn!(error = %e, "a sidecar's connection cannot be watched"),
    };
    let admitted = admit(&context, &socket).await;
    match &admitted {
        Err(refusal) => {
            if let Some(untold) = context.chatter.may_tell() {
                warn!(%refusal, untold, "connection to the slot refused");
            }
            context.teller.refused(refusal);
            say(&socket, 0, SlotBody::Refused(refusal.clone())).await;
        }
        Ok(_) => {
            if let Err(refusal) = converse(&context, &socket).await {
                if let Some(untold) = context.chatter.may_tell() {
                    warn!(%refusal, untold, "the sidecar's connection ends");
                }
                context.teller.refused(&refusal);
                say(&socket, 0, SlotBody::Refused(refusal)).await;
            }
        }
    }
    socket.end();
    // What it has not read stays in flight, and its place is taken, until its end is closed.
    socket.is_read().await;
    drop(admitted);
}

/// Checks that there is a place, and who connected to the slot.
async fn admit(context: &Context, socket: &Line) -> Result<Place, Refusal> {
    let limit = limits::SLOT_CONNECTIONS;
    let place = context.slot_connections.take(limit);
    let place = place.ok_or_else(|| too_many("connections to the slot", limit as u64))?;
    let process = identity::identify(socket.as_fd(), context.spec.door)?;
    if let Some(home) = &context.spec.home {
        home.admit(&process).await?;
    }
    Ok(place)
}

async fn converse(context: &Rc<Context>, socket: &Line) -> Result<(), Refusal> {
    let hello = timeout(Duration::from_millis(wire::HELLO_MS), next(context, socket)).await;
    let Some(first) = hello.map_err(|_| Refusal::new(Code::HelloExpected))?? else { return Ok(()) };
    let SidecarBody::Hello { version } = first.body else { return Err(Refusal::new(Code::HelloExpected)) };
    check_version(version)?;
    let (pod, group) = (context.spec.pod.clone(), context.spec.group.clone());
    say(socket, first.request, SlotBody::Welcome { version: PROTOCOL_VERSION, pod, group }).await;
    if let Some(untold) = context.chatter.may_tell() {
        info!(untold, "sidecar connected");
    }
    let mut sidecar = Sidecar::new(context);
    let (spec, sealer) = (&context.spec, &context.shared.sealer);
    loop {
        let (keeper, appointed) = (sidecar.keeper, sidecar.offering.is_done());
        // In no fixed order: neither a sidecar that sends without end nor much to be kept holds the others up.
        tokio::select! {
            message = next(context, socket) => match message? {
                // A sidecar that floods must not keep the other tasks of its lane from running.
                Some(message) => tokio::join!(sidecar.serve(socket, message), tokio::task::consume_budget()).0?,
                None => break,
            },
            checked = sidecar.offering.checked() => {
                let (request, outcomes) = sidecar.offering.show(checked)?;
                say(socket, request, SlotBody::Offered(outcomes)).await;
            }
            told = context.keepsakes.next(keeper, appointed, spec, sealer) => say(socket, 0, told?).await,
        }
        sidecar.offering.go_on(keeper);
    }
    info!("sidecar disconnected");
    Ok(())
}

/// A sidecar that has said hello.
struct Sidecar<'a> {
    context: &'a Rc<Context>,
    keeper: KeeperId,
    offering: Offering,
}

impl Drop for Sidecar<'_> {
    fn drop(&mut self) {
        self.context.keepsakes.dismiss(self.keeper);
    }
}

impl<'a> Sidecar<'a> {
    fn new(context: &'a Rc<Context>) -> Self {
        Self { context, keeper: context.keepsakes.introduce(), offering: Offering::new(context) }
    }

    async fn serve(&mut self, socket: &Line, message: SidecarMessage) -> Result<(), Refusal> {
        let SidecarMessage { request, body } = message;
        match body {
            SidecarBody::HandOn(fd) => {
                let outcome = receive(self.context, fd).await;
                if let Err(refusal) = &outcome {
                    self.context.teller.refused(refusal);
                    if let Some(untold) = self.context.chatter.may_tell() {
                        warn!(%refusal, untold, "connection handed on is refused");
                    }
                }
                say(socket, request, SlotBody::HandedOn(outcome)).await;
                Ok(())
            }
            SidecarBody::Offer(items) => self.offering.take(request, items),
            SidecarBody::OfferDone => self.offering.is_all(),
            SidecarBody::Hello { .. } => Err(Refusal::new(Code::HelloExpected)),
        }
    }
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
    let limit = context.spec.quota.borrow().connections;
    let places = usize::try_from(limit).unwrap_or(usize::MAX);
    context.connections.take(places).ok_or_else(|| too_many("connections", limit))
}

fn too_many(what: &str, limit: u64) -> Refusal {
    Refusal::new(Code::TooManyConnections).compared_with(what, format!("at most {limit}"), "one more")
}

fn not_a_connection(error: &io::Error) -> Refusal {
    Refusal::new(Code::NotAConnection).compared_with("descriptor", "one that can be watched", error)
}

async fn next(context: &Context, socket: &Line) -> Result<Option<SidecarMessage>, Refusal> {
    let frame: Option<Frame> = socket.recv_in(&context.buffer).await.unwrap_or_else(|e| {
        debug!(error = %e, "receiving from the sidecar failed");
        None
    });
    frame.map(codec::decode_sidecar).transpose()
}

/// Answers; a sidecar that does not read is one that is gone.
async fn say(socket: &Line, request: u64, body: SlotBody) {
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
