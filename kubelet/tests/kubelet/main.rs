//! This crate against a stand-in for the kubelet: real sockets, the kubelet's half of each conversation played by the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a failure is a failed test"
)]

mod api_server;
mod csi;
mod fake;
mod pods;
mod registration;
mod resources;
