//! Recorded conversations: their files, what their packets mean, and the conversations themselves.
//!
//! A module of its own, so that whoever wants to replay a recording can include it: the recorder (`examples/record.rs`)
//! and the tests beside it do.

#![allow(dead_code, unreachable_pub, reason = "each includer uses a part of it")]

pub mod file;
pub mod hashes;
pub mod meaning;
pub mod packet;
pub mod sessions;
mod text;

use std::path::PathBuf;

use gpu_handoff_protocol::PROTOCOL_VERSION;

/// Versions that were released, each with the hash of its list of hashes. Their recordings are never written again.
pub const RELEASED: &[(&str, &str)] =
    &[("0.1", "7a5ed27f163a12953ad0a6f2f0980d0d7f4a7c6a596b869c772384a7a1d35194")];

/// Where the recordings of all versions are.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

/// The name of the folder of the version that this build speaks.
pub fn current_version() -> String {
    format!("{}.{}", PROTOCOL_VERSION.0, PROTOCOL_VERSION.1)
}
