//! The node daemon of gpu-handoff.
//!
//! | concern | file |
//! |---|---|
//! | what is published, leased, waited for | [`registry`] (pure) |
//! | that state's keeper: one lock, effects in order | [`owner`] |
//! | where strangers' bytes and descriptors are received: one thread a member | [`lane`] |
//! | where a peer is authenticated | [`identity`] |
//! | where a descriptor is validated | [`gpu`] |
//! | what a killed daemon leaves to the next: what is alive | [`journal`] |
//! | and what proves its facts | [`receipts`] |
//! | who the members are | [`members`] |
//! | closing what strangers may have put something into | `closer` |
//! | what owners of pods are to read, on its way from the lanes to the node | [`tells`] |
//! | how often somebody may have something done | [`allowance`] |
//! | who polls for a moment instead of sleeping | [`awake`] |
//! | when something is to be done, or tried again | `pace` |
//! | what needs privilege, and starting the rest without any | [`node`] |
//! | the broker, wired together | [`app`] |
//! | the broker, taken over: in tests alone | `taken_over` |
//! | every limit | [`limits`], and `gpu_handoff_protocol::limits` |

pub mod allowance;
pub mod app;
pub mod awake;
pub mod cli;
mod closer;
pub mod config;
pub mod gpu;
pub mod identity;
pub mod journal;
pub mod lane;
pub mod limits;
pub mod members;
pub mod node;
pub mod owner;
mod pace;
pub mod receipts;
pub mod registry;
#[cfg(feature = "taken-over")]
mod taken_over;
pub mod tells;
