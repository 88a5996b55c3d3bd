//! Streams, timeline words, events and host functions.

use std::sync::atomic::{AtomicU64, Ordering};

use gpu_handoff_cuda::raw::Answer;
use gpu_handoff_cuda::{Driver, Status, Stream, ops};

use super::super::wire::Request;
use super::{Given, Puppet, done, size, timed};

/// Host functions that streams came to, and what the driver answered to the last one that asked it something.
static CALLED: AtomicU64 = AtomicU64::new(0);
static ANSWERED: AtomicU64 = AtomicU64::new(0);

impl Puppet {
    pub(super) fn streams(&mut self, request: Request) -> Answer<Given> {
        let raw = self.raw;
        match request {
            Request::StreamCreate => raw.stream_create().map(|stream| (stream as u64).into()),
            Request::WriteValue { stream, ptr, value } => done(raw.write_value(size(stream), ptr, value)),
            Request::WaitValue { stream, ptr, value } => done(raw.wait_value(size(stream), ptr, value)),
            Request::StreamSynchronize { stream } => done(raw.stream_synchronize(size(stream))),
            Request::StreamQuery { stream } => done(raw.stream_query(size(stream))),
            Request::StreamDestroy { stream } => done(raw.stream_destroy(size(stream))),
            Request::EventRecord { stream } => {
                let event = raw.event_create()?;
                done(raw.event_record(event, size(stream)))?;
                Ok((event as u64).into())
            }
            Request::EventQuery { event } => done(raw.event_query(size(event))),
            Request::Load { ptr } => load(ptr).map(Given::from),
            Request::HostFunction { stream, calls_driver } => {
                let function = move || {
                    if calls_driver {
                        ANSWERED.store(raw.synchronize().0.into(), Ordering::SeqCst);
                    }
                    CALLED.fetch_add(1, Ordering::SeqCst);
                };
                done(raw.call_on(size(stream), function))
            }
            Request::HostFunctionSaid => {
                Ok((CALLED.load(Ordering::SeqCst), ANSWERED.load(Ordering::SeqCst)).into())
            }
            Request::PingPong { ptr, rounds, leads } => {
                timed::ping_pong(raw, ptr, rounds, leads).map(Given::from)
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}

/// A word as a stream of its own reads it.
fn load(ptr: u64) -> Answer<u64> {
    let driver = Driver::load().map_err(|_| Status::NOT_INITIALIZED)?;
    let read = Stream::create(driver).and_then(|stream| ops::load(driver, stream.stream(), ptr));
    read.map_err(|error| error.status)
}
