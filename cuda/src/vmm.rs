//! Memory shared by POSIX descriptor: the driver's virtual memory management ("vmm").
//!
//! A handle of the driver keeps the memory alive, a descriptor keeps it alive too, and a mapping makes it readable at
//! an address. An allocation or an import owns a handle; a mapping is made from one of them and owns it from then on.
//! Each mapping is dropped in the order of its fields: unmap, free the addresses, release the handle. A hold shares the
//! handle of either, and outlives them.
//!
//! None of this needs a current context, apart from using the mapped address.

mod fd;
mod hold;
mod map;

pub(crate) use map::{Mapped, Range};

pub use fd::{ExportError, ExportedFd};
pub use hold::VmmHold;
pub use map::VmmMapping;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocationType,
};

use crate::calls::{address, call};
use crate::device::{Device, allocation_properties};
use crate::load::Driver;
use crate::status::{CudaError, Status, note_drop};
use gpu_handoff_protocol::{Access, DeviceUuid};

/// The one way of sharing that is used here.
pub(crate) const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// One reference to physical memory; released on drop.
#[derive(Debug)]
pub(crate) struct Handle {
    driver: Driver,
    raw: CUmemGenericAllocationHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is released once. Memory that is still mapped stays until it is unmapped.
        note_drop(unsafe { call!(self.driver, cuMemRelease(self.raw)) });
    }
}

/// What the driver says of a handle; numbers, because a newer driver may have values that the bindings lack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Properties {
    /// Ordinal of the device, or a negative number for one that this process does not see; `None` if it is not device
    /// memory.
    pub(crate) device: Option<i32>,
    /// Bit mask of the ways in which the memory may be shared.
    pub(crate) handle_types: u32,
}

impl Handle {
    fn create(driver: Driver, ordinal: i32, bytes: usize, exportable: bool) -> Result<Handle, CudaError> {
        let properties = allocation_properties(ordinal, exportable);
        let mut raw = 0;
        // SAFETY: both pointers point at values that live through the call; the properties are fully initialised.
        unsafe { call!(driver, cuMemCreate(&raw mut raw, bytes, &raw const properties, 0)) }?;
        Ok(Handle { driver, raw })
    }

    pub(crate) fn import(driver: Driver, fd: BorrowedFd<'_>) -> Result<Handle, CudaError> {
        // The driver takes descriptor number 0 for a null pointer.
        let duplicate = if fd.as_raw_fd() == 0 {
            let error =
                |_| CudaError { call: "cuMemImportFromShareableHandle", status: Status::OPERATING_SYSTEM };
            Some(rustix::io::fcntl_dupfd_cloexec(fd, 1).map_err(error)?)
        } else {
            None
        };
        let fd = duplicate.as_ref().map_or(fd, AsFd::as_fd);
        let mut raw = 0;
        let number: *mut c_void = ptr::without_provenance_mut(fd.as_raw_fd().cast_unsigned() as usize);
        // SAFETY: for this handle type the second argument is the descriptor's number in a pointer's place; the
        // descriptor is open, and the driver takes its own reference and leaves ours alone.
        unsafe { call!(driver, cuMemImportFromShareableHandle(&raw mut raw, number, POSIX_FD)) }?;
        Ok(Handle { driver, raw })
    }

    pub(crate) fn of_pointer(driver: Driver, ptr: u64) -> Result<Handle, CudaError> {
        let mut raw = 0;
        // SAFETY: the driver looks the address up among its mappings and does not follow it; an unknown one is refused.
        unsafe { call!(driver, cuMemRetainAllocationHandle(&raw mut raw, address(ptr))) }?;
        Ok(Handle { driver, raw })
    }

    pub(crate) fn driver(&self) -> Driver {
        self.driver
    }

    pub(crate) fn raw(&self) -> CUmemGenericAllocationHandle {
        self.raw
    }

    pub(crate) fn properties(&self) -> Result<Properties, CudaError> {
        let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
        let fields = properties.as_mut_ptr();
        // SAFETY: `fields` points at memory of the right size that lives through the call. It is read field by field
        // and the enums as integers, so that a value which the bindings do not know is no invalid enum.
        let (kind, id, handle_types) = unsafe {
            call!(self.driver, cuMemGetAllocationPropertiesFromHandle(fields, self.raw))?;
            (
                (&raw const (*fields).location.type_).cast::<u32>().read(),
                (&raw const (*fields).location.id).read(),
                (&raw const (*fields).requestedHandleTypes).cast::<u32>().read(),
            )
        };
        let device = (kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32).then_some(id);
        Ok(Properties { device, handle_types })
    }

    /// The visible device that the memory is on.
    fn device(&self) -> Result<Option<Device>, CudaError> {
        match self.properties()?.device {
            Some(ordinal) if ordinal >= 0 => Device::at(self.driver, ordinal).map(Some),
            _ => Ok(None),
        }
    }
}

/// `bytes` rounded up to the granularity of `device`; refuses 0 and what does not fit.
pub(crate) fn round_up(call: &'static str, device: Device, bytes: u64) -> Result<usize, CudaError> {
    let granularity = device.vmm_granularity()?;
    let rounded = bytes.checked_next_multiple_of(granularity).filter(|&rounded| rounded > 0);
    rounded.and_then(|rounded| usize::try_from(rounded).ok()).ok_or(CudaError::invalid(call))
}

/// Device memory that this process made, or took a reference to.
#[derive(Debug)]
pub struct VmmAllocation {
    handle: Arc<Handle>,
    device: Device,
    bytes: usize,
}

impl VmmAllocation {
    /// Makes exportable memory on `device`: `bytes`, rounded up to the device's granularity.
    pub fn create(driver: Driver, device: Device, bytes: u64) -> Result<VmmAllocation, CudaError> {
        let bytes = round_up("cuMemCreate", device, bytes)?;
        let handle = Arc::new(Handle::create(driver, device.ordinal(), bytes, true)?);
        Ok(VmmAllocation { handle, device, bytes })
    }

    /// As [`VmmAllocation::create`], but memory that the driver will not export: what an application gets that does not
    /// ask for a handle type. For tests.
    pub fn create_private(driver: Driver, device: Device, bytes: u64) -> Result<VmmAllocation, CudaError> {
        let bytes = round_up("cuMemCreate", device, bytes)?;
        let handle = Arc::new(Handle::create(driver, device.ordinal(), bytes, false)?);
        Ok(VmmAllocation { handle, device, bytes })
    }

    /// Takes a reference to the vmm memory that is mapped at `ptr`; anything else is refused by the driver.
    ///
    /// The size is that of the one mapping which `ptr` is in, whatever is mapped beside it.
    pub fn of_pointer(driver: Driver, ptr: u64) -> Result<VmmAllocation, CudaError> {
        let handle = Handle::of_pointer(driver, ptr)?;
        let call = "cuMemRetainAllocationHandle";
        let device = handle.device()?.ok_or(CudaError { call, status: Status::INVALID_DEVICE })?;
        let (_, bytes) = crate::classify::extent_of(&handle, device, ptr)?;
        let bytes = usize::try_from(bytes).map_err(|_| CudaError::invalid(call))?;
        Ok(VmmAllocation { handle: Arc::new(handle), device, bytes })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Size in bytes, a multiple of the granularity.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The device that the memory is on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Makes a descriptor for the memory. Whoever holds it can map the memory and keeps it alive.
    pub fn export(&self) -> Result<ExportedFd, ExportError> {
        fd::export(&self.handle, self.bytes(), self.device.uuid())
    }

    /// Another hold on the memory. Costs no call of the driver.
    pub fn hold(&self) -> VmmHold {
        VmmHold::new(Arc::clone(&self.handle), self.bytes())
    }

    /// Maps the whole of it at an address of the driver's choice, for use from `device`.
    pub fn map(self, access: Access, device: Device) -> Result<VmmMapping, CudaError> {
        VmmMapping::new(self.handle, self.bytes, access, device)
    }
}

/// Memory of another process, imported from a descriptor and not mapped yet.
///
/// The driver does not tell its size: that comes from the exporter, and [`inspect`](crate::inspect()) checks it.
#[derive(Debug)]
pub struct VmmImport {
    handle: Handle,
}

impl VmmImport {
    /// Takes a reference to the memory behind a descriptor, which stays the caller's and may be closed afterwards.
    pub fn import(driver: Driver, fd: BorrowedFd<'_>) -> Result<VmmImport, CudaError> {
        Ok(VmmImport { handle: Handle::import(driver, fd)? })
    }

    /// The device that the memory is on; `None` if it is one that this process does not see.
    pub fn device(&self) -> Result<Option<DeviceUuid>, CudaError> {
        Ok(self.handle.device()?.map(|device| device.uuid()))
    }

    /// Maps `bytes`, rounded up to the granularity, at an address of the driver's choice, for use from `device`.
    pub fn map(self, bytes: u64, access: Access, device: Device) -> Result<VmmMapping, CudaError> {
        let bytes = round_up("cuMemMap", device, bytes)?;
        VmmMapping::new(Arc::new(self.handle), bytes, access, device)
    }
}
