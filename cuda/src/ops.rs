//! The few operations on device memory that examples, tests and the demo need, and the timeline words that order two
//! processes' work. All need a current context.
//!
//! Every address is checked to be device memory that this process has, so that a wrong number is an error and does not
//! reach into the host's memory through the unified address space.

use crate::calls::{call, call_extra};
use crate::classify::is_device_range;
use crate::load::Driver;
use crate::status::{CudaError, Status};
use crate::stream::{self, StreamRef};

/// Fills `words` 32-bit words from `ptr` on with `value`.
pub fn memset_d32(driver: Driver, ptr: u64, value: u32, words: u64) -> Result<(), CudaError> {
    let call = "cuMemsetD32";
    check(driver, call, ptr, words.checked_mul(4).ok_or(CudaError::invalid(call))?)?;
    let count = usize::try_from(words).map_err(|_| CudaError::invalid(call))?;
    // SAFETY: the words are within one allocation on a device, as checked.
    unsafe { call!(driver, cuMemsetD32_v2(ptr, value, count)) }
}

/// Copies device memory at `ptr` into `to`.
pub fn read(driver: Driver, ptr: u64, to: &mut [u8]) -> Result<(), CudaError> {
    check(driver, "cuMemcpyDtoH", ptr, to.len() as u64)?;
    // SAFETY: the source is within one allocation on a device, as checked; the destination is a slice of that length.
    unsafe { call!(driver, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), ptr, to.len())) }
}

/// Copies `from` into device memory at `ptr`.
pub fn write(driver: Driver, ptr: u64, from: &[u8]) -> Result<(), CudaError> {
    check(driver, "cuMemcpyHtoD", ptr, from.len() as u64)?;
    // SAFETY: the destination is within one allocation on a device, as checked; the source is a slice of that length.
    unsafe { call!(driver, cuMemcpyHtoD_v2(ptr, from.as_ptr().cast(), from.len())) }
}

/// Copies `bytes` of device memory from one address to another.
pub fn copy(driver: Driver, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
    let call = "cuMemcpyDtoD";
    check(driver, call, to, bytes)?;
    check(driver, call, from, bytes)?;
    let count = usize::try_from(bytes).map_err(|_| CudaError::invalid(call))?;
    // SAFETY: both ranges are within one allocation on a device each, as checked.
    unsafe { call!(driver, cuMemcpyDtoD_v2(to, from, count)) }
}

/// Waits until the current context has done everything that was asked of it.
pub fn synchronize(driver: Driver) -> Result<(), CudaError> {
    // SAFETY: the call has no arguments.
    unsafe { call!(driver, cuCtxSynchronize()) }
}

/// Has the stream write `value` to the 64-bit word at `ptr` once what was queued before is done.
pub fn signal(driver: Driver, stream: StreamRef<'_>, ptr: u64, value: u64) -> Result<(), CudaError> {
    check_word(driver, "cuStreamWriteValue64", ptr)?;
    // SAFETY: the word is device memory, as checked; the stream is alive, as its maker said. Flags 0 are the default.
    unsafe { call_extra!(driver, cuStreamWriteValue64_v2(stream.handle(), ptr, value, 0)) }
}

/// Has the stream go no further until the 64-bit word at `ptr` is `value` or more: cyclically, so that the difference of the two,
/// taken as a signed number, is not negative.
pub fn wait_at_least(driver: Driver, stream: StreamRef<'_>, ptr: u64, value: u64) -> Result<(), CudaError> {
    check_word(driver, "cuStreamWaitValue64", ptr)?;
    // SAFETY: as above; flags 0 are CU_STREAM_WAIT_VALUE_GEQ.
    unsafe { call_extra!(driver, cuStreamWaitValue64_v2(stream.handle(), ptr, value, 0)) }
}

/// The 64-bit word at `ptr` once the stream has done what was queued before; waits for nothing but this stream.
///
/// On a stream of one's own ([`Stream`](crate::Stream)) that is the word as it is now, whatever the application's streams wait for.
pub fn load(driver: Driver, on: StreamRef<'_>, ptr: u64) -> Result<u64, CudaError> {
    let words = load_all(driver, on, ptr, 1)?;
    words.first().copied().ok_or(CudaError::invalid("cuMemcpyDtoHAsync"))
}

/// So many 64-bit words from `ptr` on, in one copy, as [`load`] reads one.
pub fn load_all(driver: Driver, on: StreamRef<'_>, ptr: u64, count: usize) -> Result<Box<[u64]>, CudaError> {
    let call = "cuMemcpyDtoHAsync";
    let bytes = count.checked_mul(size_of::<u64>()).ok_or(CudaError::invalid(call))?;
    if !ptr.is_multiple_of(8) {
        return Err(CudaError::invalid(call));
    }
    check(driver, call, ptr, bytes as u64)?;
    if stream::is_capturing(driver, on)? {
        return Err(CudaError { call, status: Status::STREAM_CAPTURE_UNSUPPORTED });
    }
    let words = Box::into_raw(vec![0_u64; count].into_boxed_slice());
    // SAFETY: the source is so many words on a device, as checked. The target has as many, and is kept until the copy is over:
    // when the wait for it failed it is kept for ever, as the copy may still come.
    unsafe {
        call!(driver, cuMemcpyDtoHAsync_v2(words.cast(), ptr, bytes, on.handle()))?;
        stream::synchronize(driver, on)?;
        Ok(Box::from_raw(words))
    }
}

fn check_word(driver: Driver, call: &'static str, ptr: u64) -> Result<(), CudaError> {
    if ptr.is_multiple_of(8) { check(driver, call, ptr, 8) } else { Err(CudaError::invalid(call)) }
}

fn check(driver: Driver, call: &'static str, ptr: u64, bytes: u64) -> Result<(), CudaError> {
    if is_device_range(driver, ptr, bytes)? { Ok(()) } else { Err(CudaError::invalid(call)) }
}
