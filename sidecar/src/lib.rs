//! The per-pod agent of gpu-handoff: the pod's door to the node daemon.
//!
//! It listens on one socket inside the pod, accepts an application's connection, and hands that very connection on to
//! the daemon: from then on the two talk without a hop between. While the daemon is away, connections are held.
//!
//! It is the pod's memory too: what the pod's processes have published it keeps for the daemon, off their way, and
//! gives it to a daemon that comes anew. It looks into none of it.
//!
//! | concern | file |
//! |---|---|
//! | accepting and holding connections | [`door`] |
//! | the connection to the daemon | [`uplink`] |
//! | what is kept for the daemon | [`memory`], [`keeper`] |
//! | closing what was kept | [`closer`] |
//! | how many descriptors there may be | [`descriptors`] |
//! | is the whole way open? (the startup probe) | [`ready`] |

pub mod cli;
pub mod closer;
pub mod descriptors;
pub mod door;
pub mod keeper;
pub mod limits;
pub mod memory;
pub mod ready;
pub mod uplink;
