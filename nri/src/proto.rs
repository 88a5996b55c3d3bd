//! Generated: the messages of ttrpc and of NRI. `proto/` says what each is.

#![allow(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    reason = "generated code"
)]

/// What a frame carries.
pub mod ttrpc {
    include!(concat!(env!("OUT_DIR"), "/ttrpc.rs"));
}

/// NRI's own messages.
pub mod nri {
    include!(concat!(env!("OUT_DIR"), "/nri.pkg.api.v1alpha1.rs"));
}
