//! What a buffer is: its kind, access, lifetime and metadata.

use serde::{Deserialize, Serialize};

use crate::ids::{BufferId, BufferName, DeviceUuid, PodRef, Seat};
use crate::set::SetRef;

/// How a buffer's memory travels. The wire leaves room for `pool` and `event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A POSIX descriptor of a CUDA virtual-memory allocation: a real capability, checked by the node.
    Vmm,
    /// A 64-byte CUDA IPC handle and an offset (what `cudaMalloc` memory has): a forgeable bearer token.
    Legacy,
    /// 64-bit words in a vmm buffer that GPU streams write and wait for.
    Timeline,
}

impl Kind {
    /// The lower-case name used in text, metrics and documentation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vmm => "vmm",
            Self::Legacy => "legacy",
            Self::Timeline => "timeline",
        }
    }

    /// Descriptors that one buffer of this kind brings along.
    #[must_use]
    pub const fn descriptors(self) -> usize {
        match self {
            Self::Vmm | Self::Timeline => 1,
            Self::Legacy => 0,
        }
    }
}

/// What importers may do. `ReadOnly` is the importing library's promise: CUDA lets nobody enforce it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Read and write.
    #[default]
    ReadWrite,
    /// Read only, by promise.
    ReadOnly,
}

/// How long a buffer lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifetime {
    /// Until its owner's process ends.
    #[default]
    Process,
    /// Until its owner's pod ends (vmm only, where policy grants bytes for it).
    Pod,
}

/// Layout of a tensor in a buffer. Free text for the peers: the node does not interpret it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tensor {
    /// Element type, such as `bfloat16`.
    pub dtype: String,
    /// Extent of each dimension, in elements.
    pub shape: Vec<u64>,
    /// Step of each dimension, in elements; empty means contiguous.
    pub strides: Vec<i64>,
}

/// What a publisher says of a buffer's contents; handed to importers as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Layout, where the buffer holds one tensor.
    pub tensor: Option<Tensor>,
    /// Anything else, at most [`crate::limits::METADATA_BYTES`] bytes.
    pub user: Vec<u8>,
}

/// When a vmm buffer may be read, and how its owner learns that its holders' GPUs are done with it: by words of a
/// timeline of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The timeline.
    pub timeline: BufferId,
    /// The buffer may be read once this word has reached [`Order::value`].
    pub ready_word: u32,
    /// The value that words are compared with; below [`crate::limits::ORDER_VALUES`].
    pub value: u64,
    /// The word of seat 0; the others follow.
    pub first_seat_word: u32,
    /// How many leases there can be at a time; at most [`crate::limits::SEATS`].
    pub seats: u32,
}

impl Order {
    /// The word that the holder of a seat writes; `None`: the order has no such seat.
    #[must_use]
    pub const fn seat_word(&self, seat: Seat) -> Option<u32> {
        if seat.0 < self.seats { self.first_seat_word.checked_add(seat.0) } else { None }
    }
}

/// What a publisher states of a buffer. The node checks device and size of a vmm buffer itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferFacts {
    /// Name within the group.
    pub name: BufferName,
    /// How the memory travels.
    pub kind: Kind,
    /// The GPU (or MIG instance) that holds the memory.
    pub device: DeviceUuid,
    /// Where the buffer begins inside the exported allocation, in bytes.
    pub offset: u64,
    /// Size of the buffer, in bytes, from `offset` on.
    pub size: u64,
    /// Size of the whole exported allocation, in bytes.
    pub allocation_size: u64,
    /// What importers may do.
    pub access: Access,
    /// How long the buffer lives.
    pub lifetime: Lifetime,
    /// What it holds.
    pub metadata: Metadata,
    /// When it may be read (vmm only); `None`: from its publication on.
    pub order: Option<Order>,
}

/// A published buffer, as others in the group see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferInfo {
    /// Identity.
    pub id: BufferId,
    /// Version: drawn from one rising counter of the group, so a later buffer of a name always has a higher one, also
    /// after its publisher was restarted. Numbers may be skipped.
    pub generation: u64,
    /// The pod that published it.
    pub owner: PodRef,
    /// Whether the node itself checked device and size (vmm) or could not (legacy).
    pub verified: bool,
    /// What the publisher stated.
    pub facts: BufferFacts,
    /// Where the buffer stands in the set that it is of.
    pub set: Option<SetRef>,
}
