//! The connection to the node daemon: made again whenever it is lost.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{RequestId, SidecarBody, SidecarMessage, SlotBody, SlotMessage};
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{PROTOCOL_VERSION, Refusal};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::limits;

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
    #[error("the daemon said what does not belong here")]
    Strange,
}

/// The way to the daemon.
#[derive(Debug)]
pub struct Uplink {
    slot: PathBuf,
    link: Option<AsyncSeqPacket>,
    buffer: RecvBuffer,
    next_try: Instant,
    pause: Duration,
    last_request: RequestId,
    /// Connections handed on whose answer is not in yet.
    in_flight: BTreeMap<RequestId, OwnedFd>,
    /// The last failure that was logged, so that waiting does not fill the log.
    said: Option<String>,
}

impl Uplink {
    /// A way to the daemon's socket in `slot`; not yet connected.
    #[must_use]
    pub fn new(slot: PathBuf) -> Self {
        Self {
            slot,
            link: None,
            buffer: RecvBuffer::new(),
            next_try: Instant::now(),
            pause: limits::RETRY_FIRST,
            last_request: 0,
            in_flight: BTreeMap::new(),
            said: None,
        }
    }

    /// Whether connections can be handed on now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.link.is_some()
    }

    /// Comes back when something has changed: the daemon was reached, or was lost. In the latter case it gives back the
    /// connections that the daemon had not answered for. Safe to cancel.
    pub async fn changed(&mut self) -> Vec<OwnedFd> {
        if self.link.is_none() {
            sleep_until(self.next_try).await;
            if let Err(e) = self.connect().await {
                self.lost(&e);
            }
            return Vec::new();
        }
        loop {
            match self.next().await {
                Ok(SlotMessage { request, body: SlotBody::HandedOn(outcome) }) => {
                    self.answered(request, outcome)
                }
                Ok(SlotMessage { body: SlotBody::Refused(refusal), .. }) => {
                    return self.lost(&UplinkError::Refused(refusal));
                }
                Ok(_) => return self.lost(&UplinkError::Strange),
                Err(e) => return self.lost(&e),
            }
        }
    }

    /// Hands a connection on. A failure gives it back.
    ///
    /// # Errors
    /// The connection, when the daemon is not there.
    pub async fn hand_on(&mut self, connection: OwnedFd) -> Result<(), OwnedFd> {
        let Some(link) = &self.link else { return Err(connection) };
        let Ok(copy) = connection.try_clone() else { return Err(connection) };
        self.last_request += 1;
        let packet = codec::encode_sidecar(SidecarMessage {
            request: self.last_request,
            body: SidecarBody::HandOn(copy),
        });
        match timeout(limits::ANSWER_TIME, link.send(&packet)).await {
            Ok(Ok(())) => {
                self.in_flight.insert(self.last_request, connection);
                Ok(())
            }
            _ => Err(connection),
        }
    }

    fn answered(&mut self, request: RequestId, outcome: Result<(), Refusal>) {
        self.in_flight.remove(&request);
        match outcome {
            Ok(()) => debug!(request, "connection handed on"),
            Err(refusal) => warn!(%refusal, "the daemon does not serve a connection"),
        }
    }

    async fn connect(&mut self) -> Result<(), UplinkError> {
        let link = AsyncSeqPacket::connect(&self.slot).map_err(UplinkError::Connect)?;
        let body = SidecarBody::Hello { version: PROTOCOL_VERSION };
        self.last_request += 1;
        let hello = codec::encode_sidecar(SidecarMessage { request: self.last_request, body });
        link.send(&hello).await.map_err(UplinkError::Talk)?;
        let answer = timeout(limits::ANSWER_TIME, receive(&link, &mut self.buffer)).await;
        match answer.map_err(|_| UplinkError::TooSlow)??.body {
            SlotBody::Welcome { pod, group, .. } => info!(%pod, %group, "the daemon is there"),
            SlotBody::Refused(refusal) => return Err(UplinkError::Refused(refusal)),
            SlotBody::HandedOn(_) => return Err(UplinkError::Strange),
        }
        self.link = Some(link);
        self.pause = limits::RETRY_FIRST;
        self.said = None;
        Ok(())
    }

    async fn next(&mut self) -> Result<SlotMessage, UplinkError> {
        match &self.link {
            Some(link) => receive(link, &mut self.buffer).await,
            None => Err(UplinkError::Ended),
        }
    }

    fn lost(&mut self, why: &UplinkError) -> Vec<OwnedFd> {
        let text = chain(why);
        if self.said.as_ref() != Some(&text) {
            warn!(error = text, slot = %self.slot.display(), "the daemon is not there; connections are held");
            self.said = Some(text);
        }
        if let Some(link) = self.link.take() {
            link.end();
        }
        self.next_try = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(limits::RETRY_LONGEST);
        std::mem::take(&mut self.in_flight).into_values().collect()
    }
}

async fn receive(link: &AsyncSeqPacket, buffer: &mut RecvBuffer) -> Result<SlotMessage, UplinkError> {
    let frame = link.recv(buffer).await.map_err(UplinkError::Talk)?.ok_or(UplinkError::Ended)?;
    codec::decode_slot(frame).map_err(UplinkError::Refused)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
