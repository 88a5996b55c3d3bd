//! What the node daemon tells whoever administers its node: `gpu-handoff status` and `gpu-handoff doctor` ask it.
//!
//! The service ([`proto`]) is gRPC on a Unix socket of the daemon's own, `admin.sock` in its run directory. It only tells:
//! nothing there changes anything. Who may ask is the kernel's word ([`Door`]): root, the user that the daemon runs as, and the members
//! of one group where one is named. The socket's mode keeps others out, and each connection is looked at besides.
//!
//! | concern | file |
//! |---|---|
//! | the messages | `proto/admin.proto`, [`proto`] |
//! | who may ask | [`door`](Door) |
//! | the socket, and serving it | `server` |
//! | a connection, which does not last | `connection` |
//! | how many of whom | `crowd` |
//! | telling of those that are turned away | `turned_away` |
//! | asking | [`client`] |
//! | every limit | [`limits`] |

pub mod client;
mod connection;
mod crowd;
mod door;
pub mod limits;
mod names;
pub mod proto;
mod server;
mod turned_away;

pub use door::{Door, Stranger};
pub use server::{BindError, Server};

/// The socket's name in the run directory.
pub const SOCKET: &str = "admin.sock";
