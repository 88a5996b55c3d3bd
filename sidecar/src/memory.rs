//! What the sidecar keeps for the daemon, so that a daemon that comes anew has it again. Plain data: no socket, no thread.
//!
//! It is made for many items in little room: one sorted list without room between the items, and receipts packed with
//! the first of them as dictionary, for those of one pod differ in little more than numbers and the signature.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::message::Keepsake;
use gpu_handoff_protocol::{BufferId, Receipt};
use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use tracing::error;

use crate::limits;

/// A descriptor that is kept.
pub type Descriptor = Arc<OwnedFd>;

#[derive(Debug)]
struct Kept {
    id: BufferId,
    /// Packed.
    receipt: Box<[u8]>,
    descriptor: Option<Descriptor>,
}

/// The pod's memory.
#[derive(Debug)]
pub struct Memory {
    /// In order of their ids.
    items: Vec<Kept>,
    /// Of the packed receipts.
    bytes: usize,
    dictionary: Box<[u8]>,
    /// Items that may be kept.
    room: usize,
}

/// What became of something to keep.
#[derive(Debug)]
pub enum Outcome {
    /// It is kept.
    Kept,
    /// It is kept in the place of an earlier one, whose descriptor is to be closed.
    Replaced(Option<Descriptor>),
    /// There is no room for it.
    NoRoom,
}

impl Memory {
    /// Room for so many items, if that is no more than [`limits::KEPT_ITEMS`].
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { items: Vec::new(), bytes: 0, dictionary: Box::default(), room: room.min(limits::KEPT_ITEMS) }
    }

    /// Items that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Keeps an item. `closing`: descriptors that were kept and are not closed yet; they take room too.
    pub fn keep(&mut self, item: Keepsake, closing: usize) -> Outcome {
        if self.items.is_empty() {
            self.dictionary = item.receipt.as_bytes().into();
        }
        let Keepsake { id, receipt, descriptor } = item;
        let packed = compress_prepend_size_with_dict(receipt.as_bytes(), &self.dictionary).into_boxed_slice();
        let place = self.place(id);
        let before = place.ok().map_or(0, |at| self.items[at].receipt.len());
        let bytes = self.bytes - before + packed.len();
        let full = place.is_err() && self.items.len() + closing >= self.room;
        if full || bytes > limits::KEPT_BYTES {
            return Outcome::NoRoom;
        }
        self.bytes = bytes;
        let kept = Kept { id, receipt: packed, descriptor };
        match place {
            Ok(at) => Outcome::Replaced(std::mem::replace(&mut self.items[at], kept).descriptor),
            Err(at) => {
                self.items.insert(at, kept);
                Outcome::Kept
            }
        }
    }

    /// Takes an item out; gives its descriptor, which is to be closed.
    pub fn forget(&mut self, id: BufferId) -> Option<Descriptor> {
        let kept = self.items.remove(self.place(id).ok()?);
        self.bytes -= kept.receipt.len();
        if self.items.is_empty() {
            self.items = Vec::new();
        }
        kept.descriptor
    }

    /// Whether there are items after this id, or any at all.
    #[must_use]
    pub fn has_after(&self, last: Option<BufferId>) -> bool {
        self.items.last().is_some_and(|kept| last.is_none_or(|last| last < kept.id))
    }

    /// The first items after this id, or from the start on.
    #[must_use]
    pub fn after(&self, last: Option<BufferId>, most: usize) -> Vec<Keepsake> {
        let from = last.map_or(0, |last| self.items.partition_point(|kept| kept.id <= last));
        self.items[from..].iter().take(most).filter_map(|kept| self.unpack(kept)).collect()
    }

    /// Whether this item is kept.
    #[must_use]
    pub fn has(&self, id: BufferId) -> bool {
        self.place(id).is_ok()
    }

    /// This item, if it is kept.
    #[must_use]
    pub fn get(&self, id: BufferId) -> Option<Keepsake> {
        self.unpack(&self.items[self.place(id).ok()?])
    }

    fn place(&self, id: BufferId) -> Result<usize, usize> {
        self.items.binary_search_by_key(&id, |kept| kept.id)
    }

    fn unpack(&self, kept: &Kept) -> Option<Keepsake> {
        let bytes = decompress_size_prepended_with_dict(&kept.receipt, &self.dictionary);
        match bytes.map(Receipt::new) {
            Ok(Ok(receipt)) => Some(Keepsake { id: kept.id, receipt, descriptor: kept.descriptor.clone() }),
            // It was packed here, so only broken memory comes to this.
            broken => {
                error!(id = %kept.id, ?broken, "a receipt that is kept cannot be read any more");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
