//! Memory pools.

use std::ffi::c_void;
use std::os::fd::IntoRawFd;

use super::{In, Out, calls, descriptor, with_context};
use crate::abi::{ACCESS_READ_WRITE, AccessDesc, IpcHandle, LOCATION_TYPE_DEVICE, MemLocation, PoolProps};
use crate::driver::driver;
use crate::error::CuResult;
use crate::measured;

/// `CU_MEMPOOL_ATTR_*`: three switches, then counters of bytes.
const LAST_SWITCH: u32 = 3;
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED_MEM_CURRENT: u32 = 5;
const USED_MEM_HIGH: u32 = 8;

calls! {
    fn cuMemPoolCreate(pool: Out<usize>, props: In<PoolProps>) {
        let driver = driver()?;
        let out = pool.check()?;
        out.set(driver.pool_create(&props.get()?)?)
    }

    fn cuMemPoolDestroy(pool: usize) {
        driver()?.pool_destroy(pool)
    }

    /// A pool's memory is open to every GPU already, so only the arguments are checked.
    fn cuMemPoolSetAccess(pool: usize, descs: In<AccessDesc>, count: usize) {
        let driver = driver()?;
        driver.state().pool(pool)?;
        for desc in descs.list(count)? {
            if desc.location.kind != LOCATION_TYPE_DEVICE {
                return Err(CuResult::ERROR_INVALID_VALUE);
            }
            driver.devices.gpu(desc.location.id)?;
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: usize, location: In<MemLocation>) {
        let driver = driver()?;
        driver.state().pool(pool)?;
        driver.devices.gpu(location.get()?.id)?;
        flags.set(ACCESS_READ_WRITE)
    }

    /// Nothing is kept back or reused, so no setting changes anything.
    fn cuMemPoolSetAttribute(pool: usize, attribute: u32, value: In<u8>) {
        driver()?.state().pool(pool)?;
        value.get()?;
        if attribute == 0 || attribute > USED_MEM_HIGH { Err(CuResult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: u32, value: Out<c_void>) {
        let driver = driver()?;
        let state = driver.state();
        state.pool(pool)?;
        match attribute {
            1..=LAST_SWITCH => value.cast::<i32>().set(1),
            RELEASE_THRESHOLD => value.cast::<u64>().set(0),
            RESERVED_MEM_CURRENT..=USED_MEM_HIGH => value.cast::<u64>().set(state.pool_used(pool)),
            _ => Err(CuResult::ERROR_INVALID_VALUE),
        }
    }

    fn cuMemPoolTrimTo(pool: usize, _bytes: usize) {
        driver()?.state().pool(pool).map(drop)
    }

    fn cuMemPoolExportToShareableHandle(shareable: Out<c_void>, pool: usize, handle_type: u32, _flags: u64) {
        let driver = driver()?;
        let out = shareable.check()?;
        // The descriptor is the caller's from here on.
        out.cast::<i32>().set(driver.pool_export(pool, handle_type)?.into_raw_fd())
    }

    fn cuMemPoolImportFromShareableHandle(pool: Out<usize>, shareable: usize, handle_type: u32, _flags: u64) {
        let driver = driver()?;
        let out = pool.check()?;
        let fd = descriptor(shareable).ok_or(measured::POOL_IMPORT_FOREIGN)?;
        out.set(driver.pool_import(fd, handle_type)?)
    }

    fn cuMemPoolExportPointer(data: Out<IpcHandle>, address: u64) {
        let driver = driver()?;
        data.set(driver.pool_export_pointer(address)?)
    }

    fn cuMemPoolImportPointer(address: Out<u64>, pool: usize, data: In<IpcHandle>) {
        let driver = driver()?;
        let out = address.check()?;
        out.set(driver.pool_import_pointer(pool, &data.get()?)?)
    }

    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: usize, stream: usize) {
        let (driver, gpu) = with_context()?;
        let out = address.check()?;
        driver.streams.get(stream, gpu)?;
        out.set(driver.pool_allocate(pool, bytes as u64)?)
    }

    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: usize) {
        let (driver, gpu) = with_context()?;
        let out = address.check()?;
        driver.streams.get(stream, gpu)?;
        out.set(driver.pool_allocate(driver.default_pool(gpu)?, bytes as u64)?)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) {
        let (driver, gpu) = with_context()?;
        driver.free_async(address, stream, gpu)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: i32) {
        let driver = driver()?;
        let out = pool.check()?;
        out.set(driver.default_pool(driver.devices.gpu(device)?)?)
    }

    fn cuDeviceGetMemPool(pool: Out<usize>, device: i32) {
        let driver = driver()?;
        let out = pool.check()?;
        out.set(driver.default_pool(driver.devices.gpu(device)?)?)
    }
}
