//! Memory pools, unchecked.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::ptr;

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPoolProps, CUmemPoolPtrExportData,
};

use super::sharing::owned;
use super::{Answer, Raw, status, to_status};
use crate::calls::call_extra;
use crate::status::Status;
use crate::vmm::POSIX_FD;

impl Raw {
    /// `cuMemPoolCreate` of device memory, shareable by descriptor or not.
    pub fn pool_create(self, device: i32, exportable: bool) -> Answer<usize> {
        let mut properties = MaybeUninit::<CUmemPoolProps>::zeroed();
        let fields = properties.as_mut_ptr();
        let mut pool = ptr::null_mut();
        // SAFETY: `fields` points at the zeroed value, which zero is valid for; both pointers live through the call.
        let outcome = unsafe {
            (*fields).allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
            (*fields).location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            (*fields).location.id = device;
            if exportable {
                (*fields).handleTypes = POSIX_FD;
            }
            call_extra!(self, cuMemPoolCreate(&raw mut pool, fields))
        };
        status(outcome, pool.expose_provenance())
    }

    /// `cuMemAllocFromPoolAsync` on a stream.
    pub fn pool_alloc(self, pool: usize, stream: usize, bytes: usize) -> Answer<u64> {
        let mut ptr = 0;
        let (pool, stream) =
            (ptr::with_exposed_provenance_mut(pool), ptr::with_exposed_provenance_mut(stream));
        // SAFETY: the first argument points at an address that lives through the call.
        let outcome =
            unsafe { call_extra!(self, cuMemAllocFromPoolAsync(&raw mut ptr, bytes, pool, stream)) };
        status(outcome, ptr)
    }

    /// `cuMemFreeAsync`.
    pub fn free_async(self, ptr: u64, stream: usize) -> Status {
        // SAFETY: the driver checks the address; a wrong one is the experiment.
        to_status(unsafe { call_extra!(self, cuMemFreeAsync(ptr, ptr::with_exposed_provenance_mut(stream))) })
    }

    /// `cuMemPoolDestroy`.
    pub fn pool_destroy(self, pool: usize) -> Status {
        // SAFETY: the experiment's caller says which pool.
        to_status(unsafe { call_extra!(self, cuMemPoolDestroy(ptr::with_exposed_provenance_mut(pool))) })
    }

    /// `cuMemPoolExportToShareableHandle` as a descriptor.
    pub fn pool_export(self, pool: usize) -> Answer<OwnedFd> {
        let mut number: i32 = -1;
        let pool = ptr::with_exposed_provenance_mut(pool);
        // SAFETY: the first argument points at an integer that lives through the call.
        let outcome = unsafe {
            call_extra!(self, cuMemPoolExportToShareableHandle((&raw mut number).cast(), pool, POSIX_FD, 0))
        };
        status(outcome, ()).and_then(|()| owned(number))
    }
    /// `cuMemPoolImportFromShareableHandle` of any descriptor number, open or not.
    pub fn pool_import(self, fd: i32) -> Answer<usize> {
        let mut pool = ptr::null_mut();
        let number = ptr::without_provenance_mut(fd as isize as usize);
        // SAFETY: the first argument points at a handle that lives through the call; the second is a number here.
        let outcome = unsafe {
            call_extra!(self, cuMemPoolImportFromShareableHandle(&raw mut pool, number, POSIX_FD, 0))
        };
        status(outcome, pool.expose_provenance())
    }

    /// `cuMemPoolSetAccess` for reading and writing by one device.
    pub fn pool_allow(self, pool: usize, device: i32) -> Status {
        let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let wish = CUmemAccessDesc { location: CUmemLocation { type_, id: device }, flags };
        let pool = ptr::with_exposed_provenance_mut(pool);
        // SAFETY: the description lives through the call and is the one that is counted.
        to_status(unsafe { call_extra!(self, cuMemPoolSetAccess(pool, &raw const wish, 1)) })
    }

    /// `cuMemPoolExportPointer`, 64 bytes.
    pub fn pool_export_pointer(self, ptr: u64) -> Answer<[u8; 64]> {
        let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
        // SAFETY: the first argument points at 64 bytes that live through the call.
        let outcome = unsafe { call_extra!(self, cuMemPoolExportPointer(&raw mut data, ptr)) };
        status(outcome, data.reserved)
    }

    /// `cuMemPoolImportPointer`.
    pub fn pool_import_pointer(self, pool: usize, data: [u8; 64]) -> Answer<u64> {
        let (mut ptr, mut data) = (0, CUmemPoolPtrExportData { reserved: data });
        let pool = ptr::with_exposed_provenance_mut(pool);
        // SAFETY: the pointers point at an address and at 64 bytes that live through the call.
        let outcome = unsafe { call_extra!(self, cuMemPoolImportPointer(&raw mut ptr, pool, &raw mut data)) };
        status(outcome, ptr)
    }
}
