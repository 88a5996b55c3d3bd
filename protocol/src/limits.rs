//! Every limit of the protocol and of the node daemon's defaults, each named with its unit.
//!
//! Reaching one is a refusal, or a closed connection where nothing can be answered.

/// Largest packet, in bytes. A larger one is `TOO_LARGE` and ends the connection.
pub const MESSAGE_BYTES: usize = 64 * 1024;
/// Most descriptors in one packet. More is `DESCRIPTOR_COUNT`; the kernel's own limit is 253.
pub const MESSAGE_DESCRIPTORS: usize = 64;
/// Most items (publications, acquisitions, releases, claims, keepsakes, ids to forget) in one packet.
pub const MESSAGE_ITEMS: usize = 64;

/// Longest namespace, in bytes (a DNS label).
pub const NAMESPACE_BYTES: usize = 63;
/// Longest pod name, in bytes (a DNS subdomain).
pub const POD_NAME_BYTES: usize = 253;
/// Longest name of a service account, in bytes.
pub const SERVICE_ACCOUNT_BYTES: usize = 253;
/// Longest pod UID, in bytes.
pub const POD_UID_BYTES: usize = 128;
/// Longest group name, in bytes.
pub const GROUP_NAME_BYTES: usize = 63;
/// Longest slot id, in bytes.
pub const SLOT_ID_BYTES: usize = 63;
/// Longest buffer name, in bytes.
pub const BUFFER_NAME_BYTES: usize = 128;
/// Longest name of a client program in its hello, in bytes.
pub const CLIENT_NAME_BYTES: usize = 64;
/// Most dimensions of a tensor.
pub const TENSOR_DIMENSIONS: usize = 16;
/// Longest dtype name, in bytes.
pub const DTYPE_BYTES: usize = 32;
/// Longest free-form metadata of a buffer, in bytes.
pub const METADATA_BYTES: usize = 1024;
/// Size of a legacy handle, in bytes.
pub const LEGACY_HANDLE_BYTES: usize = 64;
/// Most buffers in one set.
pub const SET_BUFFERS: u32 = 65_536;
/// Most seats of one buffer's order.
pub const SEATS: u32 = 1_024;
/// Values of timeline words stay below this one. It marks a peer that died, and satisfies every wait.
pub const ORDER_VALUES: u64 = 1 << 62;
/// Longest receipt, in bytes.
pub const RECEIPT_BYTES: usize = 4_096;
/// Size of a receipt's MAC, in bytes.
pub const RECEIPT_MAC_BYTES: usize = 32;
/// Longest container id in a receipt, in bytes.
pub const CONTAINER_BYTES: usize = 128;
/// Most compared values in a refusal.
pub const REFUSAL_COMPARED: usize = 4;
/// Longest text in a refusal, in bytes.
pub const REFUSAL_TEXT_BYTES: usize = 384;

/// Longest time an acquire may wait for its buffer, in milliseconds.
pub const ACQUIRE_WAIT_MS: u64 = 10 * 60 * 1000;
/// Longest deadline a retire may give its holders, in milliseconds.
pub const RETIRE_DEADLINE_MS: u64 = 60 * 60 * 1000;
/// How long a connection may take to say hello, in milliseconds.
pub const HELLO_MS: u64 = 5_000;
/// Pause before a packet is tried again that the kernel refused because its user has too many descriptors in flight,
/// in milliseconds: nothing tells when there are fewer.
pub const IN_FLIGHT_PAUSE_MS: u64 = 20;
