//! The command's limits, each named with its unit.

/// Largest input of `inject`, and largest settings, in bytes.
pub(crate) const INPUT_BYTES: u64 = 16 << 20;
/// Most YAML or JSON documents in it.
pub(crate) const DOCUMENTS: usize = 10_000;
