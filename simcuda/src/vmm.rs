//! Virtual memory management: physical memory by generic handle, descriptors of it, and mappings into address ranges.
//!
//! None of it needs a context (sharing 4).

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::abi::{self, AccessDesc, AllocationProp, MemLocation};
use crate::address_space::{Origin, Region};
use crate::config::GPUS_MAX;
use crate::device::OutOfReach;
use crate::driver::Driver;
use crate::error::{CuResult, Result};
use crate::faults::crash;
use crate::header::{BLOCK_BYTES, Header, Kind};
use crate::measured;
use crate::physical::Physical;

/// Generic allocation handles of this process.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    handles: HashMap<u64, Handle>,
}

#[derive(Debug)]
struct Handle {
    memory: Arc<Physical>,
    holders: u32,
}

impl Handles {
    fn add(&mut self, number: u64, memory: Arc<Physical>) -> u64 {
        self.handles.insert(number, Handle { memory, holders: 1 });
        number
    }
}

impl Driver {
    /// The memory of a handle; the program ends here if there is none, unless the handle is 0: the driver follows it.
    fn memory_of(&self, number: u64) -> Result<Arc<Physical>> {
        let known = self.state().handles.handles.get(&number).map(|handle| Arc::clone(&handle.memory));
        match known {
            Some(memory) => Ok(memory),
            None if number == 0 => Err(measured::VMM_UNKNOWN_HANDLE),
            None => crash(),
        }
    }

    /// `cuMemCreate`.
    pub(crate) fn vmm_create(&self, bytes: u64, prop: &AllocationProp, flags: u64) -> Result<u64> {
        let gpu = self.vmm_gpu(prop)?;
        if flags != 0 {
            return Err(measured::VMM_CREATE_PROPERTY);
        }
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(measured::VMM_CREATE_SIZE);
        }
        let header = self.new_header(Kind::Vmm, gpu, bytes, prop.handle_types);
        let memory = Physical::create(&self.store, header)?;
        Ok(self.state().handles.add(self.next_id(), memory))
    }

    /// The GPU that properties ask for, after checking all of them.
    pub(crate) fn vmm_gpu(&self, prop: &AllocationProp) -> Result<usize> {
        if prop.kind != abi::ALLOCATION_TYPE_PINNED || prop.location.kind != abi::LOCATION_TYPE_DEVICE {
            return Err(measured::VMM_CREATE_PROPERTY);
        }
        if !matches!(prop.handle_types, abi::HANDLE_TYPE_NONE | abi::HANDLE_TYPE_POSIX_FD) {
            return Err(measured::VMM_HANDLE_TYPE);
        }
        self.devices.gpu(prop.location.id).map_err(|_| measured::VMM_CREATE_DEVICE)
    }

    /// `cuMemRelease`.
    pub(crate) fn vmm_release(&self, number: u64) -> Result<()> {
        let mut state = self.state();
        let handle = state.handles.handles.get_mut(&number).ok_or(measured::VMM_UNKNOWN_HANDLE)?;
        handle.holders -= 1;
        if handle.holders == 0 {
            state.handles.handles.remove(&number);
        }
        Ok(())
    }

    /// `cuMemRetainAllocationHandle`: the handle of the mapping at an address, also after its release.
    pub(crate) fn vmm_retain(&self, address: u64) -> Result<u64> {
        let mut state = self.state();
        let region = state.space.find(address).ok_or(measured::VMM_RETAIN_UNKNOWN)?;
        let Origin::Mapped { handle: number } = region.origin else {
            return Err(measured::VMM_RETAIN_UNKNOWN);
        };
        let memory = Arc::clone(region.view.physical());
        if let Some(handle) = state.handles.handles.get_mut(&number) {
            handle.holders += 1;
            return Ok(number);
        }
        Ok(state.handles.add(number, memory))
    }

    /// `cuMemExportToShareableHandle`: every export is a description of its own.
    pub(crate) fn vmm_export(&self, number: u64, handle_type: u32) -> Result<OwnedFd> {
        let memory = self.memory_of(number)?;
        if handle_type != abi::HANDLE_TYPE_POSIX_FD {
            return Err(measured::VMM_HANDLE_TYPE);
        }
        if memory.handle_types() & handle_type == 0 {
            return Err(measured::VMM_EXPORT_NOT_EXPORTABLE);
        }
        memory.reopen()
    }

    /// `cuMemImportFromShareableHandle`; the descriptor stays the caller's.
    pub(crate) fn vmm_import(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let (own, header) = self.store.identify(fd).ok_or(measured::VMM_IMPORT_FOREIGN)?;
        if header.kind != Kind::Vmm {
            return Err(measured::VMM_IMPORT_OTHER_KIND);
        }
        self.devices.reach(self.store.dir(), header.device).map_err(|why| match why {
            OutOfReach::Node => measured::VMM_IMPORT_NO_NODE,
            OutOfReach::Instance => measured::VMM_IMPORT_OTHER_INSTANCE,
        })?;
        let memory = Physical::adopt(&self.store, own, header)?;
        Ok(self.state().handles.add(self.next_id(), memory))
    }

    /// `cuMemGetAllocationPropertiesFromHandle`.
    pub(crate) fn vmm_properties(&self, number: u64) -> Result<AllocationProp> {
        let memory = self.memory_of(number)?;
        Ok(AllocationProp {
            kind: abi::ALLOCATION_TYPE_PINNED,
            handle_types: memory.handle_types(),
            location: MemLocation {
                kind: abi::LOCATION_TYPE_DEVICE,
                id: self.devices.ordinal(memory.header().device),
            },
            win32: std::ptr::null_mut(),
            alloc_flags: [0; 8],
        })
    }

    /// `cuMemAddressReserve`.
    pub(crate) fn reserve(&self, bytes: u64, align: u64, hint: u64, flags: u64) -> Result<u64> {
        let align_known = align == 0 || align.is_power_of_two();
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) || !align_known || flags != 0 {
            return Err(measured::VMM_RESERVE_ARGUMENT);
        }
        let mut state = self.state();
        state.space.reserve(bytes, align, hint).ok_or(CuResult::ERROR_OUT_OF_MEMORY)
    }

    /// `cuMemAddressFree`.
    pub(crate) fn unreserve(&self, start: u64, bytes: u64) -> Result<()> {
        let mut state = self.state();
        if !state.space.is_reservation(start, bytes) {
            return Err(measured::VMM_FREE_UNKNOWN);
        }
        if state.space.occupied(start, bytes) {
            return Err(measured::VMM_FREE_MAPPED);
        }
        state.space.give(start);
        Ok(())
    }

    /// `cuMemMap`.
    pub(crate) fn map(&self, start: u64, bytes: u64, offset: u64, number: u64, flags: u64) -> Result<()> {
        let memory = self.memory_of(number)?;
        let mut state = self.state();
        check_extent(memory.header(), bytes, offset)?;
        if flags != 0 || !start.is_multiple_of(BLOCK_BYTES) || !state.space.inside_reservation(start, bytes) {
            return Err(measured::VMM_MAP_UNRESERVED);
        }
        if state.space.occupied(start, bytes) {
            return Err(measured::VMM_MAP_OCCUPIED);
        }
        let origin = Origin::Mapped { handle: number };
        let view = memory.view()?;
        let access = [abi::ACCESS_NONE; GPUS_MAX];
        state.space.insert(Region { start, bytes, view, offset, origin, access, id: self.next_id() });
        Ok(())
    }

    /// `cuMemUnmap`: whole mappings, as many as there are.
    pub(crate) fn unmap(&self, start: u64, bytes: u64) -> Result<()> {
        let mut state = self.state();
        for start in state.space.mappings_within(start, bytes).ok_or(measured::VMM_UNMAP_RANGE)? {
            state.space.remove(start);
        }
        Ok(())
    }

    /// `cuMemSetAccess`.
    pub(crate) fn set_access(&self, start: u64, bytes: u64, descs: &[AccessDesc]) -> Result<()> {
        let mut state = self.state();
        let starts = state.space.whole_mappings(start, bytes).ok_or(measured::VMM_ACCESS_RANGE)?;
        let mut wanted = Vec::with_capacity(descs.len());
        for desc in descs {
            let known = matches!(desc.flags, abi::ACCESS_NONE | abi::ACCESS_READ | abi::ACCESS_READ_WRITE);
            if desc.location.kind != abi::LOCATION_TYPE_DEVICE || !known {
                return Err(measured::VMM_ACCESS_ARGUMENT);
            }
            wanted.push((self.devices.gpu(desc.location.id)?, desc.flags));
        }
        for start in starts {
            let Some(region) = state.space.at(start) else { continue };
            let of = region.gpu();
            if wanted.iter().any(|&(gpu, _)| gpu != of && !self.devices.can_access_peer(gpu, of)) {
                return Err(measured::VMM_ACCESS_NO_PEER);
            }
            for &(gpu, flags) in &wanted {
                if let Some(access) = region.access.get_mut(gpu) {
                    *access = flags;
                }
            }
        }
        Ok(())
    }

    /// `cuMemGetAccess`.
    pub(crate) fn get_access(&self, location: &MemLocation, address: u64) -> Result<u32> {
        if location.kind != abi::LOCATION_TYPE_DEVICE {
            return Err(measured::VMM_ACCESS_ARGUMENT);
        }
        let gpu = self.devices.gpu(location.id)?;
        let state = self.state();
        let region = state.space.find(address).ok_or(measured::VMM_ACCESS_RANGE)?;
        Ok(region.access.get(gpu).copied().unwrap_or(abi::ACCESS_NONE))
    }
}

/// The driver maps memory whole or not at all.
fn check_extent(header: &Header, bytes: u64, offset: u64) -> Result<()> {
    if bytes == 0 {
        return Err(measured::VMM_MAP_ZERO);
    }
    if offset != 0 {
        return Err(measured::VMM_MAP_OFFSET);
    }
    match bytes.cmp(&header.bytes) {
        std::cmp::Ordering::Less => Err(measured::VMM_MAP_SMALLER),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(measured::VMM_MAP_LARGER),
    }
}
