//! Receipts: what proves to the next daemon of this node and boot what this one gave.
//!
//! The MAC is BLAKE3 in its keyed mode over the bytes of the body, with a key that is derived from the node's and used for
//! nothing else. Nobody but the node has the key: sidecars and processes keep receipts as they are.

use gpu_handoff_protocol::receipt::{Mac, Receipt, ReceiptBody};
use gpu_handoff_protocol::{BootTag, Code, Refusal, codec};

use crate::journal::NodeKey;

/// What makes receipts, and knows its own again.
pub struct Sealer {
    key: [u8; 32],
    boot: BootTag,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(secret)")
    }
}

impl Sealer {
    /// The sealer of a node and boot.
    #[must_use]
    pub fn new(key: &NodeKey, boot: BootTag) -> Self {
        let key = blake3::derive_key("gpu-handoff 2026 receipts of buffers and leases", key.as_bytes());
        Self { key, boot }
    }

    /// The boot that its receipts are of.
    #[must_use]
    pub const fn boot(&self) -> BootTag {
        self.boot
    }

    /// Makes a receipt; `None`: what it should say is too long for one, which no checked facts are.
    #[must_use]
    pub fn seal(&self, body: &ReceiptBody) -> Option<Receipt> {
        let bytes = codec::encode_receipt_body(body);
        let mac: Mac = *self.mac(&bytes).as_bytes();
        codec::seal_receipt(bytes, &mac).ok()
    }

    /// Reads a receipt of this node and boot.
    ///
    /// # Errors
    /// `RECEIPT_INVALID` when it is no receipt, of another key, or changed.
    pub fn open(&self, receipt: &Receipt) -> Result<ReceiptBody, Refusal> {
        let (bytes, mac) = codec::open_receipt(receipt)?;
        // This comparison takes the same time wherever the two differ.
        if self.mac(&bytes) != blake3::Hash::from_bytes(mac) {
            return Err(invalid("MAC", "this node's, of this boot", "another"));
        }
        let body = codec::decode_receipt_body(&bytes)?;
        if body.boot != self.boot {
            let (wanted, found) = (format!("{:016x}", self.boot.0), format!("{:016x}", body.boot.0));
            return Err(invalid("boot of the node", &wanted, &found));
        }
        Ok(body)
    }

    fn mac(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.key, bytes)
    }
}

fn invalid(what: &str, wanted: &str, found: &str) -> Refusal {
    Refusal::new(Code::ReceiptInvalid).compared_with(what, wanted, found)
}

#[cfg(test)]
mod tests;
