//! Simulated memory coming back. What is looked for is told apart by its size.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use gpu_handoff_simcuda::dump::{Allocation, Dump};

use crate::agent::now_ns;
use crate::wait;

/// How long memory may take to come back before that is a fault.
const PATIENCE: Duration = Duration::from_secs(10);

/// The allocations of a size.
pub(super) fn of_size(device: &Path, bytes: u64) -> anyhow::Result<Vec<Allocation>> {
    let dump = Dump::read(device).context("look at the simulated memory")?;
    Ok(dump.allocations.into_iter().filter(|allocation| allocation.bytes == bytes).collect())
}

/// Waits until no memory of a size is in use, and gives the milliseconds since `since_ns`.
pub(super) fn back_ms(device: &Path, bytes: u64, since_ns: u64) -> anyhow::Result<f64> {
    wait::until(PATIENCE, &format!("the memory of {bytes} bytes is free"), || {
        // Who holds it is not asked: that would take longer than what is measured.
        let dump = Dump::read_without_holders(device).context("look at the simulated memory")?;
        let free = dump.allocations.iter().all(|allocation| allocation.bytes != bytes);
        Ok(free.then(|| ms(since_ns, now_ns())))
    })
}

/// Milliseconds between two moments.
pub(super) fn ms(from_ns: u64, to_ns: u64) -> f64 {
    Duration::from_nanos(to_ns.saturating_sub(from_ns)).as_secs_f64() * 1e3
}
