//! Where a descriptor is validated: in child processes, the only ones that load the GPU driver, one for each GPU.
//!
//! The lane that received a descriptor looks at it itself, compares what it sees with memory that the GPU's worker made
//! and exported, and sends only what looks alike to the worker, which answers to the lane: two changes of process, and
//! nothing that serves other members has a part in it. The lane keeps its own copy until the answer is in. A worker that
//! hangs or dies is replaced; the worker notes which request it begins, so that only the one that did it is refused, and
//! the others are asked of the next worker.
//!
//! | concern | file |
//! |---|---|
//! | a lane asks; a deadline for each request | [`inspector`] |
//! | a lane's connection to one worker | `road` |
//! | how often a member's descriptors broke workers lately | `strikes` |
//! | what a descriptor looks like, without the driver | `look` |
//! | which GPUs the node has; a supervisor for each | [`workers`] |
//! | the driver is asked which there are | `learning` |
//! | one GPU's worker is started, and replaced | `supervisor` |
//! | having a worker process started and ended | [`starter`] |
//! | what is said between lane, supervisor and worker | `wire` |
//! | which failures were logged already | `told` |
//! | the worker process itself | [`worker`] |
//! | whether legacy handles may be cured on this driver | [`self_test`] |

use gpu_handoff_protocol::DeviceUuid;

pub mod inspector;
mod learning;
mod look;
mod road;
pub mod self_test;
pub mod starter;
mod strikes;
mod supervisor;
mod told;
mod wire;
pub mod worker;
pub mod workers;

pub use inspector::Inspector;
pub use starter::Starter;
pub use workers::{Gpus, Reach, Workers};

/// What a descriptor was found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// GPU memory of the stated size.
    GpuMemory {
        /// The device that holds it; `None`: another than the worker's.
        device: Option<DeviceUuid>,
    },
    /// No GPU memory.
    NotGpuMemory {
        /// What the driver answered.
        answer: String,
    },
    /// GPU memory of another size.
    SizeMismatch {
        /// The true size in bytes, where it can be told.
        actual: Option<u64>,
    },
    /// The GPU is lost.
    GpuLost {
        /// What the driver answered.
        answer: String,
    },
    /// The driver had no room to look at it; the worker goes on.
    OutOfMemory {
        /// What the driver answered.
        answer: String,
    },
    /// The worker could not find out.
    Failed {
        /// Why.
        why: String,
    },
}
