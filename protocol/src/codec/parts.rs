//! Long lists, cut into packets.

use super::client::wire_publication_len;
use super::sidecar::wire_keepsake_len;
use crate::limits;
use crate::message::{Claim, Keepsake, Publication};

/// Room that a packet keeps for its envelope and for what stands beside its list, in bytes.
pub(super) const ENVELOPE_BYTES: usize = 256;
/// Room for the items of a packet's list, in bytes.
pub(super) const ROOM: usize = limits::MESSAGE_BYTES - ENVELOPE_BYTES;
/// Most bytes that a list item's own tag and length take.
const ITEM_OVERHEAD_BYTES: usize = 8;

/// Splits items so that each part fits into one packet; the flag says that another part follows.
pub(super) fn split<T: prost::Message>(
    items: impl Iterator<Item = T>,
) -> impl Iterator<Item = (Vec<T>, bool)> {
    let parts = split_by(items, prost::Message::encoded_len);
    let last = parts.len().saturating_sub(1);
    parts.into_iter().enumerate().map(move |(i, part)| (part, i < last))
}

/// The parts, at least one, each within the limits of a packet in bytes and items (and so in descriptors).
fn split_by<T>(items: impl Iterator<Item = T>, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts = Vec::with_capacity(1);
    let mut part = Vec::with_capacity(items.size_hint().0.min(limits::MESSAGE_ITEMS));
    let mut used = 0;
    for item in items {
        let bytes = bytes(&item) + ITEM_OVERHEAD_BYTES;
        if used + bytes > ROOM || part.len() == limits::MESSAGE_ITEMS {
            parts.push(std::mem::take(&mut part));
            used = 0;
        }
        used += bytes;
        part.push(item);
    }
    parts.push(part);
    parts
}

/// What requests and notices carry in lists that may be too long for one packet. An answer is cut by its encoder.
pub trait Listed: sealed::Listed {}

impl<T: sealed::Listed> Listed for T {}

mod sealed {
    /// An item whose length on the wire is known.
    pub trait Listed {
        /// Its length on the wire, in bytes.
        fn wire_len(&self) -> usize;
    }
}

impl sealed::Listed for Publication {
    fn wire_len(&self) -> usize {
        wire_publication_len(self)
    }
}

impl sealed::Listed for Claim {
    fn wire_len(&self) -> usize {
        self.receipt.as_bytes().len() + ITEM_OVERHEAD_BYTES
    }
}

impl sealed::Listed for Keepsake {
    fn wire_len(&self) -> usize {
        wire_keepsake_len(self)
    }
}

/// Cuts a list into the lists of as many requests as it takes, in order. None for an empty list.
#[must_use]
pub fn batches<T: Listed>(items: Vec<T>) -> Vec<Vec<T>> {
    if items.is_empty() { Vec::new() } else { split_by(items.into_iter(), T::wire_len) }
}
