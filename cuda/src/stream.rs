//! Streams: the application's, named by their handles, and our own.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::sys::{CUstream, CUstreamCaptureStatus, CUstreamCaptureStatus_enum};

use crate::calls::call;
use crate::context::ContextRef;
use crate::load::Driver;
use crate::status::{CudaError, Status, note_drop};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A stream that lives as long as `'s`; the handle (`CUstream` or `cudaStream_t`) is a number, 0 is the default stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamRef<'s>(usize, PhantomData<&'s ()>);

impl fmt::Debug for StreamRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamRef({:#x})", self.0)
    }
}

impl Default for StreamRef<'static> {
    fn default() -> Self {
        StreamRef::DEFAULT
    }
}

impl StreamRef<'static> {
    /// The default stream of the current context.
    pub const DEFAULT: StreamRef<'static> = StreamRef(0, PhantomData);
}

impl<'s> StreamRef<'s> {
    /// The stream of this handle.
    ///
    /// # Safety
    ///
    /// The handle is 0 or a stream that is not destroyed while this value, which the caller gives its lifetime, is used.
    pub const unsafe fn from_raw(handle: usize) -> StreamRef<'s> {
        StreamRef(handle, PhantomData)
    }

    pub(crate) fn handle(self) -> CUstream {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// A stream of our own, which does not wait for the default stream and which the default stream does not wait for: so work
/// on it goes on while the application's streams stand still.
#[derive(Debug)]
pub struct Stream {
    driver: Driver,
    context: ContextRef,
    handle: usize,
}

impl Stream {
    /// Makes one in the current context.
    pub fn create(driver: Driver) -> Result<Stream, CudaError> {
        let context = ContextRef::require(driver, "cuStreamCreate")?;
        let mut stream = ptr::null_mut();
        // SAFETY: the first argument points at a handle that lives through the call.
        unsafe { call!(driver, cuStreamCreate(&raw mut stream, NON_BLOCKING)) }?;
        Ok(Stream { driver, context, handle: stream.expose_provenance() })
    }

    /// The stream, for the calls that take one.
    pub fn stream(&self) -> StreamRef<'_> {
        StreamRef(self.handle, PhantomData)
    }

    /// The context that it was made in; its calls want that one current.
    pub fn context(&self) -> ContextRef {
        self.context
    }
}

impl Drop for Stream {
    /// Gives the stream back; what is queued on it still happens.
    fn drop(&mut self) {
        note_drop(self.context.enter(self.driver).and_then(|_entered| {
            // SAFETY: the stream is ours, and no reference outlives this value.
            unsafe { call!(self.driver, cuStreamDestroy_v2(self.stream().handle())) }
        }));
    }
}

/// Waits until the stream has done everything that was queued on it.
pub fn synchronize(driver: Driver, stream: StreamRef<'_>) -> Result<(), CudaError> {
    // SAFETY: the stream is alive, as its maker said.
    unsafe { call!(driver, cuStreamSynchronize(stream.handle())) }
}

/// Whether the stream has done everything that was queued on it.
pub fn is_idle(driver: Driver, stream: StreamRef<'_>) -> Result<bool, CudaError> {
    // SAFETY: the stream is alive, as its maker said.
    match unsafe { call!(driver, cuStreamQuery(stream.handle())) } {
        Ok(()) => Ok(true),
        Err(CudaError { status: Status::NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether what is queued on the stream now goes into a graph instead of being done.
pub fn is_capturing(driver: Driver, stream: StreamRef<'_>) -> Result<bool, CudaError> {
    let mut state = CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE as u32;
    let field: *mut CUstreamCaptureStatus = (&raw mut state).cast();
    // SAFETY: `field` points at an integer of the enum's size that lives through the call and is read as an integer, so that a
    // value which the bindings do not know is no invalid enum; the stream is alive, as its maker said.
    unsafe { call!(driver, cuStreamIsCapturing(stream.handle(), field)) }?;
    Ok(state != CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE as u32)
}
