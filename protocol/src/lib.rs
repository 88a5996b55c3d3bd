//! The vocabulary, messages, codec and descriptor-passing sockets of gpu-handoff.
//!
//! Everything that the node daemon, the sidecar and the client library say to each other is defined here, and
//! nothing else: this crate knows no Kubernetes and no CUDA.
//!
//! | concern | file |
//! |---|---|
//! | what things are called | [`ids`], [`buffer`], [`set`] |
//! | what a broker signs, for the next one to believe | [`receipt`] |
//! | how a "no" reads | [`refusal`] |
//! | what is said, as types | [`message`] |
//! | what is said, as bytes, and the rules of the conversation | `proto/handoff.proto` |
//! | bytes and descriptors to messages, and back | [`codec`] |
//! | packets with descriptors over `SOCK_SEQPACKET` | [`socket`], for tokio programs `socket_tokio` |
//! | every limit, with its unit | [`limits`] |
//! | what each released version says, byte by byte | `tests/recordings/` |

pub mod buffer;
pub mod codec;
pub mod ids;
pub mod limits;
pub mod message;
pub mod receipt;
pub mod refusal;
pub mod set;
pub mod socket;
#[cfg(feature = "tokio")]
pub mod socket_tokio;
mod wire;

pub use buffer::{Access, BufferFacts, BufferInfo, Kind, Lifetime, Metadata, Order, Tensor};
pub use ids::{
    BootTag, BufferId, BufferName, DeviceUuid, GroupKey, GroupName, IdError, Instance, LeaseId, Namespace,
    PodName, PodRef, PodUid, Seat, ServiceAccount, SlotId,
};
pub use receipt::Receipt;
pub use refusal::{Code, Compared, Refusal};
pub use set::{SetInfo, SetPart, SetRef};

/// Version of the wire protocol that this build speaks: (major, minor).
///
/// A plugin serves its own minor version and the two before it; unknown fields are ignored.
pub const PROTOCOL_VERSION: (u32, u32) = (0, 2);

/// The socket that an application connects to when `GPU_HANDOFF_SOCKET` is not set.
pub const DEFAULT_APP_SOCKET: &str = "/run/gpu-handoff/app.sock";

/// Environment variable that names the application's socket.
pub const APP_SOCKET_ENV: &str = "GPU_HANDOFF_SOCKET";
