//! Where a descriptor is validated: in a child process, the only one that loads the GPU driver.
//!
//! The lane that received a descriptor sends it to the worker itself and keeps its own copy until the answer is in, so
//! that no thread serving others ever holds a stranger's descriptor. A worker is handed out once it has loaded the
//! driver. One that hangs or dies is replaced, and only the requests that waited for it are refused; one whose driver
//! fails is replaced, and what it had not begun is asked of the next.
//!
//! | concern | file |
//! |---|---|
//! | asking a worker; a deadline for each request | [`inspector`] |
//! | when a worker process is started and replaced | [`supervisor`] |
//! | how | [`starter`] |
//! | which failures were logged already | `told` |
//! | the worker process itself | [`worker`] |
//! | whether legacy handles may be cured on this driver | [`self_test`] |

use gpu_handoff_protocol::DeviceUuid;
use serde::{Deserialize, Serialize};

pub mod inspector;
pub mod self_test;
pub mod starter;
pub mod supervisor;
mod told;
pub mod worker;

pub use inspector::Inspector;

/// What the worker is asked; one descriptor comes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Number of the request.
    pub id: u64,
    /// Size that the memory is said to have, in bytes.
    pub bytes: u64,
}

/// What the worker answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The request that this answers.
    pub id: u64,
    /// What was found.
    pub verdict: Verdict,
}

/// What the worker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Its first word: the driver is loaded.
    Ready,
    /// Its first and last word: the driver could not be loaded.
    NoDriver {
        /// What the driver answered.
        why: String,
    },
    /// An answer.
    Answer(Reply),
}

/// What a descriptor was found to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// GPU memory of the stated size.
    GpuMemory {
        /// The device that holds it; `None`: one that the worker cannot see.
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
    /// The worker could not find out.
    Failed {
        /// Why.
        why: String,
    },
}
