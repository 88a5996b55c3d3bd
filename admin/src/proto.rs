//! Generated: the messages and the service.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/gpu_handoff.admin.v1.rs"));
