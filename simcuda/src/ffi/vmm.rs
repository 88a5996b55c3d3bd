//! Virtual memory management.

use std::ffi::c_void;
use std::os::fd::IntoRawFd;

use super::{In, Out, calls, descriptor};
use crate::abi::{AccessDesc, AllocationProp, GRANULARITY_RECOMMENDED, HANDLE_TYPE_POSIX_FD, MemLocation};
use crate::driver::driver;
use crate::error::CuResult;
use crate::header::BLOCK_BYTES;
use crate::measured;

calls! {
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, prop: In<AllocationProp>, option: u32) {
        driver()?.vmm_gpu(&prop.get()?)?;
        if option > GRANULARITY_RECOMMENDED {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        granularity.set(usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX))
    }

    fn cuMemCreate(handle: Out<u64>, bytes: usize, prop: In<AllocationProp>, flags: u64) {
        let driver = driver()?;
        let out = handle.check()?;
        out.set(driver.vmm_create(bytes as u64, &prop.get()?, flags)?)
    }

    fn cuMemRelease(handle: u64) {
        driver()?.vmm_release(handle)
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) {
        let driver = driver()?;
        let out = handle.check()?;
        out.set(driver.vmm_retain(address)?)
    }

    fn cuMemExportToShareableHandle(shareable: Out<c_void>, handle: u64, handle_type: u32, flags: u64) {
        let driver = driver()?;
        let out = shareable.check()?;
        if flags != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        // The descriptor is the caller's from here on.
        out.cast::<i32>().set(driver.vmm_export(handle, handle_type)?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, shareable: usize, handle_type: u32) {
        let driver = driver()?;
        let out = handle.check()?;
        if handle_type != HANDLE_TYPE_POSIX_FD {
            return Err(measured::VMM_IMPORT_HANDLE_TYPE);
        }
        if shareable == 0 {
            return Err(measured::VMM_IMPORT_ZERO);
        }
        let fd = descriptor(shareable).ok_or(measured::VMM_IMPORT_FOREIGN)?;
        out.set(driver.vmm_import(fd)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: u64) {
        prop.set(driver()?.vmm_properties(handle)?)
    }

    fn cuMemAddressReserve(address: Out<u64>, bytes: usize, align: usize, hint: u64, flags: u64) {
        let driver = driver()?;
        let out = address.check()?;
        out.set(driver.reserve(bytes as u64, align as u64, hint, flags)?)
    }

    fn cuMemAddressFree(address: u64, bytes: usize) {
        driver()?.unreserve(address, bytes as u64)
    }

    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        driver()?.map(address, bytes as u64, offset as u64, handle, flags)
    }

    fn cuMemUnmap(address: u64, bytes: usize) {
        driver()?.unmap(address, bytes as u64)
    }

    fn cuMemSetAccess(address: u64, bytes: usize, descs: In<AccessDesc>, count: usize) {
        let descs = descs.list(count)?;
        driver()?.set_access(address, bytes as u64, &descs)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<MemLocation>, address: u64) {
        flags.set(u64::from(driver()?.get_access(&location.get()?, address)?))
    }
}
