//! Peers that keep to no rules: raw packets to a pod's socket and to a slot, for tests of what the daemon does then.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gpu_handoff_protocol::codec::{self, Frame, Outgoing};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, Grant, Publication, PublishedAs,
    RequestId, Target, Version, Wanted, Welcome,
};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::{
    Access, BufferFacts, BufferId, Code, DeviceUuid, Kind, LeaseId, Lifetime, Metadata, PROTOCOL_VERSION,
    Refusal,
};

use crate::node::PATIENCE;

mod sidecar;

pub use sidecar::Sidecar;

/// A descriptor as messages attach it.
pub type Shared = Arc<OwnedFd>;

/// A connection on which anything can be said.
#[derive(Debug)]
pub struct Wire {
    socket: SeqPacket,
    buffer: RecvBuffer,
}

impl Wire {
    /// Takes over a connection.
    #[must_use]
    pub fn new(socket: SeqPacket) -> Self {
        Self { socket, buffer: RecvBuffer::new() }
    }

    /// Connects to a listening socket.
    ///
    /// # Errors
    /// What the system answers.
    pub fn connect(path: &Path) -> anyhow::Result<Self> {
        let socket = SeqPacket::connect(path).with_context(|| format!("connect to {}", path.display()))?;
        Ok(Self::new(socket))
    }

    /// The connection itself.
    #[must_use]
    pub fn socket(&self) -> &SeqPacket {
        &self.socket
    }

    /// Sends one packet. Says whether the peer still takes any.
    ///
    /// # Errors
    /// When the peer has no room for long, or the system fails.
    pub fn send(&self, bytes: Vec<u8>, descriptors: Vec<Shared>) -> anyhow::Result<bool> {
        let packet = Outgoing { bytes, descriptors };
        match self.socket.send(&packet, Some(Instant::now() + PATIENCE)) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Ok(false)
            }
            Err(e) => Err(e).context("send a packet"),
        }
    }

    /// The next packet; `None`: the peer has ended the connection.
    ///
    /// # Errors
    /// When nothing comes in time.
    pub fn recv(&mut self) -> anyhow::Result<Option<Frame>> {
        self.recv_within(PATIENCE)
    }

    /// The next packet; `None`: the peer has ended the connection.
    ///
    /// # Errors
    /// When nothing comes in time.
    pub fn recv_within(&mut self, time: Duration) -> anyhow::Result<Option<Frame>> {
        self.socket.recv(&mut self.buffer, Some(Instant::now() + time)).context("wait for a packet")
    }
}

/// An application that speaks the protocol by hand.
#[derive(Debug)]
pub struct Client {
    /// Its connection.
    pub wire: Wire,
    last_request: RequestId,
}

impl Client {
    /// Connects and says nothing.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        Ok(Self::new(Wire::connect(socket)?))
    }

    /// An application on this connection.
    #[must_use]
    pub fn new(wire: Wire) -> Self {
        Self { wire, last_request: 0 }
    }

    /// Connects and says hello.
    ///
    /// # Errors
    /// When it is not welcomed.
    pub fn greeted(socket: &Path) -> anyhow::Result<Self> {
        let mut client = Self::connect(socket)?;
        client.greet()?;
        Ok(client)
    }

    /// Says hello and waits for the welcome.
    ///
    /// # Errors
    /// When it is not welcomed.
    pub fn greet(&mut self) -> anyhow::Result<Welcome> {
        match self.ask(hello(PROTOCOL_VERSION))? {
            BrokerBody::Welcome(welcome) => Ok(welcome),
            other => bail!("the hello was answered by {other:?}"),
        }
    }

    /// Sends a message under this number.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn say(&self, request: RequestId, body: ClientBody) -> anyhow::Result<bool> {
        let Outgoing { bytes, descriptors } = codec::encode_client(&ClientMessage { request, body });
        self.wire.send(bytes, descriptors)
    }

    /// Sends a request under a new number and gives that back.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn begin(&mut self, body: ClientBody) -> anyhow::Result<RequestId> {
        self.last_request += 1;
        ensure!(self.say(self.last_request, body)?, "the connection has ended");
        Ok(self.last_request)
    }

    /// The next message, joined of its packets; `None`: the connection has ended.
    ///
    /// # Errors
    /// When nothing comes in time, or something unreadable.
    pub fn hear(&mut self) -> anyhow::Result<Option<BrokerMessage>> {
        let Some(frame) = self.wire.recv()? else { return Ok(None) };
        let (mut message, mut more) = codec::decode_broker(frame)?;
        while more {
            let next = self.wire.recv()?.context("the rest of an answer")?;
            let (part, goes_on) = codec::decode_broker(next)?;
            message.body = codec::join(message.body, part.body, goes_on)?;
            more = goes_on;
        }
        Ok(Some(message))
    }

    /// The next message under this number; others are passed over.
    ///
    /// # Errors
    /// When the connection ends first, or nothing comes in time.
    pub fn answer(&mut self, request: RequestId) -> anyhow::Result<BrokerBody> {
        loop {
            let message = self.hear()?.context("the connection ended before the answer came")?;
            if message.request == request && !matches!(message.body, BrokerBody::Announced) {
                return Ok(message.body);
            }
            if let (0, BrokerBody::Refused(refusal)) = (message.request, message.body) {
                bail!("the connection was refused before the answer came: {refusal}");
            }
        }
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// When none comes.
    pub fn ask(&mut self, body: ClientBody) -> anyhow::Result<BrokerBody> {
        let request = self.begin(body)?;
        self.answer(request)
    }

    /// Publishes.
    ///
    /// # Errors
    /// When the answer is no outcome of a publish.
    pub fn publish(&mut self, items: Vec<Publication>) -> anyhow::Result<Vec<Result<PublishedAs, Refusal>>> {
        match self.ask(ClientBody::Publish(items))? {
            BrokerBody::Published(outcomes) => Ok(outcomes),
            other => bail!("a publish was answered by {other:?}"),
        }
    }

    /// Publishes one buffer.
    ///
    /// # Errors
    /// When the answer is no outcome of a publish.
    pub fn publish_one(&mut self, item: Publication) -> anyhow::Result<Result<PublishedAs, Refusal>> {
        self.publish(vec![item])?.pop().context("one outcome")
    }

    /// Acquires one buffer.
    ///
    /// # Errors
    /// When the answer is no outcome of an acquire.
    pub fn acquire(&mut self, target: Target, wait: Duration) -> anyhow::Result<Result<Grant, Refusal>> {
        match self.ask(ClientBody::Acquire {
            items: vec![Wanted { target, newer_than: 0 }],
            wait,
            device: None,
        })? {
            BrokerBody::Acquired(mut outcomes) => outcomes.pop().context("one outcome"),
            other => bail!("an acquire was answered by {other:?}"),
        }
    }

    /// Acquires what does not exist: whether the connection goes on.
    ///
    /// # Errors
    /// When the answer is none to that.
    pub fn acquire_nothing(&mut self) -> anyhow::Result<bool> {
        let outcome = self.acquire(Target::Name("no-such-buffer".parse()?), Duration::ZERO)?;
        Ok(outcome.is_err_and(|refusal| refusal.code() == Code::NotFound))
    }

    /// Releases leases.
    ///
    /// # Errors
    /// When the answer is no outcome of a release.
    pub fn release(&mut self, leases: Vec<LeaseId>) -> anyhow::Result<Vec<Result<(), Refusal>>> {
        match self.ask(ClientBody::Release(leases))? {
            BrokerBody::Released(outcomes) => Ok(outcomes),
            other => bail!("a release was answered by {other:?}"),
        }
    }

    /// Revokes a buffer, or retires it with a deadline.
    ///
    /// # Errors
    /// When the answer is no outcome of a retire.
    pub fn retire(&mut self, id: BufferId, deadline: Duration) -> anyhow::Result<Result<u32, Refusal>> {
        match self.ask(ClientBody::Retire { id, deadline })? {
            BrokerBody::Retired(outcome) => Ok(outcome),
            other => bail!("a retire was answered by {other:?}"),
        }
    }

    /// The refusal that ends the connection, after which nothing more may come.
    ///
    /// # Errors
    /// When the connection is not refused, or not ended.
    pub fn refused(mut self) -> anyhow::Result<Refusal> {
        let refusal = loop {
            let message = self.hear()?.context("the connection ended without a refusal")?;
            if let (0, BrokerBody::Refused(refusal)) = (message.request, message.body) {
                break refusal;
            }
        };
        self.ended()?;
        Ok(refusal)
    }

    /// Waits until the broker has ended the connection; what it says before is passed over.
    ///
    /// # Errors
    /// When the connection goes on.
    pub fn ended(mut self) -> anyhow::Result<()> {
        while self.wire.recv().context("wait for the end of the connection")?.is_some() {}
        Ok(())
    }
}

/// A hello.
#[must_use]
pub fn hello(version: Version) -> ClientBody {
    ClientBody::Hello { version, program: "rough client".to_owned() }
}

/// A publication of a descriptor that is said to be so many bytes of this device.
///
/// # Errors
/// When the name is none.
pub fn vmm(name: &str, device: DeviceUuid, bytes: u64, descriptor: Shared) -> anyhow::Result<Publication> {
    Ok(Publication {
        facts: facts(name, Kind::Vmm, device, bytes)?,
        carrier: Carrier::Descriptor(descriptor),
    })
}

/// A publication of a handle that nobody can check.
///
/// # Errors
/// When the name is none.
pub fn legacy(name: &str, device: DeviceUuid, bytes: u64) -> anyhow::Result<Publication> {
    Ok(Publication { facts: facts(name, Kind::Legacy, device, bytes)?, carrier: Carrier::Legacy([7; 64]) })
}

fn facts(name: &str, kind: Kind, device: DeviceUuid, bytes: u64) -> anyhow::Result<BufferFacts> {
    Ok(BufferFacts {
        name: name.parse()?,
        kind,
        device,
        offset: 0,
        size: bytes,
        allocation_size: bytes,
        access: Access::ReadWrite,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    })
}
