//! Buffers that are published as one version of a name, all or nothing.

use crate::ids::BufferName;

/// Which part of a set a publish brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetPart {
    /// Name of the set within the group.
    pub name: BufferName,
    /// Buffers of the whole set, at most [`crate::limits::SET_BUFFERS`].
    pub total: u32,
    /// Index of the part's first buffer.
    pub first: u32,
}

/// Where a buffer stands in its set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRef {
    /// Name of the set within the group.
    pub name: BufferName,
    /// The buffer's index in it.
    pub index: u32,
    /// Buffers of the whole set.
    pub total: u32,
}

/// A set whose buffers were all leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInfo {
    /// Name of the set within the group.
    pub name: BufferName,
    /// Its version, which is that of each of its buffers, see [`crate::BufferInfo::generation`].
    pub generation: u64,
    /// Buffers of the set.
    pub total: u32,
}
