//! The limits of a policy, each named with its unit.

use std::time::Duration;

/// Longest text of a policy, in bytes.
pub const TEXT_BYTES: usize = 512 << 10;
/// Most bytes that are read of a policy's file: one more than a policy may have, so that whoever reads it is told what is wrong.
pub const FILE_BYTES: u64 = TEXT_BYTES as u64 + 1;
/// Deepest nesting of brackets in its text. What is nested by indentation is held to what there are keys for.
pub const BRACKETS: usize = 32;
/// Most blanks and ends of lines in a row.
pub const BLANKS: usize = 1_000;
/// Most rules of who may exchange with whom.
pub const RULES: usize = 256;
/// Most entries of one side of a rule.
pub const SIDES: usize = 16;
/// Most namespaces, groups or service accounts of one entry.
pub const NAMES: usize = 64;
/// Most namespaces that have terms of their own, and most groups of one of them.
pub const TERMS: usize = 4_096;
/// Longest name of a rule, in bytes.
pub const RULE_NAME_BYTES: usize = 63;
/// Longest time that the holders of a deleted pod's buffers may be given.
pub const RETIRE_DEADLINE: Duration = Duration::from_millis(gpu_handoff_protocol::limits::RETIRE_DEADLINE_MS);
