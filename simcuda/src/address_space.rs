//! The device addresses of one process: which ranges are taken, and what memory stands behind them.
//!
//! Device addresses are numbers of their own, never host addresses: a program that dereferences one crashes here as it
//! does with the real driver. Each process begins elsewhere, so an address sent to another process means nothing there.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::abi::{ACCESS_NONE, ACCESS_READ_WRITE};
use crate::config::GPUS_MAX;
use crate::error::Result;
use crate::header::{BLOCK_BYTES, Kind};
use crate::measured;
use crate::physical::{Span, View};

/// Far from anything that Linux maps for a program.
const WINDOW_START: u64 = 0x2000_0000_0000;
const WINDOW_END: u64 = 0x3000_0000_0000;
const PROCESS_STRIDE: u64 = 1 << 36;
const PROCESS_STARTS: u64 = 128;

/// What an operation wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Read,
    Write,
}

/// How a range came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemAlloc` here: object number, generation, and whether a handle was ever given out.
    Allocated { generation: u32, exported: bool },
    /// `cuIpcOpenMemHandle` in this GPU's context, opened this many times.
    Imported { gpu: usize, opens: u32 },
    /// `cuMemMap` of this generic handle.
    Mapped { handle: u64 },
    /// `cuMemAllocFromPoolAsync` or `cuMemPoolImportPointer` of this pool handle.
    Pooled { pool: usize, imported: bool },
}

/// A range of addresses with memory behind it.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) view: Arc<View>,
    /// Where in the view the range begins.
    pub(crate) offset: u64,
    pub(crate) origin: Origin,
    /// Access flags per GPU of the machine.
    pub(crate) access: [u32; GPUS_MAX],
    /// Unique in this process: `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub(crate) id: u64,
}

impl Region {
    /// A range that every GPU may read and write, as everything but a mapping is.
    pub(crate) fn open(
        start: u64,
        bytes: u64,
        view: Arc<View>,
        offset: u64,
        origin: Origin,
        id: u64,
    ) -> Self {
        Self { start, bytes, view, offset, origin, access: [ACCESS_READ_WRITE; GPUS_MAX], id }
    }

    pub(crate) const fn end(&self) -> u64 {
        self.start + self.bytes
    }

    pub(crate) fn gpu(&self) -> usize {
        self.view.physical().header().device
    }

    pub(crate) fn kind(&self) -> Kind {
        self.view.physical().header().kind
    }

    fn check(&self, gpu: usize, want: Want) -> Result<()> {
        match (self.access.get(gpu).copied().unwrap_or(ACCESS_NONE), want) {
            (ACCESS_NONE, _) => Err(measured::ACCESS_NOT_SET),
            (ACCESS_READ_WRITE, _) | (_, Want::Read) => Ok(()),
            (_, Want::Write) => Err(measured::ACCESS_READ_ONLY),
        }
    }
}

/// A taken range; only one that the program reserved itself takes mappings.
#[derive(Clone, Copy, Debug)]
struct Taken {
    bytes: u64,
    reserved: bool,
}

/// All ranges of this process.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    /// Ranges that nothing else may get.
    taken: BTreeMap<u64, Taken>,
    /// Memory, by start; ranges do not overlap.
    regions: BTreeMap<u64, Region>,
    next: u64,
}

impl AddressSpace {
    pub(crate) fn new(client: u32) -> Self {
        let next = WINDOW_START + u64::from(client) % PROCESS_STARTS * PROCESS_STRIDE;
        Self { taken: BTreeMap::new(), regions: BTreeMap::new(), next }
    }

    /// Whether an address can only be a device address.
    pub(crate) fn is_device(address: u64) -> bool {
        (WINDOW_START..WINDOW_END).contains(&address)
    }

    /// Takes a free range of addresses for memory that comes with it.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        self.take_range(bytes, BLOCK_BYTES, 0, false)
    }

    /// Takes a free range of addresses to map into; `hint` is used if it is free.
    pub(crate) fn reserve(&mut self, bytes: u64, align: u64, hint: u64) -> Option<u64> {
        self.take_range(bytes, align, hint, true)
    }

    fn take_range(&mut self, bytes: u64, align: u64, hint: u64, reserved: bool) -> Option<u64> {
        let align = align.max(BLOCK_BYTES);
        let start = if hint != 0 && hint.is_multiple_of(align) && self.is_free(hint, bytes) {
            hint
        } else {
            self.first_fit(self.next, bytes, align).or_else(|| self.first_fit(WINDOW_START, bytes, align))?
        };
        self.taken.insert(start, Taken { bytes, reserved });
        self.next = start + bytes;
        Some(start)
    }

    fn first_fit(&self, from: u64, bytes: u64, align: u64) -> Option<u64> {
        let mut start = from.checked_next_multiple_of(align)?;
        while start.checked_add(bytes)? <= WINDOW_END {
            match self.conflict(start, bytes) {
                None => return Some(start),
                Some(end) => start = end.checked_next_multiple_of(align)?,
            }
        }
        None
    }

    fn is_free(&self, start: u64, bytes: u64) -> bool {
        let inside = start >= WINDOW_START && start.checked_add(bytes).is_some_and(|end| end <= WINDOW_END);
        inside && self.conflict(start, bytes).is_none()
    }

    /// The end of the last taken range that overlaps the given one.
    fn conflict(&self, start: u64, bytes: u64) -> Option<u64> {
        let (&at, taken) = self.taken.range(..start.checked_add(bytes)?).next_back()?;
        (at + taken.bytes > start).then_some(at + taken.bytes)
    }

    /// Gives a range back.
    pub(crate) fn give(&mut self, start: u64) {
        self.taken.remove(&start);
    }

    /// Whether the program reserved exactly this range.
    pub(crate) fn is_reservation(&self, start: u64, bytes: u64) -> bool {
        self.taken.get(&start).is_some_and(|taken| taken.reserved && taken.bytes == bytes)
    }

    /// Whether a range lies in one that the program reserved.
    pub(crate) fn inside_reservation(&self, start: u64, bytes: u64) -> bool {
        let Some((&at, taken)) = self.taken.range(..=start).next_back() else { return false };
        taken.reserved && start.checked_add(bytes).is_some_and(|end| end <= at + taken.bytes)
    }

    pub(crate) fn insert(&mut self, region: Region) {
        self.regions.insert(region.start, region);
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Region> {
        self.regions.remove(&start)
    }

    /// The range that begins just here.
    pub(crate) fn at(&mut self, start: u64) -> Option<&mut Region> {
        self.regions.get_mut(&start)
    }

    /// The range that holds an address.
    pub(crate) fn find(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end()).then_some(region)
    }

    /// The range that holds an address, to change it.
    pub(crate) fn find_mut(&mut self, address: u64) -> Option<&mut Region> {
        let (_, region) = self.regions.range_mut(..=address).next_back()?;
        (address < region.end()).then_some(region)
    }

    /// Whether any memory lies in a range of addresses.
    pub(crate) fn occupied(&self, start: u64, bytes: u64) -> bool {
        self.regions
            .range(..start.saturating_add(bytes))
            .next_back()
            .is_some_and(|(_, region)| region.end() > start)
    }

    /// The starts of the mappings in a reserved range, which may have gaps; `None` if it is not reserved or cuts a mapping.
    pub(crate) fn mappings_within(&self, start: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = start.checked_add(bytes).filter(|_| bytes > 0 && self.inside_reservation(start, bytes))?;
        let cut_at_start = self.find(start).is_some_and(|region| region.start < start);
        let inside: Vec<_> = self.regions.range(start..end).map(|(&at, region)| (at, region.end())).collect();
        let cut_at_end = inside.last().is_some_and(|&(_, last)| last > end);
        (!cut_at_start && !cut_at_end).then(|| inside.into_iter().map(|(at, _)| at).collect())
    }

    /// Start and size of the reservation that a mapping is in.
    pub(crate) fn reservation_of(&self, region: &Region) -> (u64, u64) {
        let found = self.taken.range(..=region.start).next_back();
        found.map_or((region.start, region.bytes), |(&start, taken)| (start, taken.bytes))
    }

    /// The starts of the mappings that together are exactly the given range.
    pub(crate) fn whole_mappings(&self, start: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = start.checked_add(bytes)?;
        let mut starts = Vec::new();
        let mut at = start;
        while at < end {
            let region =
                self.regions.get(&at).filter(|region| matches!(region.origin, Origin::Mapped { .. }))?;
            starts.push(at);
            at = region.end();
        }
        (at == end && !starts.is_empty()).then_some(starts)
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// The memory behind a range, for an operation of a GPU. Only mappings may be crossed: allocations that happen to
    /// be neighbours are not one range.
    pub(crate) fn resolve(&self, address: u64, bytes: u64, gpu: usize, want: Want) -> Result<Vec<Span>> {
        let end = address.checked_add(bytes).ok_or(measured::COPY_OUT_OF_RANGE)?;
        let mut spans = Vec::new();
        let mut at = address;
        while at < end {
            let region = self.find(at).ok_or(measured::COPY_OUT_OF_RANGE)?;
            let mapped = matches!(region.origin, Origin::Mapped { .. });
            if !mapped && (region.end() < end || at != address) {
                return Err(measured::COPY_OUT_OF_RANGE);
            }
            region.check(gpu, want)?;
            let upto = region.end().min(end);
            let span = Span::new(&region.view, region.offset + (at - region.start), upto - at);
            spans.push(span.ok_or(measured::COPY_OUT_OF_RANGE)?);
            at = upto;
        }
        Ok(spans)
    }
}
