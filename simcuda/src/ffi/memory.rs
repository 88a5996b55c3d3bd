//! `cuMemAlloc` memory, memsets and copies.

use super::{Out, calls, with_context};
use crate::copy::{Fill, Place};
use crate::driver::driver;
use crate::error::Result;
use crate::measured;

/// When a call's work happens.
#[derive(Clone, Copy)]
enum When {
    /// Before the call returns.
    Now,
    /// In the default stream.
    Default,
    /// In a stream.
    In(usize),
}

fn copy(to: Place, from: Place, bytes: usize, when: When) -> Result<()> {
    let (driver, gpu) = with_context()?;
    let job = driver.copy_job(gpu, to, from, bytes as u64)?;
    run(job, when)
}

fn fill(to: u64, fill: Fill, count: usize, when: When) -> Result<()> {
    let (driver, gpu) = with_context()?;
    let job = driver.fill_job(gpu, to, fill, count as u64)?;
    run(job, when)
}

fn run(job: Option<crate::stream::Job>, when: When) -> Result<()> {
    let (driver, gpu) = with_context()?;
    let Some(job) = job else { return Ok(()) };
    match when {
        When::Now => driver.streams.run_default(gpu, job),
        When::Default | When::In(0) => driver.streams.submit_default(gpu, job),
        When::In(stream) => driver.streams.submit(stream, gpu, job),
    }
}

calls! {
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        let (driver, gpu) = with_context()?;
        let out = address.check()?;
        out.set(driver.allocate(gpu, bytes as u64)?)
    }

    /// Needs no context.
    fn cuMemFree_v2(address: u64) {
        driver()?.free(address)
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (driver, gpu) = with_context()?;
        let (bytes_free, bytes_total) = driver.memory_info(gpu)?;
        free.set(usize::try_from(bytes_free).unwrap_or(usize::MAX))?;
        total.set(usize::try_from(bytes_total).unwrap_or(usize::MAX))
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        let (driver, _) = with_context()?;
        let state = driver.state();
        let region = state.space.find(address).ok_or(measured::ADDRESS_RANGE_UNKNOWN)?;
        base.set_if_wanted(region.start);
        bytes.set_if_wanted(usize::try_from(region.bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(to, Fill::Bytes(value), count, When::Default)
    }

    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        fill(to, Fill::Words(value), count, When::Default)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        fill(to, Fill::Bytes(value), count, When::In(stream))
    }

    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) {
        fill(to, Fill::Words(value), count, When::In(stream))
    }

    fn cuMemcpy(to: usize, from: usize, bytes: usize) {
        copy(Place::unified(to), Place::unified(from), bytes, When::Now)
    }

    fn cuMemcpyAsync(to: usize, from: usize, bytes: usize, stream: usize) {
        copy(Place::unified(to), Place::unified(from), bytes, When::In(stream))
    }

    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) {
        copy(Place::unified(to), Place::Device(from), bytes, When::Now)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) {
        copy(Place::Device(to), Place::unified(from), bytes, When::Now)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy(Place::Device(to), Place::Device(from), bytes, When::Default)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: usize) {
        copy(Place::unified(to), Place::Device(from), bytes, When::In(stream))
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: usize) {
        copy(Place::Device(to), Place::unified(from), bytes, When::In(stream))
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy(Place::Device(to), Place::Device(from), bytes, When::In(stream))
    }
}
