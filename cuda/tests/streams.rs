//! Streams, timeline words and host functions against the simulated driver.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
mod common;

use std::sync::mpsc::channel;
use std::time::Duration;

use common::{first, run, say};
use gpu_handoff_cuda::{
    Access, Device, Driver, Status, Stream, VmmAllocation, VmmMapping, call_on, ops, status, stream,
};

/// Longest wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Words of a mapping, all 0.
fn words(driver: Driver, device: Device) -> VmmMapping {
    let mapping = VmmAllocation::create(driver, device, 1).unwrap().map(Access::ReadWrite, device).unwrap();
    ops::memset_d32(driver, mapping.ptr(), 0, mapping.bytes() / 4).unwrap();
    ops::synchronize(driver).unwrap();
    mapping
}

#[test]
fn a_stream_waits_for_a_word_and_comes_to_a_function() {
    let Some(lines) = run("role_order") else { return };
    assert_eq!(lines, ["drop errors 0"]);
}

#[test]
#[ignore = "started by another test"]
fn role_order() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let memory = words(driver, device);
        let (ready, done) = (memory.ptr(), memory.ptr() + 8);
        let (theirs, ours) = (Stream::create(driver).unwrap(), Stream::create(driver).unwrap());
        let (theirs, ours) = (theirs.stream(), ours.stream());
        assert!(!stream::is_capturing(driver, theirs).unwrap());

        let (send, called) = channel();
        ops::wait_at_least(driver, theirs, ready, 3).unwrap();
        call_on(driver, theirs, move || send.send(()).unwrap()).unwrap();
        ops::signal(driver, theirs, done, 1).unwrap();
        for below in [1, 2, u64::MAX, (1 << 63) | 3] {
            ops::signal(driver, ours, ready, below).unwrap();
            assert_eq!(ops::load(driver, ours, ready).unwrap(), below, "while the other stream waits");
            assert!(!stream::is_idle(driver, theirs).unwrap(), "{below} is less than 3, cyclically");
            assert_eq!(ops::load(driver, ours, done).unwrap(), 0);
            assert!(called.try_recv().is_err());
        }
        ops::signal(driver, ours, ready, 3).unwrap();
        called.recv_timeout(PATIENCE).unwrap();
        stream::synchronize(driver, theirs).unwrap();
        assert!(stream::is_idle(driver, theirs).unwrap());
        assert_eq!(ops::load(driver, ours, done).unwrap(), 1);

        // A value far above all others sets every waiter free, whatever it waits for below that.
        ops::wait_at_least(driver, theirs, ready, (1 << 62) - 1).unwrap();
        ops::signal(driver, ours, ready, 1 << 62).unwrap();
        stream::synchronize(driver, theirs).unwrap();
        assert_eq!(*ops::load_all(driver, ours, ready, 2).unwrap(), [1 << 62, 1], "both words in one copy");
        assert_eq!(
            ops::signal(driver, ours, ready + 4, 1).map_err(|error| error.status),
            Err(Status::INVALID_VALUE)
        );
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
fn work_of_a_stream_outlives_the_stream() {
    let Some(lines) = run("role_dropped_stream") else { return };
    assert_eq!(lines, ["drop errors 0"]);
}

#[test]
#[ignore = "started by another test"]
fn role_dropped_stream() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let memory = words(driver, device);
        let (ours, theirs) = (Stream::create(driver).unwrap(), Stream::create(driver).unwrap());
        let (send, called) = channel();
        ops::wait_at_least(driver, theirs.stream(), memory.ptr(), 1).unwrap();
        call_on(driver, theirs.stream(), move || send.send(()).unwrap()).unwrap();
        drop(theirs);
        assert!(called.try_recv().is_err());
        ops::signal(driver, ours.stream(), memory.ptr(), 1).unwrap();
        called.recv_timeout(PATIENCE).unwrap();
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
fn a_function_that_calls_the_driver_or_panics_harms_nobody() {
    let Some(lines) = run("role_bad_functions") else { return };
    assert_eq!(lines, ["CUDA_ERROR_NOT_PERMITTED (800)", "drop errors 1"]);
}

#[test]
#[ignore = "started by another test"]
fn role_bad_functions() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let stream = Stream::create(driver).unwrap();
        let (send, answer) = channel();
        call_on(driver, stream.stream(), move || send.send(ops::synchronize(driver)).unwrap()).unwrap();
        say(answer.recv_timeout(PATIENCE).unwrap().unwrap_err().status);
        call_on(driver, stream.stream(), || std::panic::resume_unwind(Box::new(()))).unwrap();
        stream::synchronize(driver, stream.stream()).unwrap();
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}
