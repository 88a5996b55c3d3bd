//! Streams, events and timeline words, unchecked. Handles are numbers.

use std::ptr;

use super::{Answer, Raw, status, to_status};
use crate::calls::{call, call_extra};
use crate::host::call_on;
use crate::load::Driver;
use crate::status::Status;
use crate::stream::StreamRef;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 2 | 4;

impl Raw {
    /// `cuStreamCreate`, not blocking on the default stream.
    pub fn stream_create(self) -> Answer<usize> {
        let mut stream = ptr::null_mut();
        // SAFETY: the first argument points at a handle that lives through the call.
        let outcome = unsafe { call!(self, cuStreamCreate(&raw mut stream, NON_BLOCKING)) };
        status(outcome, stream.expose_provenance())
    }

    /// `cuStreamDestroy`.
    pub fn stream_destroy(self, stream: usize) -> Status {
        // SAFETY: the experiment's caller says which stream.
        to_status(unsafe { call!(self, cuStreamDestroy_v2(ptr::with_exposed_provenance_mut(stream))) })
    }

    /// `cuStreamSynchronize`.
    pub fn stream_synchronize(self, stream: usize) -> Status {
        // SAFETY: as above.
        to_status(unsafe { call!(self, cuStreamSynchronize(ptr::with_exposed_provenance_mut(stream))) })
    }

    /// `cuStreamQuery`.
    pub fn stream_query(self, stream: usize) -> Status {
        // SAFETY: as above.
        to_status(unsafe { call!(self, cuStreamQuery(ptr::with_exposed_provenance_mut(stream))) })
    }

    /// `cuLaunchHostFunc`, in a process that has called `cuInit`.
    pub fn call_on(self, stream: usize, function: impl FnOnce() + Send + 'static) -> Status {
        let Ok(driver) = Driver::load() else { return Status::NOT_INITIALIZED };
        // SAFETY: the experiment's caller says which stream.
        let stream = unsafe { StreamRef::from_raw(stream) };
        to_status(call_on(driver, stream, function))
    }

    /// `cuStreamWriteValue64`.
    pub fn write_value(self, stream: usize, ptr: u64, value: u64) -> Status {
        let stream = ptr::with_exposed_provenance_mut(stream);
        // SAFETY: as above; the driver checks the address.
        to_status(unsafe { call_extra!(self, cuStreamWriteValue64_v2(stream, ptr, value, 0)) })
    }

    /// `cuStreamWaitValue64` until the word is at least `value`.
    pub fn wait_value(self, stream: usize, ptr: u64, value: u64) -> Status {
        let stream = ptr::with_exposed_provenance_mut(stream);
        // SAFETY: as above; flags 0 are CU_STREAM_WAIT_VALUE_GEQ.
        to_status(unsafe { call_extra!(self, cuStreamWaitValue64_v2(stream, ptr, value, 0)) })
    }

    /// `cuEventCreate` of an event that can be shared.
    pub fn event_create(self) -> Answer<usize> {
        let mut event = ptr::null_mut();
        // SAFETY: the first argument points at a handle that lives through the call.
        let outcome = unsafe { call_extra!(self, cuEventCreate(&raw mut event, INTERPROCESS)) };
        status(outcome, event.expose_provenance())
    }

    /// `cuEventRecord`.
    pub fn event_record(self, event: usize, stream: usize) -> Status {
        let (event, stream) =
            (ptr::with_exposed_provenance_mut(event), ptr::with_exposed_provenance_mut(stream));
        // SAFETY: the experiment's caller says which event and stream.
        to_status(unsafe { call_extra!(self, cuEventRecord(event, stream)) })
    }

    /// `cuEventQuery`.
    pub fn event_query(self, event: usize) -> Status {
        // SAFETY: as above.
        to_status(unsafe { call_extra!(self, cuEventQuery(ptr::with_exposed_provenance_mut(event))) })
    }

    /// `cuEventSynchronize`.
    pub fn event_synchronize(self, event: usize) -> Status {
        // SAFETY: as above.
        to_status(unsafe { call_extra!(self, cuEventSynchronize(ptr::with_exposed_provenance_mut(event))) })
    }

    /// `cuEventDestroy`.
    pub fn event_destroy(self, event: usize) -> Status {
        // SAFETY: as above.
        to_status(unsafe { call_extra!(self, cuEventDestroy_v2(ptr::with_exposed_provenance_mut(event))) })
    }
}
