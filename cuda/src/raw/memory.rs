//! Allocating, copying and mapping, unchecked.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemLocationType,
};

use super::{Answer, Raw, status, to_status};
use crate::calls::{address, call, call_extra};
use crate::device::allocation_properties;
use crate::status::Status;
use gpu_handoff_protocol::Access;

impl Raw {
    /// `cuMemAlloc`.
    pub fn alloc(self, bytes: usize) -> Answer<u64> {
        let mut ptr = 0;
        // SAFETY: the first argument points at an address that lives through the call.
        let outcome = unsafe { call!(self, cuMemAlloc_v2(&raw mut ptr, bytes)) };
        status(outcome, ptr)
    }

    /// `cuMemFree`.
    pub fn free(self, ptr: u64) -> Status {
        // SAFETY: the driver checks the address; a wrong one is the experiment.
        to_status(unsafe { call!(self, cuMemFree_v2(ptr)) })
    }

    /// `cuMemAllocManaged`, visible everywhere.
    pub fn alloc_managed(self, bytes: usize) -> Answer<u64> {
        let mut ptr = 0;
        // SAFETY: the first argument points at an address that lives through the call; 1 is CU_MEM_ATTACH_GLOBAL.
        let outcome = unsafe { call_extra!(self, cuMemAllocManaged(&raw mut ptr, bytes, 1)) };
        status(outcome, ptr)
    }

    /// `cuMemAllocHost`.
    pub fn alloc_host(self, bytes: usize) -> Answer<u64> {
        let mut pointer: *mut c_void = ptr::null_mut();
        // SAFETY: the first argument points at a pointer that lives through the call.
        let outcome = unsafe { call_extra!(self, cuMemAllocHost_v2(&raw mut pointer, bytes)) };
        status(outcome, pointer.expose_provenance() as u64)
    }

    /// `cuMemFreeHost`.
    pub fn free_host(self, ptr: u64) -> Status {
        // SAFETY: the driver checks the address; a wrong one is the experiment.
        to_status(unsafe { call_extra!(self, cuMemFreeHost(address(ptr))) })
    }

    /// `cuMemGetInfo`: free and total bytes of the current context's device.
    pub fn mem_info(self) -> Answer<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both arguments point at words that live through the call.
        let outcome = unsafe { call_extra!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total)) };
        status(outcome, (free as u64, total as u64))
    }

    /// `cuMemGetAddressRange`: start and bytes.
    pub fn address_range(self, ptr: u64) -> Answer<(u64, u64)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the first two arguments point at words that live through the call.
        let outcome = unsafe { call!(self, cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, ptr)) };
        status(outcome, (base, bytes as u64))
    }

    /// `cuMemsetD32`.
    pub fn memset_d32(self, ptr: u64, value: u32, words: usize) -> Status {
        // SAFETY: the driver checks the address; a wrong one is the experiment.
        to_status(unsafe { call!(self, cuMemsetD32_v2(ptr, value, words)) })
    }

    /// `cuMemcpyDtoH`.
    pub fn read(self, ptr: u64, to: &mut [u8]) -> Status {
        // SAFETY: the destination is a slice of that length; the driver checks the source.
        to_status(unsafe { call!(self, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), ptr, to.len())) })
    }

    /// `cuMemcpyHtoD`.
    pub fn write(self, ptr: u64, from: &[u8]) -> Status {
        // SAFETY: the source is a slice of that length; the driver checks the destination.
        to_status(unsafe { call!(self, cuMemcpyHtoD_v2(ptr, from.as_ptr().cast(), from.len())) })
    }

    /// `cuMemcpyDtoD`.
    pub fn copy(self, to: u64, from: u64, bytes: usize) -> Status {
        // SAFETY: the driver checks both addresses; a wrong one is the experiment.
        to_status(unsafe { call!(self, cuMemcpyDtoD_v2(to, from, bytes)) })
    }

    /// `cuMemCreate` of device memory.
    pub fn create(self, device: i32, bytes: usize, exportable: bool) -> Answer<u64> {
        let properties = allocation_properties(device, exportable);
        let mut handle = 0;
        // SAFETY: both pointers point at values that live through the call.
        let outcome = unsafe { call!(self, cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)) };
        status(outcome, handle)
    }

    /// `cuMemRelease`.
    pub fn release(self, handle: u64) -> Status {
        // SAFETY: the driver checks the handle; a wrong one is the experiment.
        to_status(unsafe { call!(self, cuMemRelease(handle)) })
    }

    /// `cuMemRetainAllocationHandle`.
    pub fn retain_handle(self, ptr: u64) -> Answer<u64> {
        let mut handle = 0;
        // SAFETY: the first argument points at a handle that lives through the call; the address is looked up only.
        let outcome = unsafe { call!(self, cuMemRetainAllocationHandle(&raw mut handle, address(ptr))) };
        status(outcome, handle)
    }

    /// `cuMemAddressReserve` anywhere.
    pub fn reserve(self, bytes: usize) -> Answer<u64> {
        let mut ptr = 0;
        // SAFETY: the first argument points at an address that lives through the call.
        let outcome = unsafe { call!(self, cuMemAddressReserve(&raw mut ptr, bytes, 0, 0, 0)) };
        status(outcome, ptr)
    }

    /// `cuMemAddressFree`.
    pub fn address_free(self, ptr: u64, bytes: usize) -> Status {
        // SAFETY: the driver checks the range; a wrong one is the experiment.
        to_status(unsafe { call!(self, cuMemAddressFree(ptr, bytes)) })
    }

    /// `cuMemMap`.
    pub fn map(self, ptr: u64, bytes: usize, offset: usize, handle: u64) -> Status {
        // SAFETY: the driver checks the range and the handle; a wrong one is the experiment.
        to_status(unsafe { call!(self, cuMemMap(ptr, bytes, offset, handle, 0)) })
    }

    /// `cuMemUnmap`.
    pub fn unmap(self, ptr: u64, bytes: usize) -> Status {
        // SAFETY: as above.
        to_status(unsafe { call!(self, cuMemUnmap(ptr, bytes)) })
    }

    /// `cuMemSetAccess` for one device.
    pub fn set_access(self, ptr: u64, bytes: usize, device: i32, access: Access) -> Status {
        let flags = match access {
            Access::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            Access::ReadOnly => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        };
        let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let wish = CUmemAccessDesc { location: CUmemLocation { type_, id: device }, flags };
        // SAFETY: the description lives through the call and is the one that is counted; the driver checks the range.
        to_status(unsafe { call!(self, cuMemSetAccess(ptr, bytes, &raw const wish, 1)) })
    }

    /// `cuMemGetAllocationPropertiesFromHandle`: location type, location id, handle types.
    pub fn properties(self, handle: u64) -> Answer<(u32, i32, u32)> {
        let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
        let fields = properties.as_mut_ptr();
        // SAFETY: `fields` points at memory that lives through the call, and is read as integers.
        unsafe {
            let outcome = call!(self, cuMemGetAllocationPropertiesFromHandle(fields, handle));
            let kind = (&raw const (*fields).location.type_).cast::<u32>().read();
            let types = (&raw const (*fields).requestedHandleTypes).cast::<u32>().read();
            status(outcome, (kind, (&raw const (*fields).location.id).read(), types))
        }
    }
}
