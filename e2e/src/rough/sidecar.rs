//! A sidecar that keeps to no rules.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{RequestId, SidecarBody, SidecarMessage, SlotBody, SlotMessage};
use gpu_handoff_protocol::{PROTOCOL_VERSION, Refusal};

use super::Wire;

/// A sidecar that speaks the protocol by hand.
#[derive(Debug)]
pub struct Sidecar {
    /// Its connection.
    pub wire: Wire,
    last_request: RequestId,
}

impl Sidecar {
    /// Connects to a slot's socket and says nothing.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(slot: &Path) -> anyhow::Result<Self> {
        Ok(Self { wire: Wire::connect(&slot.join("slot.sock"))?, last_request: 0 })
    }

    /// Connects and says hello.
    ///
    /// # Errors
    /// When it is not welcomed.
    pub fn greeted(slot: &Path) -> anyhow::Result<Self> {
        let mut sidecar = Self::connect(slot)?;
        sidecar.greet()?;
        Ok(sidecar)
    }

    /// Says hello and waits for the welcome.
    ///
    /// # Errors
    /// When it is not welcomed.
    pub fn greet(&mut self) -> anyhow::Result<()> {
        let request = self.begin(SidecarBody::Hello { version: PROTOCOL_VERSION })?;
        match self.hear()?.context("the slot ended the connection")? {
            SlotMessage { request: answered, body: SlotBody::Welcome { .. } } if answered == request => {
                Ok(())
            }
            other => bail!("the hello was answered by {other:?}"),
        }
    }

    /// Sends a message under a new number and gives that back.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn begin(&mut self, body: SidecarBody) -> anyhow::Result<RequestId> {
        self.last_request += 1;
        let packet = codec::encode_sidecar(SidecarMessage { request: self.last_request, body });
        ensure!(self.wire.send(packet.bytes, packet.descriptors)?, "the connection has ended");
        Ok(self.last_request)
    }

    /// The next message; `None`: the connection has ended.
    ///
    /// # Errors
    /// When nothing comes in time, or something unreadable.
    pub fn hear(&mut self) -> anyhow::Result<Option<SlotMessage>> {
        let heard = self.wire.recv()?.map(codec::decode_slot).transpose()?;
        Ok(heard.map(|(message, _more)| message))
    }

    /// Hands something on as a connection, and waits for the answer.
    ///
    /// # Errors
    /// When there is none.
    pub fn hand_on(&mut self, descriptor: OwnedFd) -> anyhow::Result<Result<(), Refusal>> {
        let request = self.begin(SidecarBody::HandOn(descriptor))?;
        match self.hear()?.context("the slot ended the connection")? {
            SlotMessage { request: answered, body: SlotBody::HandedOn(outcome) } if answered == request => {
                Ok(outcome)
            }
            other => bail!("a connection handed on was answered by {other:?}"),
        }
    }

    /// The refusal that ends the connection, after which nothing more may come.
    ///
    /// # Errors
    /// When the connection is not refused, or not ended.
    pub fn refused(mut self) -> anyhow::Result<Refusal> {
        let refusal = loop {
            let message = self.hear()?.context("the connection ended without a refusal")?;
            if let SlotMessage { request: 0, body: SlotBody::Refused(refusal) } = message {
                break refusal;
            }
        };
        self.ended()?;
        Ok(refusal)
    }

    /// Waits until the broker has ended the connection.
    ///
    /// # Errors
    /// When the connection goes on.
    pub fn ended(mut self) -> anyhow::Result<()> {
        while self.wire.recv().context("wait for the end of the connection")?.is_some() {}
        Ok(())
    }
}
