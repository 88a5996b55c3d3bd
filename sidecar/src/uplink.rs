//! The connection to the node daemon: made again whenever it is lost, and told each time what this sidecar keeps.

mod offering;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu_handoff_logs::chain;
use gpu_handoff_protocol::codec::{self, Outgoing};
use gpu_handoff_protocol::message::{RequestId, SidecarBody, SidecarMessage, SlotBody, SlotMessage};
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION, Refusal};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use crate::keeper::Keeper;
use crate::limits;
use offering::Offering;

/// Why the daemon cannot be used at the moment.
#[derive(Debug, thiserror::Error)]
enum UplinkError {
    #[error("cannot connect to the slot's socket")]
    Connect(#[source] io::Error),
    #[error("the connection to the daemon failed")]
    Talk(#[source] io::Error),
    #[error("the daemon did not answer in time")]
    TooSlow,
    #[error("the daemon ended the connection")]
    Ended,
    #[error("the daemon refused")]
    Refused(#[source] Refusal),
    #[error("another sidecar has taken this one's slot over")]
    Displaced(#[source] Refusal),
    #[error("the daemon said what cannot be read")]
    Unreadable(#[source] Refusal),
    #[error("the daemon said what does not belong here")]
    Strange,
}

/// A connection of the pod, and how long it may wait for the daemon.
#[derive(Debug)]
pub struct Held {
    /// The connection.
    pub connection: OwnedFd,
    /// When it is refused, unless it was handed on.
    pub until: Instant,
}

/// A connection that the daemon has not answered for.
#[derive(Debug)]
struct InFlight {
    held: Held,
    answer_by: Instant,
}

/// A connection to the daemon that has said hello.
#[derive(Debug)]
struct Opening {
    link: AsyncSeqPacket,
    answer_by: Instant,
}

/// The way to the daemon.
#[derive(Debug)]
pub struct Uplink {
    slot: PathBuf,
    /// On the way to become `link`: kept here, so that nothing begins anew when waiting is cancelled.
    opening: Option<Opening>,
    link: Option<AsyncSeqPacket>,
    buffer: RecvBuffer,
    next_try: Instant,
    pause: Duration,
    /// How long it is stayed away once another sidecar takes the slot over.
    displaced_pause: Duration,
    /// Another sidecar has taken the slot over: what the daemon said.
    displaced: Option<Refusal>,
    last_request: RequestId,
    /// Connections handed on whose answer is not in yet.
    in_flight: BTreeMap<RequestId, InFlight>,
    /// The last packet, of one of them or of an offer, while there is no room for it.
    unsent: Option<(RequestId, Outgoing)>,
    keeper: Keeper,
    /// How far `link` has been told what is kept.
    offering: Offering,
    /// The last failure that was logged, so that waiting does not fill the log.
    said: Option<String>,
}

impl Uplink {
    /// A way to the daemon's socket in `slot`; not yet connected.
    #[must_use]
    pub fn new(slot: PathBuf, keeper: Keeper) -> Self {
        Self {
            slot,
            opening: None,
            link: None,
            buffer: RecvBuffer::new(),
            next_try: Instant::now(),
            pause: limits::RETRY_FIRST,
            displaced_pause: limits::DISPLACED_FIRST,
            displaced: None,
            last_request: 0,
            in_flight: BTreeMap::new(),
            unsent: None,
            keeper,
            offering: Offering::default(),
            said: None,
        }
    }

    /// Why the daemon is not asked at present: another sidecar has taken the slot over.
    #[must_use]
    pub fn displaced(&self) -> Option<&Refusal> {
        self.displaced.as_ref()
    }

    /// Whether one more connection can be handed on now.
    #[must_use]
    pub fn takes_more(&self) -> bool {
        self.link.is_some() && self.unsent.is_none() && self.in_flight.len() < limits::HELD_CONNECTIONS
    }

    /// Comes back when something has changed: the daemon was reached, has taken or answered for a connection, or was
    /// lost. In the latter case it gives back the connections that the daemon had not answered for, oldest first. Safe
    /// to cancel.
    pub async fn changed(&mut self) -> Vec<Held> {
        let outcome = if self.link.is_none() { self.connect().await } else { self.talk().await };
        match outcome {
            Ok(()) => Vec::new(),
            Err(e) => self.lost(&e),
        }
    }

    /// Hands a connection on. A failure gives it back.
    ///
    /// # Errors
    /// The connection, when the daemon is not there or we lack a descriptor.
    pub fn hand_on(&mut self, held: Held) -> Result<(), Held> {
        let Some(link) = &self.link else { return Err(held) };
        let Ok(copy) = held.connection.try_clone() else { return Err(held) };
        self.last_request += 1;
        let request = self.last_request;
        let packet = codec::encode_sidecar(SidecarMessage { request, body: SidecarBody::HandOn(copy) });
        if !matches!(link.try_send(&packet), Ok(true)) {
            // Without room it is sent later; a failure shows then too, after what the daemon may have said before.
            self.unsent = Some((request, packet));
        }
        self.in_flight.insert(request, InFlight { held, answer_by: Instant::now() + limits::ANSWER_TIME });
        Ok(())
    }

    /// When the first connection handed on is overdue.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.in_flight.first_key_value().map(|(_, f)| f.answer_by)
    }

    /// Takes out the connections that the daemon should have answered for by `now`.
    pub fn overdue(&mut self, now: Instant) -> Vec<Held> {
        let mut out = Vec::new();
        while let Some(first) = self.in_flight.first_entry()
            && first.get().answer_by <= now
        {
            let (request, in_flight) = first.remove_entry();
            self.unsent.take_if(|(unsent, _)| *unsent == request);
            out.push(in_flight.held);
        }
        out
    }

    fn answered(&mut self, request: RequestId, outcome: Result<(), Refusal>) {
        self.in_flight.remove(&request);
        match outcome {
            Ok(()) => debug!(request, "connection handed on"),
            Err(refusal) => warn!(%refusal, "the daemon does not serve a connection"),
        }
    }

    async fn connect(&mut self) -> Result<(), UplinkError> {
        let opening = match &mut self.opening {
            Some(opening) => opening,
            none => {
                sleep_until(self.next_try).await;
                self.last_request += 1;
                none.insert(Opening::begin(&self.slot, self.last_request)?)
            }
        };
        let answer = timeout_at(opening.answer_by, receive(&opening.link, &mut self.buffer)).await;
        match answer.map_err(|_| UplinkError::TooSlow)??.0.body {
            SlotBody::Welcome { pod, group, .. } => {
                info!(%pod, %group, kept = self.keeper.memory().len(), "the daemon is there");
            }
            SlotBody::Refused(refusal) => return Err(UplinkError::Refused(refusal)),
            _ => return Err(UplinkError::Strange),
        }
        self.link = self.opening.take().map(|o| o.link);
        self.offering = Offering::default();
        self.pause = limits::RETRY_FIRST;
        self.displaced = None;
        self.said = None;
        Ok(())
    }

    /// Sends the next offer, hears one message, or sends what had no room.
    async fn talk(&mut self) -> Result<(), UplinkError> {
        if self.offer()? {
            // One at a time: who connects meanwhile does not wait for all that is kept.
            return Ok(());
        }
        let link = self.link.as_ref().ok_or(UplinkError::Ended)?;
        tokio::select! {
            // What the daemon said before it went explains more than that nothing can be sent.
            biased;
            message = receive(link, &mut self.buffer) => match message {
                Ok((message, more)) => self.hear(message, more)?,
                // Only what is to be kept brings descriptors. Its publisher can export it again.
                Err(UplinkError::Unreadable(refusal)) if refusal.code() == Code::TruncatedControl => {
                    warn!("too few descriptors are left to keep what the daemon wants kept");
                }
                Err(other) => return Err(other),
            },
            sent = send(link, self.unsent.as_ref()) => {
                sent.map_err(UplinkError::Talk)?;
                if let Some((_, packet)) = self.unsent.take() {
                    self.keeper.close(packet.descriptors);
                }
            }
            () = until(self.offering.due()) => return Err(UplinkError::TooSlow),
            // There is something to be offered again.
            () = until(self.offering.wakes()), if self.unsent.is_none() => {}
        }
        Ok(())
    }

    /// Sends one packet of the offers, if it is time for it. False: there was nothing to send, or no room.
    fn offer(&mut self) -> Result<bool, UplinkError> {
        let Some(link) = self.link.as_ref().filter(|_| self.unsent.is_none()) else { return Ok(false) };
        let request = self.last_request + 1;
        let Some(body) = self.offering.next(request, self.keeper.memory()) else { return Ok(false) };
        self.last_request = request;
        let packet = codec::encode_sidecar(SidecarMessage { request, body });
        if matches!(link.try_send(&packet), Ok(true)) {
            return Ok(true);
        }
        self.unsent = Some((request, packet));
        Ok(false)
    }

    fn hear(&mut self, SlotMessage { request, body }: SlotMessage, more: bool) -> Result<(), UplinkError> {
        match body {
            SlotBody::HandedOn(outcome) => self.answered(request, outcome),
            SlotBody::Keep(items) => {
                items.iter().for_each(|item| self.offering.renewed(item.id));
                self.keeper.keep(items);
            }
            SlotBody::Forget(ids) => ids.into_iter().for_each(|id| self.keeper.forget(id)),
            SlotBody::Offered(outcomes) => {
                let refused = self.offering.answered(request, outcomes, more).ok_or(UplinkError::Strange)?;
                for (id, refusal) in refused {
                    info!(%id, %refusal, "the daemon does not want a buffer back");
                    self.keeper.forget(id);
                }
            }
            // Once it was welcome, there is one reason for that.
            SlotBody::Refused(refusal) if refusal.code() == Code::TooManyConnections => {
                return Err(UplinkError::Displaced(refusal));
            }
            SlotBody::Refused(refusal) => return Err(UplinkError::Refused(refusal)),
            SlotBody::Welcome { .. } => return Err(UplinkError::Strange),
        }
        Ok(())
    }

    fn lost(&mut self, why: &UplinkError) -> Vec<Held> {
        if let UplinkError::Displaced(refusal) = why {
            let (pause, slot) = (self.displaced_pause, self.slot.display());
            warn!(%refusal, %slot, again_in = ?pause, "another sidecar has taken this one's slot over: only one may serve it");
            self.displaced = Some(refusal.clone());
            self.next_try = Instant::now() + pause;
            self.displaced_pause = (pause * 2).min(limits::DISPLACED_LONGEST);
        } else {
            self.complain(why);
            self.displaced = None;
            if self.link.is_some() {
                // It was in its place: this is about the daemon.
                self.displaced_pause = limits::DISPLACED_FIRST;
            }
            self.next_try = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(limits::RETRY_LONGEST);
        }
        for link in self.opening.take().map(|o| o.link).into_iter().chain(self.link.take()) {
            link.end();
        }
        if let Some((_, packet)) = self.unsent.take() {
            self.keeper.close(packet.descriptors);
        }
        std::mem::take(&mut self.in_flight).into_values().map(|f| f.held).collect()
    }

    fn complain(&mut self, why: &UplinkError) {
        let text = chain(why);
        if self.said.as_ref() != Some(&text) {
            warn!(error = text, slot = %self.slot.display(), "the daemon cannot be reached; connections are held");
            self.said = Some(text);
        }
    }
}

impl Opening {
    /// Connects and says hello, for which a new connection has room.
    fn begin(slot: &Path, request: RequestId) -> Result<Self, UplinkError> {
        let link = AsyncSeqPacket::connect(slot).map_err(UplinkError::Connect)?;
        let body = SidecarBody::Hello { version: PROTOCOL_VERSION };
        let hello = codec::encode_sidecar(SidecarMessage { request, body });
        if !link.try_send(&hello).map_err(UplinkError::Talk)? {
            return Err(UplinkError::Talk(io::ErrorKind::WouldBlock.into()));
        }
        Ok(Self { link, answer_by: Instant::now() + limits::ANSWER_TIME })
    }
}

/// Sends what is to be sent; never comes back where that is nothing.
async fn send(link: &AsyncSeqPacket, unsent: Option<&(RequestId, Outgoing)>) -> io::Result<()> {
    match unsent {
        Some((_, packet)) => link.send(packet).await,
        None => std::future::pending().await,
    }
}

async fn receive(link: &AsyncSeqPacket, buffer: &mut RecvBuffer) -> Result<(SlotMessage, bool), UplinkError> {
    let frame = link.recv(buffer).await.map_err(UplinkError::Talk)?.ok_or(UplinkError::Ended)?;
    codec::decode_slot(frame).map_err(UplinkError::Unreadable)
}

/// Comes back at that moment; never where there is none.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
