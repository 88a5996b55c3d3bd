//! Descriptors that stand for device memory.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Handle, POSIX_FD};
use crate::calls::call;
use crate::status::CudaError;
use gpu_handoff_protocol::DeviceUuid;

/// A descriptor for device memory, with what its receiver needs to know.
#[derive(Debug)]
pub struct ExportedFd {
    /// The descriptor; closed on exec. As long as any copy of it is open anywhere the memory stays allocated.
    pub fd: OwnedFd,
    /// Size of the memory in bytes.
    pub bytes: u64,
    /// The device that it is on.
    pub device: DeviceUuid,
}

impl AsFd for ExportedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why no descriptor was made.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The memory was made without the POSIX descriptor type, which cannot be changed afterwards, or is another process's:
    /// an import cannot be exported again.
    #[error("export vmm memory: it was made without the POSIX descriptor type, or imported")]
    NotExportable(#[source] CudaError),
    /// The driver refused for another reason.
    #[error("export vmm memory as a descriptor")]
    Cuda(#[source] CudaError),
    /// The driver's descriptor could not be set to close on exec.
    #[error("set the exported descriptor to close on exec")]
    CloseOnExec(#[source] std::io::Error),
}

pub(super) fn export(handle: &Handle, bytes: u64, device: DeviceUuid) -> Result<ExportedFd, ExportError> {
    let mut number: i32 = -1;
    // SAFETY: for this handle type the first argument points at an integer, which lives through the call; the handle
    // is alive.
    let outcome = unsafe {
        call!(
            handle.driver(),
            cuMemExportToShareableHandle((&raw mut number).cast(), handle.raw(), POSIX_FD, 0)
        )
    };
    if let Err(error) = outcome {
        let private = handle.properties().is_ok_and(|properties| properties.handle_types & POSIX_FD.0 == 0);
        return Err(if private { ExportError::NotExportable(error) } else { ExportError::Cuda(error) });
    }
    if number < 0 {
        return Err(ExportError::Cuda(CudaError::invalid("cuMemExportToShareableHandle")));
    }
    // SAFETY: the driver opened this descriptor for us and nobody else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
        .map_err(|e| ExportError::CloseOnExec(e.into()))?;
    Ok(ExportedFd { fd, bytes, device })
}
