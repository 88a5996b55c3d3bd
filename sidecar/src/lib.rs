//! The per-pod agent of gpu-handoff: the pod's door to the node daemon.
//!
//! It listens on one socket inside the pod, accepts an application's connection, and hands that very connection on to
//! the daemon: from then on the two talk without a hop between. While the daemon is away, connections are held.
//!
//! | concern | file |
//! |---|---|
//! | accepting and holding connections | [`door`] |
//! | the connection to the daemon | [`uplink`] |
//! | is the whole way open? (the startup probe) | [`ready`] |

pub mod cli;
pub mod door;
pub mod limits;
pub mod ready;
pub mod uplink;
