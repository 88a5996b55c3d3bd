//! The crate's limits, each named with its unit.

use std::time::Duration;

/// Bytes of a ttrpc message (the protocol's own limit).
pub const MESSAGE_BYTES: usize = 4 << 20;
/// Bytes of the payload of a frame that comes (NRI's own limit: a message and its header).
pub const FRAME_BYTES_IN: usize = MESSAGE_BYTES + 10;
/// Bytes of the payload of a frame that we send. The runtime reads a frame into a buffer of this size, and ends the
/// connection where it does not fit.
pub const FRAME_BYTES_OUT: usize = 4_096;
/// Bytes of an answer of ours, with its adjustment.
pub const ANSWER_BYTES: usize = 64 << 10;
/// Bytes of a refusal's text: it is shown in an event of the pod.
pub const REFUSAL_BYTES: usize = 900;
/// Requests that may wait for their answer. A runtime asks one thing at a time.
pub const REQUESTS: usize = 32;
/// Bytes of the requests that may wait.
pub const REQUESTS_BYTES: usize = 4 * MESSAGE_BYTES;
/// Bytes that are read at a time.
pub const READ_BYTES: usize = 64 << 10;

/// Pods of a Synchronize that are kept; the rest are counted.
pub const PODS: usize = 4_096;
/// Containers of a Synchronize that are kept; the rest are counted.
pub const CONTAINERS: usize = 16_384;
/// Bytes of the text of a Synchronize that is kept, of all its parts together; what goes beyond it is counted.
pub const SYNCHRONIZE_BYTES: usize = 64 << 20;

/// Bytes of a socket's path: what fits into the kernel's address, less its final zero.
pub const SOCKET_PATH_BYTES: usize = 107;
/// Bytes of a plugin's name.
pub const PLUGIN_NAME_BYTES: usize = 63;
/// How long connecting may take.
pub const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long the runtime may take to register and configure us. It takes plugins one after the other, and waits 5 s for
/// one that does not register.
pub const REGISTRATION_TIME: Duration = Duration::from_secs(12);
/// How long it may take from there until all of Synchronize has come: it waits for pods that are being made.
pub const SYNCHRONIZE_TIME: Duration = Duration::from_secs(300);
/// How long the runtime may take to read an answer: it would have given us up before.
pub const WRITE_TIME: Duration = Duration::from_secs(2);
/// An answer that took longer is said in the log.
pub const SLOW_ANSWER: Duration = Duration::from_millis(500);

/// The first pause before the runtime is connected to again; doubled each time.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest of these pauses. After a connection that was served and held this long
/// it is the first again.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often, in such a pause, it is looked whether there is another socket.
pub const PAUSE_LOOK: Duration = Duration::from_millis(50);
/// How often that is looked at while there is a connection.
pub const SOCKET_LOOK: Duration = Duration::from_millis(500);
