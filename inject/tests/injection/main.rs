//! Injection, as the webhook and the command see it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod common;
mod denials_page;
mod generated;
mod pods;
mod properties;
mod qos;
mod there_already;
