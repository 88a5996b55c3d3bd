//! A hold on memory that somebody else maps.

use std::sync::Arc;

use super::Handle;
use super::fd::{self, ExportError, ExportedFd};
use crate::status::{CudaError, Status};

/// Keeps memory alive, and exports it. Shares the driver's handle with the allocation or mapping that it came from.
#[derive(Debug)]
pub struct VmmHold {
    handle: Arc<Handle>,
    bytes: u64,
}

impl VmmHold {
    pub(super) fn new(handle: Arc<Handle>, bytes: u64) -> Self {
        Self { handle, bytes }
    }

    /// Makes a descriptor for the memory, as [`VmmAllocation::export`](super::VmmAllocation::export) does.
    pub fn export(&self) -> Result<ExportedFd, ExportError> {
        let error = CudaError { call: "cuMemExportToShareableHandle", status: Status::INVALID_DEVICE };
        let device =
            self.handle.device().and_then(|device| device.ok_or(error)).map_err(ExportError::Cuda)?;
        fd::export(&self.handle, self.bytes, device.uuid())
    }
}
