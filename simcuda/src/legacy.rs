//! `cuMemAlloc` memory: blocks of 2 MiB shared by small allocations, and blocks of their own for large ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::address_space::{Origin, Region};
use crate::driver::{Driver, State};
use crate::error::{CuResult, Result};
use crate::header::{BLOCK_BYTES, ExportSlot, Kind, SUBALLOCATION_ALIGN};
use crate::measured;
use crate::physical::{Physical, View};

/// The blocks of this process, by object number.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    blocks: BTreeMap<u32, Block>,
}

/// One physical allocation and what is free in it.
#[derive(Debug)]
struct Block {
    base: u64,
    view: Arc<View>,
    free: FreeList,
    live: usize,
}

/// Free parts of a block, as offset and length, sorted; none in a block of one large allocation.
#[derive(Debug, Default)]
struct FreeList {
    parts: Vec<(u64, u64)>,
}

impl Block {
    fn gpu(&self) -> usize {
        self.view.physical().header().device
    }
}

impl FreeList {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let part = self.parts.iter_mut().find(|(_, length)| *length >= bytes)?;
        let offset = part.0;
        part.0 += bytes;
        part.1 -= bytes;
        self.parts.retain(|(_, length)| *length > 0);
        Some(offset)
    }

    fn give(&mut self, offset: u64, bytes: u64) {
        let at = self.parts.partition_point(|(start, _)| *start < offset);
        self.parts.insert(at, (offset, bytes));
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.parts.len());
        for &(start, length) in &self.parts {
            match merged.last_mut() {
                Some(last) if last.0 + last.1 == start => last.1 += length,
                _ => merged.push((start, length)),
            }
        }
        self.parts = merged;
    }
}

impl Driver {
    /// `cuMemAlloc`.
    pub(crate) fn allocate(&self, gpu: usize, bytes: u64) -> Result<u64> {
        let room =
            bytes.checked_next_multiple_of(SUBALLOCATION_ALIGN).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        if bytes == 0 {
            return Err(measured::ALLOC_ZERO);
        }
        let mut state = self.state();
        let (object, offset) = match state.blocks.take_small(gpu, room) {
            Some(place) => place,
            None => (self.new_block(&mut state, gpu, room)?, 0),
        };
        let block = state.blocks.blocks.get(&object).ok_or(CuResult::ERROR_UNKNOWN)?;
        let origin = Origin::Allocated { generation: self.next_generation(), exported: false };
        let start = block.base + offset;
        let region = Region::open(start, bytes, Arc::clone(&block.view), offset, origin, self.next_id());
        state.space.insert(region);
        Ok(start)
    }

    /// Makes a block and takes its first `room` bytes.
    fn new_block(&self, state: &mut State, gpu: usize, room: u64) -> Result<u32> {
        let bytes = room.checked_next_multiple_of(BLOCK_BYTES).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let header = self.new_header(Kind::Legacy, gpu, bytes, 0);
        let view = Physical::create(&self.store, header)?.view()?;
        let base = state.space.take(bytes).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let mut free = FreeList::default();
        if room < BLOCK_BYTES {
            free.give(room, BLOCK_BYTES - room);
        }
        state.blocks.blocks.insert(header.object, Block { base, view, free, live: 1 });
        Ok(header.object)
    }

    /// `cuMemFree`, which takes 0 too.
    pub(crate) fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let mut state = self.state();
        let region = state.space.at(address).ok_or(measured::FREE_UNKNOWN)?;
        match region.origin {
            Origin::Allocated { .. } => state.free_allocated(address),
            Origin::Pooled { .. } => state.free_pooled(address),
            Origin::Imported { .. } | Origin::Mapped { .. } => Err(measured::FREE_UNKNOWN),
        }
    }
}

impl State {
    fn free_allocated(&mut self, address: u64) -> Result<()> {
        let region = self.space.remove(address).ok_or(measured::FREE_UNKNOWN)?;
        let header = *region.view.physical().header();
        let block = self.blocks.blocks.get_mut(&header.object).ok_or(CuResult::ERROR_UNKNOWN)?;
        block.live -= 1;
        if let Origin::Allocated { exported: true, generation } = region.origin {
            // An importer may still map these bytes, so they are not given to anybody else while the block lives.
            let slot = ExportSlot { offset: region.offset, bytes: region.bytes, generation, open: false };
            region.view.physical().set_export(&slot)?;
        } else if header.bytes == BLOCK_BYTES {
            block.free.give(region.offset, region.bytes.next_multiple_of(SUBALLOCATION_ALIGN));
        }
        if block.live == 0 {
            let base = block.base;
            self.blocks.blocks.remove(&header.object);
            self.space.give(base);
        }
        Ok(())
    }

    /// Frees what a GPU's context allocated, imported or took from pools.
    pub(crate) fn drop_legacy(&mut self, gpu: usize) {
        let owned = |region: &&Region| match region.origin {
            Origin::Imported { gpu: of_context, .. } => of_context == gpu,
            Origin::Mapped { .. } => false,
            Origin::Allocated { .. } | Origin::Pooled { .. } => region.gpu() == gpu,
        };
        let starts: Vec<_> =
            self.space.regions().filter(owned).map(|region| (region.start, region.origin)).collect();
        for (start, origin) in starts {
            // Each start was just found, so these cannot fail but for a full disk while closing an export.
            let _closed_or_gone = match origin {
                Origin::Allocated { .. } => self.free_allocated(start),
                Origin::Imported { .. } => self.drop_import(start),
                Origin::Pooled { .. } => self.free_pooled(start),
                Origin::Mapped { .. } => Ok(()),
            };
        }
    }
}

impl Blocks {
    fn take_small(&mut self, gpu: usize, room: u64) -> Option<(u32, u64)> {
        let mut of_gpu = self.blocks.iter_mut().filter(|(_, block)| block.gpu() == gpu);
        of_gpu.find_map(|(&object, block)| {
            let offset = block.free.take(room)?;
            block.live += 1;
            Some((object, offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::FreeList;

    #[test]
    fn parts_given_back_in_any_order_become_one_again() {
        let mut free = FreeList::default();
        free.give(0, 4096);
        let taken: Vec<_> = std::iter::from_fn(|| free.take(1024)).collect();
        assert_eq!(taken, [0, 1024, 2048, 3072]);
        for offset in [2048, 0, 3072, 1024] {
            free.give(offset, 1024);
        }
        assert_eq!(free.parts, [(0, 4096)]);
    }
}
