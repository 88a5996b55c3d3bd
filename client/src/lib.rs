//! Publish GPU buffers, and acquire those of other pods on the same node without copying.
//!
//! A pod that is a member of a group finds a socket at `/run/gpu-handoff/app.sock`. [`Client::connect`] connects to it;
//! then one process says [`publish`](Client::publish) and others [`acquire`](Client::acquire) the buffer by its name:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (tensor, bytes) = (0, 0);
//! use gpu_handoff_client::{Acquire, Buffer, Client};
//! use std::time::Duration;
//!
//! let client = Client::connect()?;
//!
//! // In the pod that has the data, with a CUDA context current:
//! let weights = client.publish(Buffer::named("weights")?.pointer(tensor, bytes).read_only())?;
//!
//! // In the pod that needs it:
//! let lease = client.acquire(Acquire::named("weights")?.wait(Duration::from_secs(60)))?;
//! println!("{} bytes at {:#x}", lease.bytes(), lease.ptr());
//! # Ok(()) }
//! ```
//!
//! What to know:
//!
//! - **Nothing is copied.** A lease's pointer is the publisher's memory. Either order the GPU's work between the two
//!   yourself: publish after the writing stream was synchronized, drop leases after the reading one was. Or leave it to
//!   the GPU: [`Client::publish_on`], [`Lease::wait_on`], [`Lease::release_on`] and [`Published::retire_on`] take a
//!   stream and wait for nothing, and a [`RingWriter`] hands the same slots over again and again without the node.
//! - **Streams never wait for the dead.** If the peer dies that should have written what a stream waits for, the stream
//!   goes on, and [`Lease::check`] says `PEER_DIED`.
//! - **Many buffers are one version.** [`Client::publish_set`] and [`Client::acquire_set`] take all of them or none.
//! - **Your context is used, none is made.** Publishing and acquiring run in the CUDA context that is current on the
//!   calling thread. The driver is loaded on the first of them, not before.
//! - **The calls block**, each with a deadline. There is no runtime to bring along; one background thread listens for
//!   the node's news while nobody calls, and sleeps otherwise. With the first timeline come two more, which set streams
//!   free and unmap.
//! - **The node's daemon may be replaced** under a client: it connects again and has its leases and publications restored, and
//!   calls wait meanwhile; see [`Client`].
//! - **A "no" explains itself.** [`ClientError::Refused`] carries a stable [`Code`], what was compared, and a remedy.
//! - **Read-only is a promise** of the importing library: CUDA gives the publisher no means to enforce it.

mod acquire;
mod again;
mod buffer;
mod cache;
mod client;
mod connection;
mod deadline;
mod error;
mod export;
mod import;
mod lease;
pub mod limits;
mod memory;
mod order;
mod publish;
mod ring;
mod sets;
#[cfg(test)]
mod tests;
mod timeline;
mod watch;

pub use acquire::Acquire;
pub use buffer::{Buffer, Exportable};
pub use client::{Client, ClientBuilder};
pub use error::{ClientError, Doing};
pub use gpu_handoff_cuda::{ExportedFd, Stream, StreamRef, VmmAllocation, VmmMapping};
pub use gpu_handoff_protocol::message::{EndReason, Event, Welcome};
pub use gpu_handoff_protocol::{
    Access, BufferFacts, BufferId, BufferInfo, BufferName, Code, Compared, DeviceUuid, GroupKey, Kind,
    LeaseId, Lifetime, Metadata, PodRef, Refusal, SetRef, Tensor,
};
pub use lease::{Lease, LeaseState, Took};
pub use publish::{PublishTook, Published, PublishedState};
pub use ring::{RingReader, RingWriter, Slot};
pub use sets::{AcquireSet, LeaseSet, PublishedSet};
pub use timeline::Timeline;
pub use watch::Watch;
