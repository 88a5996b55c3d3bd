//! Recorded conversations of every served version, held against the current code.
//!
//! What is recorded is what programs in users' images say and understand. How and when it may be written anew: see
//! `README.md` beside this file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../codec/proto.rs"]
mod proto;
mod recording;

mod complete;
mod frozen;
mod replay;
