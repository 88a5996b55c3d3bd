//! The codec from outside: what is written reads back the same, and nothing that a stranger sends does harm.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod bounds;
mod forward;
mod hostile;
mod limits;
mod parts;
mod print;
mod proto;
mod receipts;
mod roundtrip;
mod strategies;
