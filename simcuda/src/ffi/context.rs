//! Primary contexts and current ones.

use super::{Out, calls, with_context};
use crate::context;
use crate::driver::driver;
use crate::error::CuResult;

calls! {
    fn cuDevicePrimaryCtxRetain(context: Out<usize>, device: i32) {
        let driver = driver()?;
        let gpu = driver.devices.gpu(device)?;
        let out = context.check()?;
        let retained = driver.state().contexts.retain(gpu)?;
        out.set(retained)
    }

    fn cuDevicePrimaryCtxRelease(device: i32) {
        let driver = driver()?;
        driver.release_primary(driver.devices.gpu(device)?)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let driver = driver()?;
        driver.release_primary(driver.devices.gpu(device)?)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        let driver = driver()?;
        let gpu = driver.devices.gpu(device)?;
        driver.state().contexts.reset(gpu)?;
        driver.destroy_context(gpu);
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        let driver = driver()?;
        let gpu = driver.devices.gpu(device)?;
        driver.state().contexts.set_flags(gpu, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let driver = driver()?;
        let gpu = driver.devices.gpu(device)?;
        let (set, lives) = driver.state().contexts.state(gpu)?;
        flags.set(set)?;
        active.set(i32::from(lives))
    }

    fn cuCtxSetCurrent(context: usize) {
        let driver = driver()?;
        if context != 0 {
            driver.state().contexts.check_known(context)?;
        }
        context::set_current(context);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<usize>) {
        driver()?;
        context.set(context::current())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        driver()?.state().contexts.check_known(context)?;
        context::push(context);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<usize>) {
        driver()?;
        context.set_if_wanted(context::pop()?);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        let (driver, gpu) = with_context()?;
        device.set(driver.devices.ordinal(gpu))
    }

    fn cuCtxGetApiVersion(context: usize, version: Out<u32>) {
        driver()?.state().contexts.gpu_of(context)?;
        version.set(u32::try_from(crate::device::DRIVER_VERSION).map_err(|_| CuResult::ERROR_UNKNOWN)?)
    }

    fn cuCtxSynchronize() {
        let (driver, gpu) = with_context()?;
        driver.streams.synchronize_gpu(gpu)
    }
}
