//! What takes how long, measured inside the puppet so that no message is counted.

use std::time::Instant;

use gpu_handoff_cuda::raw::{Answer, Raw};
use gpu_handoff_cuda::{Access, LegacyHandle, Status};

use super::super::wire::Timed;
use super::{Puppet, done, sixty_four, size};

/// Size of the allocation that is kept exported, in bytes.
const SENTINEL_BYTES: usize = 2 << 20;

fn ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Median of `rounds` measurements of one step, in nanoseconds.
pub(super) fn median_ns(puppet: &Puppet, what: Timed, rounds: usize, fd: i32, handle: &[u8]) -> Answer<u64> {
    let (raw, device) = (puppet.raw, puppet.device);
    let handle = LegacyHandle::from_bytes(sixty_four(handle));
    let _sentinel = match what {
        Timed::Export { sentinel: true, .. } | Timed::CloseExported { sentinel: true, .. } => {
            let memory = raw.create(device, SENTINEL_BYTES, true)?;
            let exported = raw.export(memory)?;
            raw.release(memory);
            Some(exported)
        }
        _ => None,
    };
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        samples.push(match what {
            Timed::Export { bytes, .. } => export(raw, device, bytes)?.0,
            Timed::CloseExported { bytes, .. } => export(raw, device, bytes)?.1,
            Timed::Import => {
                let start = Instant::now();
                let memory = raw.import(fd)?;
                let taken = ns(start);
                raw.release(memory);
                taken
            }
            Timed::MapAndAllow { bytes } => map(raw, device, fd, size(bytes))?,
            Timed::IpcGet { ptr } => {
                let start = Instant::now();
                raw.ipc_get(ptr)?;
                ns(start)
            }
            Timed::IpcOpen => open_close(raw, &handle)?.0,
            Timed::IpcClose => open_close(raw, &handle)?.1,
            Timed::Init => {
                let start = Instant::now();
                done(raw.init())?;
                ns(start)
            }
        });
    }
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().ok_or(Status::INVALID_VALUE)
}

/// Time of exporting fresh memory and of closing the descriptor.
fn export(raw: Raw, device: i32, bytes: u64) -> Answer<(u64, u64)> {
    let memory = raw.create(device, size(bytes), true)?;
    let start = Instant::now();
    let exported = raw.export(memory)?;
    let to_export = ns(start);
    let start = Instant::now();
    drop(exported);
    let to_close = ns(start);
    raw.release(memory);
    Ok((to_export, to_close))
}

fn map(raw: Raw, device: i32, fd: i32, bytes: usize) -> Answer<u64> {
    let memory = raw.import(fd)?;
    let start = Instant::now();
    let ptr = raw.reserve(bytes)?;
    done(raw.map(ptr, bytes, 0, memory))?;
    done(raw.set_access(ptr, bytes, device, Access::ReadWrite))?;
    let taken = ns(start);
    raw.unmap(ptr, bytes);
    raw.address_free(ptr, bytes);
    raw.release(memory);
    Ok(taken)
}

fn open_close(raw: Raw, handle: &LegacyHandle) -> Answer<(u64, u64)> {
    let start = Instant::now();
    let ptr = raw.ipc_open(handle, 1)?;
    let to_open = ns(start);
    let start = Instant::now();
    done(raw.ipc_close(ptr))?;
    Ok((to_open, ns(start)))
}

/// One side of a ping-pong through a 64-bit word, all on a stream: nanoseconds a round.
pub(super) fn ping_pong(raw: Raw, ptr: u64, rounds: u64, leads: bool) -> Answer<u64> {
    let stream = raw.stream_create()?;
    let start = Instant::now();
    for round in 0..rounds {
        let (odd, even) = (2 * round + 1, 2 * round + 2);
        if leads {
            done(raw.write_value(stream, ptr, odd))?;
            done(raw.wait_value(stream, ptr, even))?;
        } else {
            done(raw.wait_value(stream, ptr, odd))?;
            done(raw.write_value(stream, ptr, even))?;
        }
    }
    done(raw.stream_synchronize(stream))?;
    let taken = ns(start) / rounds.max(1);
    raw.stream_destroy(stream);
    Ok(taken)
}
