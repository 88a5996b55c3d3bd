//! The crate's limits, each named with its unit.

use std::time::Duration;

/// Connections at a time, of all users.
pub const CONNECTIONS: usize = 64;
/// Connections of one user at a time; one more is closed at once.
pub const CONNECTIONS_OF_USER: usize = 16;
/// How long a connection lasts, whatever it does: a question takes a moment.
pub const CONNECTION_TIME: Duration = Duration::from_secs(5);
/// Calls that one connection may have open at a time.
pub const CALLS_PER_CONNECTION: u32 = 8;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = 4 << 10;
/// Bytes of all headers of a call.
pub const HEADER_BYTES: u32 = 8 << 10;
/// Bytes of an answer: a node has at most 1,024 members, each of some hundred bytes.
pub const ANSWER_BYTES: usize = 4 << 20;
/// How often it is told, at most, that connections are turned away.
pub const TURNED_AWAY_TOLD: Duration = Duration::from_secs(10);
/// How long nobody is accepted after that failed, mostly for want of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client waits for an answer: longer than strangers' connections can be in its way.
pub const CLIENT_TIME: Duration = Duration::from_secs(8);
