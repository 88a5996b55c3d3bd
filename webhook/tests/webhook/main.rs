//! The webhook as a whole: real sockets and real TLS; the API server's other half is played by the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a failure is a failed test"
)]

mod api_server;
mod certificates;
mod client;
mod files;
mod manifest;
mod requests;
mod running;
