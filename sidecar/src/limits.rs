//! The sidecar's limits, each named with its unit.

use std::time::Duration;

/// Connections that are held while the daemon is away; one more is refused. As many may be with the daemon, handed on
/// and not yet answered for; those after them are held.
pub const HELD_CONNECTIONS: usize = 64;
/// How long a connection is held before it is refused, counted once, from when it was accepted.
pub const HOLD_TIME: Duration = Duration::from_secs(10);
/// How long nobody is accepted after it failed, mostly for want of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the daemon may take to answer a hello, or to take and answer a connection handed on, which is then refused.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);
/// First pause between two tries to reach the daemon; it doubles with each.
pub const RETRY_FIRST: Duration = Duration::from_millis(20);
/// Longest pause between two tries to reach the daemon.
pub const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// How long the readiness check may take in all.
pub const READY_TIME: Duration = Duration::from_secs(3);
