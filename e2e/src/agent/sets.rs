//! Sets of small buffers, each of which holds its index.

use std::sync::Arc;

use gpu_handoff_client::{Buffer, Client, LeaseSet, PublishedSet};
use gpu_handoff_cuda::{Driver, ops};

use super::MemoryKind;
use super::memory::Memory;
use super::order::{Outcome, SMALL};

/// Publishes a set, and gives the memory that its buffers are; the one of the index `bad` cannot be published.
pub(super) fn publish(
    client: &Client,
    name: &str,
    count: usize,
    bad: Option<usize>,
) -> anyhow::Result<(PublishedSet, Vec<Memory>)> {
    let mut pieces = Vec::with_capacity(count);
    for index in 0..count {
        let piece = Memory::create(MemoryKind::Vmm, SMALL)?;
        piece.fill(u32::try_from(index)?)?;
        pieces.push(piece);
    }
    let names: Vec<String> = (0..count).map(|index| format!("layer-{index}")).collect();
    let buffers = pieces.iter().zip(&names).enumerate().map(|(index, (piece, name))| {
        if bad == Some(index) {
            // Larger than its memory: the node refuses it.
            return Ok(Buffer::named(name)?.exported(Arc::new(piece.exported_as(SMALL << 20)?)));
        }
        piece.as_buffer(name)
    });
    let buffers: Vec<Buffer<'_>> = buffers.collect::<anyhow::Result<_>>()?;
    let set = client.publish_set(name, buffers)?;
    Ok((set, pieces))
}

/// Looks whether each buffer holds its index, and is found by its name.
pub(super) fn verify(driver: Driver, set: &LeaseSet) -> anyhow::Result<Outcome> {
    let (mut right, mut wrong) = (0, 0);
    for (index, lease) in set.leases().iter().enumerate() {
        let mut word = [0; 4];
        ops::read(driver, lease.ptr(), &mut word)?;
        let named = set.get(&format!("layer-{index}")).is_some_and(|found| found.id() == lease.id());
        if named && u32::from_ne_bytes(word) == u32::try_from(index)? { right += 1 } else { wrong += 1 }
    }
    Ok(Outcome::Looked { right, wrong })
}
