//! Streams, their memory operations, and functions of the host on them.

use super::{Out, calls, with_context};
use crate::abi::{CAPTURE_NONE, STREAM_NON_BLOCKING, WRITE_VALUE_NO_MEMORY_BARRIER};
use crate::address_space::Want;
use crate::driver::driver;
use crate::error::{CuResult, Result};
use crate::faults;
use crate::measured;
use crate::stream::Job;
use crate::word::{Condition, Word};

fn create(out: Out<usize>, flags: u32) -> Result<()> {
    let (driver, gpu) = with_context()?;
    let out = out.check()?;
    if flags & !STREAM_NON_BLOCKING != 0 {
        return Err(CuResult::ERROR_INVALID_VALUE);
    }
    let handle = driver.next_handle();
    driver.streams.create(handle, gpu, flags & STREAM_NON_BLOCKING == 0);
    out.set(handle)
}

/// A stream's own GPU is what its memory operations and their access rights belong to.
fn value_job(
    stream: usize,
    address: u64,
    bytes: u64,
    want: Want,
    job: impl FnOnce(Word) -> Job,
) -> Result<()> {
    let (driver, gpu) = with_context()?;
    let gpu = driver.streams.get(stream, gpu)?.gpu();
    if !address.is_multiple_of(bytes) {
        return Err(measured::STREAM_VALUE_ARGUMENT);
    }
    let mut spans = driver.state().space.resolve(address, bytes, gpu, want)?;
    let span = spans.pop().ok_or(CuResult::ERROR_UNKNOWN)?;
    span.back()?;
    driver.streams.submit(stream, gpu, job(Word::new(span)?))
}

fn write(stream: usize, address: u64, bytes: u64, value: u64, flags: u32) -> Result<()> {
    if flags & !WRITE_VALUE_NO_MEMORY_BARRIER != 0 {
        return Err(measured::STREAM_VALUE_ARGUMENT);
    }
    value_job(stream, address, bytes, Want::Write, |word| {
        Box::new(move || {
            word.write(value);
            Ok(())
        })
    })
}

fn wait(stream: usize, address: u64, bytes: u64, value: u64, flags: u32) -> Result<()> {
    let condition = Condition::from_flags(flags)?;
    let devices = &driver()?.devices;
    value_job(stream, address, bytes, Want::Read, |word| {
        Box::new(move || word.wait(condition, value, || devices.minors().any(faults::is_lost)))
    })
}

/// `CUhostFn`; its data is handed on and not looked at.
type HostFunction = unsafe extern "C" fn(usize);

calls! {
    fn cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: usize) {
        let (driver, gpu) = with_context()?;
        let function = function.ok_or(CuResult::ERROR_INVALID_VALUE)?;
        driver.streams.submit(stream, gpu, Box::new(move || {
            super::in_host_function(|| {
                // SAFETY: by the contract of the call the function may be called with this data, once, on any thread. It is C: a
                // panic of it cannot come here.
                unsafe { function(data) }
            });
            Ok(())
        }))
    }

    /// There are no graphs, so nothing is ever captured.
    fn cuStreamIsCapturing(stream: usize, status: Out<u32>) {
        let (driver, gpu) = with_context()?;
        driver.streams.get(stream, gpu)?;
        status.set(CAPTURE_NONE)
    }

    fn cuStreamCreate(stream: Out<usize>, flags: u32) {
        create(stream, flags)
    }

    fn cuStreamCreateWithPriority(stream: Out<usize>, flags: u32, _priority: i32) {
        create(stream, flags)
    }

    fn cuStreamDestroy_v2(stream: usize) {
        let (driver, _) = with_context()?;
        driver.streams.destroy(stream)
    }

    fn cuStreamSynchronize(stream: usize) {
        let (driver, gpu) = with_context()?;
        driver.streams.get(stream, gpu)?.synchronize()
    }

    fn cuStreamQuery(stream: usize) {
        let (driver, gpu) = with_context()?;
        driver.streams.get(stream, gpu)?.query()
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        let (driver, gpu) = with_context()?;
        let event = driver.state().events.get(&event).cloned().ok_or(measured::UNKNOWN_HANDLE)?;
        let number = event.last_asked();
        driver.streams.submit(stream, gpu, Box::new(move || event.wait(number, super::event::lives)))
    }

    fn cuStreamWriteValue32_v2(stream: usize, address: u64, value: u32, flags: u32) {
        write(stream, address, 4, u64::from(value), flags)
    }

    fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        write(stream, address, 8, value, flags)
    }

    fn cuStreamWaitValue32_v2(stream: usize, address: u64, value: u32, flags: u32) {
        wait(stream, address, 4, u64::from(value), flags)
    }

    fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        wait(stream, address, 8, value, flags)
    }
}
