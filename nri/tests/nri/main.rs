//! The plugin's side against a runtime's: one that the tests play, and what a real one has said.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails, here and in what it is made of"
)]

mod fake;
#[path = "../recorded/handler.rs"]
mod handler;
mod recorded;
mod serving;
