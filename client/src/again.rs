//! What is needed to export published memory once more, for a broker that comes anew and lacks it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use gpu_handoff_cuda::{ExportedFd, VmmHold};

use crate::error::Fault;
use crate::export::export_fault;
use crate::publish::PublishedState;

/// How one buffer's memory is exported again. Dropping this may ask the driver to free the memory.
#[derive(Debug)]
pub(crate) enum Again {
    /// A hold of our own on the memory: no descriptor, and not other memory that came to the same address.
    Memory(VmmHold),
    /// The descriptor that the caller publishes.
    Given(Arc<ExportedFd>),
    /// Legacy memory has no descriptor.
    Nothing,
}

impl Again {
    /// The memory's descriptor; `None`: it has none.
    pub(crate) fn export(&self) -> Result<Option<Arc<OwnedFd>>, Fault> {
        Ok(match self {
            Self::Memory(memory) => Some(Arc::new(memory.export().map_err(export_fault)?.fd)),
            Self::Given(exported) => Some(Arc::new(exported.fd.try_clone().map_err(Fault::Io)?)),
            Self::Nothing => None,
        })
    }
}

/// What is kept of a publication as long as it is live.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) again: Arc<Again>,
    /// How it ended, once it has.
    pub(crate) over: Arc<OnceLock<PublishedState>>,
}

impl Kept {
    pub(crate) fn new(again: Again) -> Self {
        Self { again: Arc::new(again), over: Arc::default() }
    }
}
