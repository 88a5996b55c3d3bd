//! Receipts: what a broker signs, so that the next broker of the same node and boot can believe it.
//!
//! A [`Receipt`] is opaque to everybody but the node. Inside are the facts ([`ReceiptBody`]) as they were signed, and a
//! MAC over just those bytes; how the MAC is made and checked is the node daemon's affair.

use std::fmt;
use std::sync::Arc;

use crate::buffer::BufferInfo;
use crate::ids::{BootTag, GroupKey, IdError, LeaseId, PodUid, Seat, SlotId};
use crate::limits;

/// The MAC of a receipt.
pub type Mac = [u8; limits::RECEIPT_MAC_BYTES];

/// A signed statement of the node, to be kept and shown again as it is. Cheap to copy.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Receipt(Arc<[u8]>);

impl Receipt {
    /// Takes over the bytes, which nobody looks into before the node does.
    ///
    /// # Errors
    /// When there are none, or more than [`limits::RECEIPT_BYTES`].
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Result<Self, IdError> {
        let (what, bytes) = ("receipt", bytes.into());
        let limit = limits::RECEIPT_BYTES;
        match bytes.len() {
            0 => Err(IdError::Empty { what }),
            found if found > limit => Err(IdError::TooLong { what, bytes: found, limit }),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "receipt of {} bytes", self.0.len())
    }
}

/// What a receipt says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptBody {
    /// The node's boot.
    pub boot: BootTag,
    /// The process that published or leased.
    pub process: ProcessKey,
    /// The slot of its member.
    pub slot: SlotId,
    /// Its pod.
    pub pod_uid: PodUid,
    /// What it has.
    pub subject: Subject,
}

/// One process of the node, told apart from another that gets the same number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessKey {
    /// Its number on the node.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub started: u64,
    /// The inode of its pidfd, where the kernel gives each process one of its own.
    pub pidfs_inode: Option<u64>,
}

/// What a receipt is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A buffer that the process published.
    Buffer(BufferReceipt),
    /// A lease that the process holds.
    Lease(LeaseReceipt),
}

/// The facts of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferReceipt {
    /// What others see of it.
    pub info: Arc<BufferInfo>,
    /// Its group.
    pub group: GroupKey,
    /// Legacy only: its handle.
    pub legacy_handle: Option<[u8; limits::LEGACY_HANDLE_BYTES]>,
    /// The owner's process number in its own PID namespace.
    pub own_pid: u32,
    /// The owner's container; empty: not known.
    pub container: String,
}

/// The facts of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReceipt {
    /// The lease.
    pub lease: LeaseId,
    /// Its buffer. Metadata and tensor are not written.
    pub buffer: Arc<BufferInfo>,
    /// The buffer's group.
    pub group: GroupKey,
    /// Its seat, where the buffer has an order.
    pub seat: Option<Seat>,
}
