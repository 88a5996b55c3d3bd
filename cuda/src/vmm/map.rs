//! Mappings of vmm memory.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType,
};

use super::{ExportError, ExportedFd, Handle, VmmHold};
use crate::calls::call;
use crate::device::Device;
use crate::load::Driver;
use crate::status::{CudaError, note_drop};
use gpu_handoff_protocol::Access;

/// A range of reserved addresses; freed on drop.
#[derive(Debug)]
pub(crate) struct Range {
    driver: Driver,
    ptr: CUdeviceptr,
    bytes: usize,
}

impl Range {
    pub(crate) fn reserve(driver: Driver, bytes: usize) -> Result<Range, CudaError> {
        let mut ptr = 0;
        // SAFETY: the first argument points at an address that lives through the call; the driver chooses the rest.
        unsafe { call!(driver, cuMemAddressReserve(&raw mut ptr, bytes, 0, 0, 0)) }?;
        Ok(Range { driver, ptr, bytes })
    }

    /// Maps the first `bytes` of `handle` at the start of the range.
    ///
    /// The result must be dropped before the range: keep both in a struct, in that order.
    pub(crate) fn map(&self, handle: &Handle, bytes: usize) -> Result<Mapped, CudaError> {
        // SAFETY: the range is reserved by us and nothing of it is handed out while it is mapped; the handle is alive.
        unsafe { call!(self.driver, cuMemMap(self.ptr, bytes, 0, handle.raw(), 0)) }?;
        Ok(Mapped { driver: self.driver, ptr: self.ptr, bytes })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was reserved by us with this size; what was mapped in it has been unmapped before.
        note_drop(unsafe { call!(self.driver, cuMemAddressFree(self.ptr, self.bytes)) });
    }
}

/// Memory mapped into a range; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapped {
    driver: Driver,
    ptr: CUdeviceptr,
    bytes: usize,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by us at this address with this size.
        note_drop(unsafe { call!(self.driver, cuMemUnmap(self.ptr, self.bytes)) });
    }
}

/// Vmm memory at an address. Owns the reference to the memory, so it stays alive as long as this does.
///
/// Work that the GPU still has in flight on it must be over before this is dropped.
#[derive(Debug)]
pub struct VmmMapping {
    // The order of the fields is the order of their drops.
    mapped: Mapped,
    _range: Range,
    handle: Arc<Handle>,
}

impl VmmMapping {
    pub(super) fn new(
        handle: Arc<Handle>,
        bytes: usize,
        access: Access,
        device: Device,
    ) -> Result<Self, CudaError> {
        let range = Range::reserve(handle.driver(), bytes)?;
        let mapped = range.map(&handle, bytes)?;
        let mapping = VmmMapping { mapped, _range: range, handle };
        mapping.allow(access, device)?;
        Ok(mapping)
    }

    /// The address, a `CUdeviceptr`.
    pub fn ptr(&self) -> u64 {
        self.mapped.ptr
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapped.bytes as u64
    }

    /// Lets `device` use the mapping too, or changes how it may.
    pub fn allow(&self, access: Access, device: Device) -> Result<(), CudaError> {
        let flags = match access {
            Access::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            Access::ReadOnly => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        };
        let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let wish = CUmemAccessDesc { location: CUmemLocation { type_, id: device.ordinal() }, flags };
        // SAFETY: the range is mapped by us; the description lives through the call and is the one that is counted.
        unsafe {
            call!(
                self.handle.driver(),
                cuMemSetAccess(self.mapped.ptr, self.mapped.bytes, &raw const wish, 1)
            )
        }
    }

    /// Makes a descriptor for the memory, as [`VmmAllocation::export`](super::VmmAllocation::export) does. The driver
    /// refuses a mapping of an import: only the process that made the memory exports it.
    pub fn export(&self) -> Result<ExportedFd, ExportError> {
        self.hold().export()
    }

    /// Another hold on the memory. Costs no call of the driver.
    pub fn hold(&self) -> VmmHold {
        VmmHold::new(Arc::clone(&self.handle), self.bytes())
    }
}
