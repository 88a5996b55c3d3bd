//! The limits of what pods may ask for, each named with its unit.

/// Longest value of an annotation of ours, in bytes.
pub const VALUE_BYTES: usize = 4_096;
/// Most containers that `gpu-handoff.io/containers` may name.
pub const CONTAINERS: usize = 64;
/// Most containers of a pod that takes part, those that prepare it included: each adds to the patch.
pub const POD_CONTAINERS: usize = 512;
/// Largest `gpu-handoff.io/group-size`, in members.
pub const GROUP_SIZE: u32 = 1_024;
/// Longest misspelt word that a nearest one is looked for, in bytes.
pub const NEAREST_BYTES: usize = 64;
/// Most reasons of one denial; of further ones, the last says how many there are.
pub const REASONS: usize = 16;
/// Labels and annotations of a pod that does not take part, which warnings name; the others are counted.
pub const WARNINGS: usize = 8;
/// Longest text of a user's that a denial, or a warning, repeats, in bytes; the rest is cut.
pub const SHOWN_BYTES: usize = 128;
/// Longest list of what would have been right in a denial, in bytes; the rest is cut.
pub const WANTED_BYTES: usize = 512;
/// Most runtime classes, and most node requirements, in the settings.
pub const SETTINGS_ITEMS: usize = 64;
