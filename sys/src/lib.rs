//! The few kernel calls of gpu-handoff that rustix lacks.
//!
//! | concern | file |
//! |---|---|
//! | which process connected a socket | [`peer`] |
//! | starting a process in namespaces of its own, as a container runtime would | [`isolate`] |
#![allow(unsafe_code, reason = "SO_PEERPIDFD and the steps between fork and exec have no safe wrapper")]

pub mod isolate;
pub mod peer;
