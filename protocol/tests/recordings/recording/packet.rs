//! One recorded packet: who says it, its bytes, how many descriptors come along, and what it means.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::Refusal;
use gpu_handoff_protocol::codec::{
    Frame, Outgoing, decode_broker, decode_client, decode_receipt_body, decode_sidecar, decode_slot,
    encode_broker, encode_client, encode_receipt_body, encode_sidecar, encode_slot,
};

use super::meaning::{self, Numbers};

/// Who says a packet, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// An application to the broker.
    Application,
    /// The broker to an application.
    Broker,
    /// A sidecar to the broker.
    Sidecar,
    /// The broker to a sidecar.
    Slot,
    /// A broker to a later one: the body of a receipt, which travels inside other packets.
    Receipt,
}

impl Side {
    /// Every side.
    pub const ALL: [Self; 5] = [Self::Application, Self::Broker, Self::Sidecar, Self::Slot, Self::Receipt];

    /// The name in recordings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Broker => "broker",
            Self::Sidecar => "sidecar",
            Self::Slot => "slot",
            Self::Receipt => "receipt",
        }
    }

    /// The message of the protocol file that its packets are.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Application => "ClientPacket",
            Self::Broker => "BrokerPacket",
            Self::Sidecar => "SidecarPacket",
            Self::Slot => "SlotPacket",
            Self::Receipt => "ReceiptBody",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A packet as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Who says it.
    pub side: Side,
    /// How many descriptors come along.
    pub descriptors: usize,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What it means, line by line.
    pub meaning: String,
}

/// What the current code makes of a packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Understood {
    /// What it means.
    pub meaning: String,
    /// It, written again; `None`: a part of a longer answer, whose parts are not written one by one.
    pub again: Option<Vec<u8>>,
}

impl Packet {
    /// The packet of bytes and descriptors, with what the current code makes of it.
    ///
    /// # Errors
    /// When the current code cannot read it.
    pub fn new(side: Side, bytes: Vec<u8>, descriptors: usize) -> Result<Self, Refusal> {
        let meaning = understand(side, &bytes, descriptors)?.meaning;
        Ok(Self { side, descriptors, bytes, meaning })
    }
}

/// Descriptors, each of a file of its own.
pub fn descriptors(count: usize) -> Vec<OwnedFd> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    (0..count).map(|_| rustix::fs::memfd_create("recording", flags).expect("a memfd")).collect()
}

/// Reads a packet with the current code, and writes it again.
///
/// # Errors
/// When the current code cannot read it.
pub fn understand(side: Side, bytes: &[u8], count: usize) -> Result<Understood, Refusal> {
    let descriptors = descriptors(count);
    let numbers = Numbers::of(&descriptors);
    let frame = Frame { bytes: bytes.to_vec(), descriptors, ..Frame::default() };
    Ok(match side {
        Side::Application => {
            let message = decode_client(frame)?;
            Understood {
                meaning: meaning::of_client(&message, &numbers),
                again: Some(encode_client(&message).bytes),
            }
        }
        Side::Broker => {
            let (message, more) = decode_broker(frame)?;
            let again = if more { None } else { single(encode_broker(&message)) };
            Understood { meaning: meaning::of_broker(&message, more, &numbers), again }
        }
        Side::Sidecar => {
            let message = decode_sidecar(frame)?;
            let meaning = meaning::of_sidecar(&message, &numbers);
            Understood { meaning, again: Some(encode_sidecar(message).bytes) }
        }
        Side::Slot => {
            let (message, more) = decode_slot(frame)?;
            let again = if more { None } else { single(encode_slot(&message)) };
            Understood { meaning: meaning::of_slot(&message, more, &numbers), again }
        }
        Side::Receipt => {
            let body = decode_receipt_body(&frame.bytes)?;
            Understood { meaning: meaning::of_receipt(&body), again: Some(encode_receipt_body(&body)) }
        }
    })
}

fn single(mut packets: Vec<Outgoing>) -> Option<Vec<u8>> {
    packets.pop().filter(|_| packets.is_empty()).map(|p| p.bytes)
}

/// A descriptor for a message that is to be recorded.
pub fn descriptor() -> Arc<OwnedFd> {
    Arc::new(descriptors(1).remove(0))
}
