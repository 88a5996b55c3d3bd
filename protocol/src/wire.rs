//! The generated protobuf messages. Private: the rest of the world sees [`crate::message`].
#![allow(
    missing_docs,
    clippy::all,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/gpu_handoff.v0.rs"));
