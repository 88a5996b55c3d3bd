//! The conversations that are recorded: between them, every message in both directions with every field.

mod application;
mod restart;
mod sets;
mod sidecar;
mod words;

use gpu_handoff_protocol::Refusal;
use gpu_handoff_protocol::codec::{
    Outgoing, encode_broker, encode_client, encode_receipt_body, encode_sidecar, encode_slot,
};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, ClientBody, ClientMessage, SidecarBody, SidecarMessage, SlotBody, SlotMessage,
};
use gpu_handoff_protocol::receipt::ReceiptBody;

use super::file::Conversation;
use super::packet::{Packet, Side};

/// All conversations, each with its file's name without ending.
///
/// # Errors
/// When the current code cannot read what it wrote.
pub fn all() -> Result<Vec<(&'static str, Conversation)>, Refusal> {
    Ok(vec![
        ("hello", application::hello()?),
        ("hello-refused", application::hello_refused()?),
        ("publish-and-retire", application::publish_and_retire()?),
        ("acquire-and-release", application::acquire_and_release()?),
        ("answers-in-several-packets", application::answers_in_several_packets()?),
        ("watch", application::watch()?),
        ("wait-and-cancel", application::wait_and_cancel()?),
        ("announce", application::announce()?),
        ("set", sets::publish_and_acquire()?),
        ("set-broken", sets::broken()?),
        ("order", sets::order()?),
        ("reattach", restart::reattach()?),
        ("receipts", restart::receipts()?),
        ("sidecar", sidecar::hand_on()?),
        ("sidecar-keeps", sidecar::keep()?),
        ("sidecar-refused", sidecar::refused()?),
    ])
}

/// A conversation as it goes on.
struct Talk(Conversation);

impl Talk {
    fn about(title: &str) -> Self {
        Self(Conversation { title: title.to_owned(), packets: Vec::new() })
    }

    fn add(&mut self, side: Side, packet: Outgoing) -> Result<(), Refusal> {
        self.0.packets.push(Packet::new(side, packet.bytes, packet.descriptors.len())?);
        Ok(())
    }

    fn application(&mut self, request: u64, body: ClientBody) -> Result<(), Refusal> {
        self.add(Side::Application, encode_client(&ClientMessage { request, body }))
    }

    fn broker(&mut self, request: u64, body: BrokerBody) -> Result<(), Refusal> {
        let packets = encode_broker(&BrokerMessage { request, body });
        packets.into_iter().try_for_each(|packet| self.add(Side::Broker, packet))
    }

    /// The first packet of an answer that goes on.
    fn broker_begins(&mut self, request: u64, body: BrokerBody) -> Result<(), Refusal> {
        let packets = encode_broker(&BrokerMessage { request, body });
        packets.into_iter().try_for_each(|packet| self.add(Side::Broker, with_more(packet)))
    }

    /// The same to a sidecar.
    fn slot_begins(&mut self, request: u64, body: SlotBody) -> Result<(), Refusal> {
        let packets = encode_slot(&SlotMessage { request, body });
        packets.into_iter().try_for_each(|packet| self.add(Side::Slot, with_more(packet)))
    }

    fn sidecar(&mut self, request: u64, body: SidecarBody) -> Result<(), Refusal> {
        self.add(Side::Sidecar, encode_sidecar(SidecarMessage { request, body }))
    }

    fn slot(&mut self, request: u64, body: SlotBody) -> Result<(), Refusal> {
        let packets = encode_slot(&SlotMessage { request, body });
        packets.into_iter().try_for_each(|packet| self.add(Side::Slot, packet))
    }

    fn receipt(&mut self, body: &ReceiptBody) -> Result<(), Refusal> {
        let bytes = encode_receipt_body(body);
        self.add(Side::Receipt, Outgoing { bytes, descriptors: Vec::new() })
    }

    fn end(self) -> Result<Conversation, Refusal> {
        Ok(self.0)
    }
}

/// Sets the field `more` (2 in every answer that has it) of a packet's body, as a broker does that has no room for all:
/// a recording of so long an answer would be too long to be read.
fn with_more(packet: Outgoing) -> Outgoing {
    let rest = after_number(&packet.bytes[1..]);
    let body = after_number(&rest[1..]);
    let head = &packet.bytes[..packet.bytes.len() - rest.len() + 1];
    let mut bytes = head.to_vec();
    let mut length = body.len() + 2;
    while length >= 0x80 {
        bytes.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    bytes.push(length.to_le_bytes()[0]);
    bytes.extend_from_slice(body);
    bytes.extend([2 << 3, 1]);
    Outgoing { bytes, ..packet }
}

/// What follows a number.
fn after_number(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|b| b & 0x80 == 0).map_or(bytes.len(), |at| at + 1);
    &bytes[end..]
}
