//! A plugin's side of NRI, the interface by which a container runtime lets others look at and adjust the containers
//! that it makes.
//!
//! | module | what |
//! |---|---|
//! | [`client`](serve) | connects to the runtime's socket, for ever |
//! | `session` | one connection: registers, reads, answers in time |
//! | `exchange`, `gathering` | what is said over it, without socket or clock |
//! | [`ttrpc`], [`mux`] | how it is put into bytes: pure |
//! | [`view`], [`adjust`] | what is said of containers, and what is made of them |
//! | [`runtime`] | which runtime it is, and what it can do |
//!
//! Whoever reaches the socket is root on the node, and so is who listens there: what comes is bounded, so that a
//! runtime that is not well does no harm to us, but it is believed. Nothing here knows of members, groups or GPUs.

pub mod adjust;
mod client;
pub mod exchange;
mod gathering;
mod handler;
pub mod limits;
pub mod mux;
pub mod names;
pub mod proto;
pub mod runtime;
mod session;
pub mod state;
pub mod ttrpc;
pub mod view;

pub use crate::adjust::Adjustment;
pub use crate::client::{Settings, SettingsError, serve};
pub use crate::handler::{Events, Handler};
pub use crate::runtime::Runtime;
pub use crate::state::{Link, State};
pub use crate::view::{Container, Pod, Validation};
