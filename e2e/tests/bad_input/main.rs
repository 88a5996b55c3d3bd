//! What peers can do wrong, by mistake or on purpose: each gets a refusal with a name or a closed connection, leaves
//! nothing behind, and disturbs nobody.
//!
//! Every test runs the real plugin, real sidecars and a simulated GPU in a directory of its own. While it misbehaves, a
//! well-behaved pair of pods goes on handing a buffer over; afterwards descriptors and GPU memory are counted.

mod broker;
mod claims;
mod connections;
mod daemon;
mod deaths;
mod descriptors;
mod faults;
mod groups;
mod in_flight;
mod leases;
mod lingering;
mod packets;
mod pair;
mod reach;
mod same_user;
mod scene;
mod slow_peers;
mod source;
