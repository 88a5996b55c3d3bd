//! Events.

use std::sync::Arc;

use super::{Out, calls, with_context};
use crate::driver::driver;
use crate::error::Result;
use crate::event::Event;
use crate::measured;
use crate::process::is_alive;

fn find(handle: usize) -> Result<Arc<Event>> {
    let (driver, _) = with_context()?;
    driver.state().events.get(&handle).cloned().ok_or(measured::UNKNOWN_HANDLE)
}

/// Whether a process of this machine lives.
pub(super) fn lives(client: u32) -> bool {
    driver().is_ok_and(|driver| is_alive(&driver.store, client))
}

fn milliseconds(out: Out<f32>, start: usize, end: usize) -> Result<()> {
    out.set(find(start)?.milliseconds_to(&*find(end)?)?)
}

calls! {
    fn cuEventCreate(event: Out<usize>, flags: u32) {
        let (driver, gpu) = with_context()?;
        let out = event.check()?;
        let made = Arc::new(Event::new(gpu, flags)?);
        let number = driver.next_handle();
        driver.state().events.insert(number, made);
        out.set(number)
    }

    fn cuEventRecord(event: usize, stream: usize) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: usize, stream: usize, _flags: u32) {
        record(event, stream)
    }

    fn cuEventQuery(event: usize) {
        find(event)?.query(lives)
    }

    fn cuEventSynchronize(event: usize) {
        let event = find(event)?;
        event.wait(event.last_asked(), lives)
    }

    fn cuEventDestroy_v2(event: usize) {
        let (driver, _) = with_context()?;
        driver.state().events.remove(&event).map(drop).ok_or(measured::UNKNOWN_HANDLE)
    }

    fn cuEventElapsedTime(milliseconds_out: Out<f32>, start: usize, end: usize) {
        milliseconds(milliseconds_out, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds_out: Out<f32>, start: usize, end: usize) {
        milliseconds(milliseconds_out, start, end)
    }
}

fn record(event: usize, stream: usize) -> Result<()> {
    let (driver, gpu) = with_context()?;
    let event = find(event)?;
    driver.streams.get(stream, gpu)?;
    let number = event.ask(driver.process.client);
    driver.streams.submit(
        stream,
        gpu,
        Box::new(move || {
            event.reach(number);
            Ok(())
        }),
    )
}
