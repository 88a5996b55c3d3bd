//! Bytes and descriptors to messages, and back. Pure: no socket, no clock.
//!
//! A received packet arrives as a [`Frame`] whose descriptors are owned already. Decoding checks the bytes, pairs
//! each item with its descriptor, and drops (closes) what it refuses; so the caller decides in which thread a
//! stranger's descriptor is closed by choosing where it decodes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use prost::Message as _;

use crate::limits;
use crate::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, SidecarMessage, SlotBody, SlotMessage,
};
use crate::refusal::{Code, Refusal};
use crate::wire;

mod broker;
mod client;
mod convert;
mod direct;
mod event;
mod lease;
mod parts;
mod receipt;
mod short;
mod sidecar;

pub use parts::{Listed, batches};
pub use receipt::{decode_receipt_body, encode_receipt_body, open_receipt, seal_receipt};
pub use short::{Short, decode_short};

/// One packet as it came from the kernel.
#[derive(Debug, Default)]
pub struct Frame {
    /// The message's bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that came along, owned from the system call on.
    pub descriptors: Vec<OwnedFd>,
    /// The kernel cut the control data: descriptors were lost.
    pub control_truncated: bool,
    /// The packet was longer than [`limits::MESSAGE_BYTES`] and was cut.
    pub bytes_truncated: bool,
    /// The process that sent it, where the socket asks for that (`SeqPacket::name_senders`) and the kernel told.
    pub sender: Option<u32>,
}

/// One packet to send.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    /// The message's bytes.
    pub bytes: Vec<u8>,
    /// The descriptors to attach.
    pub descriptors: Vec<Arc<OwnedFd>>,
}

impl Frame {
    /// The checks that need no knowledge of the message.
    fn check_envelope(&self) -> Result<(), Refusal> {
        if self.bytes_truncated || self.bytes.len() > limits::MESSAGE_BYTES {
            let found = if self.bytes_truncated { "more".to_owned() } else { self.bytes.len().to_string() };
            return Err(Refusal::new(Code::TooLarge).compared_with("bytes", limits::MESSAGE_BYTES, found));
        }
        if self.control_truncated {
            return Err(Refusal::new(Code::TruncatedControl));
        }
        check_count("descriptors", self.descriptors.len(), limits::MESSAGE_DESCRIPTORS, Code::DescriptorCount)
    }
}

/// Refuses more than `limit` of something.
fn check_count(what: &'static str, found: usize, limit: usize, code: Code) -> Result<(), Refusal> {
    if found > limit {
        Err(Refusal::new(code).compared_with(what, format!("at most {limit}"), found))
    } else {
        Ok(())
    }
}

fn malformed(what: &str) -> Refusal {
    Refusal::new(Code::Malformed).compared_with("message", what, "something else")
}

/// Refuses a packet whose number of descriptors is not what its message calls for.
fn expect_descriptors(wanted: usize, found: usize) -> Result<(), Refusal> {
    if wanted == found {
        return Ok(());
    }
    Err(Refusal::new(Code::DescriptorCount).compared_with("descriptors", wanted, found))
}

/// Refuses a list of a request that is empty or over its limit.
fn check_items(count: usize) -> Result<(), Refusal> {
    if count == 0 {
        return Err(malformed("at least one item"));
    }
    check_count("items", count, limits::MESSAGE_ITEMS, Code::TooLarge)
}

/// Gives each flagged item its descriptor, in order.
fn take_flagged(
    flags: &[bool],
    descriptors: Vec<OwnedFd>,
) -> Result<impl Iterator<Item = Option<Arc<OwnedFd>>>, Refusal> {
    expect_descriptors(flags.iter().filter(|flag| **flag).count(), descriptors.len())?;
    let mut descriptors = descriptors.into_iter();
    Ok(flags.iter().map(move |flag| if *flag { descriptors.next().map(Arc::new) } else { None }))
}

/// Reads what an application sent.
///
/// # Errors
/// A refusal after which the connection must end: the packet is not one that a client of ours could have sent.
pub fn decode_client(frame: Frame) -> Result<ClientMessage, Refusal> {
    frame.check_envelope()?;
    let packet =
        wire::ClientPacket::decode(&*frame.bytes).map_err(|e| malformed(&format!("protobuf ({e})")))?;
    if packet.request == 0 {
        return Err(malformed("a request number other than 0"));
    }
    let body = packet.body.ok_or_else(|| malformed("a body that this version knows"))?;
    Ok(ClientMessage { request: packet.request, body: client::read_body(body, frame.descriptors)? })
}

/// Writes what an application says.
#[must_use]
pub fn encode_client(message: &ClientMessage) -> Outgoing {
    let descriptors = match &message.body {
        ClientBody::Publish(items) | ClientBody::PublishSet { items, .. } => {
            items.iter().filter_map(|i| descriptor(&i.carrier)).collect()
        }
        ClientBody::Reattach(claims) => claims.iter().filter_map(|c| c.descriptor.clone()).collect(),
        _ => Vec::new(),
    };
    let body = Some(client::write_body(&message.body));
    Outgoing { bytes: wire::ClientPacket { request: message.request, body }.encode_to_vec(), descriptors }
}

/// Reads what the broker sent. The flag tells that the answer goes on in the next packet.
///
/// # Errors
/// When the packet is not one that a broker of ours could have sent.
pub fn decode_broker(frame: Frame) -> Result<(BrokerMessage, bool), Refusal> {
    frame.check_envelope()?;
    let packet =
        wire::BrokerPacket::decode(&*frame.bytes).map_err(|e| malformed(&format!("protobuf ({e})")))?;
    let body = packet.body.ok_or_else(|| malformed("a body that this version knows"))?;
    let (body, more) = broker::read_body(body, frame.descriptors)?;
    Ok((BrokerMessage { request: packet.request, body }, more))
}

/// Writes what the broker says to an application: mostly one packet, more where the answer would not fit.
#[must_use]
pub fn encode_broker(message: &BrokerMessage) -> Vec<Outgoing> {
    broker::write(message.request, &message.body)
}

/// Joins the parts of an answer that came in several packets. `more`: `next` is not the last of them.
///
/// # Errors
/// When the parts do not belong together, or a set is not whole at its end.
pub fn join(first: BrokerBody, next: BrokerBody, more: bool) -> Result<BrokerBody, Refusal> {
    use BrokerBody as B;
    match (first, next) {
        (B::Published(a), B::Published(b)) => Ok(B::Published(chain(a, b))),
        (B::Acquired(a), B::Acquired(b)) => Ok(B::Acquired(chain(a, b))),
        (B::AcquiredSet { set, grants }, B::Acquired(b)) => broker::add_to_set(set, grants, b, more),
        (B::Released(a), B::Released(b)) => Ok(B::Released(chain(a, b))),
        (B::Reattached(a), B::Reattached(b)) => Ok(B::Reattached(chain(a, b))),
        _ => Err(malformed("the next part of the same answer")),
    }
}

/// Joins the parts of an answer to a sidecar that came in several packets.
///
/// # Errors
/// When the parts do not belong together.
pub fn join_slot(first: SlotBody, next: SlotBody) -> Result<SlotBody, Refusal> {
    match (first, next) {
        (SlotBody::Offered(a), SlotBody::Offered(b)) => Ok(SlotBody::Offered(chain(a, b))),
        _ => Err(malformed("the next part of the same answer")),
    }
}

fn chain<T>(mut a: Vec<T>, mut b: Vec<T>) -> Vec<T> {
    a.append(&mut b);
    a
}

/// Reads what a sidecar sent.
///
/// # Errors
/// A refusal after which the connection must end.
pub fn decode_sidecar(frame: Frame) -> Result<SidecarMessage, Refusal> {
    frame.check_envelope()?;
    let packet =
        wire::SidecarPacket::decode(&*frame.bytes).map_err(|e| malformed(&format!("protobuf ({e})")))?;
    if packet.request == 0 {
        return Err(malformed("a request number other than 0"));
    }
    let body = packet.body.ok_or_else(|| malformed("a body that this version knows"))?;
    Ok(SidecarMessage { request: packet.request, body: sidecar::read_body(body, frame.descriptors)? })
}

/// Writes what a sidecar says.
#[must_use]
pub fn encode_sidecar(message: SidecarMessage) -> Outgoing {
    let (body, descriptors) = sidecar::write_body(message.body);
    Outgoing {
        bytes: wire::SidecarPacket { request: message.request, body: Some(body) }.encode_to_vec(),
        descriptors,
    }
}

/// Reads what the broker sent to a sidecar. The flag tells that the answer goes on in the next packet.
///
/// # Errors
/// When the packet is not one that a broker of ours could have sent.
pub fn decode_slot(frame: Frame) -> Result<(SlotMessage, bool), Refusal> {
    frame.check_envelope()?;
    let packet =
        wire::SlotPacket::decode(&*frame.bytes).map_err(|e| malformed(&format!("protobuf ({e})")))?;
    let body = packet.body.ok_or_else(|| malformed("a body that this version knows"))?;
    let (body, more) = sidecar::read_slot_body(body, frame.descriptors)?;
    Ok((SlotMessage { request: packet.request, body }, more))
}

/// Writes what the broker says to a sidecar: mostly one packet, more where the answer would not fit.
#[must_use]
pub fn encode_slot(message: &SlotMessage) -> Vec<Outgoing> {
    sidecar::write_slot_bodies(&message.body)
        .into_iter()
        .map(|(body, descriptors)| {
            let packet = wire::SlotPacket { request: message.request, body: Some(body) };
            Outgoing { bytes: packet.encode_to_vec(), descriptors }
        })
        .collect()
}

fn descriptor(carrier: &Carrier) -> Option<Arc<OwnedFd>> {
    match carrier {
        Carrier::Descriptor(fd) => Some(Arc::clone(fd)),
        Carrier::Legacy(_) => None,
    }
}
