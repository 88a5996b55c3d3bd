//! Memory pools: a descriptor for the pool, 64 bytes for each pointer.
//!
//! A pool is a memory file without memory, which its descriptors stand for; each allocation of it is a file of its own that names
//! the pool. Unlike the driver's, a pool keeps nothing back, and a pool's descriptor alone keeps no memory alive.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::abi::{self, IpcHandle, PoolProps};
use crate::address_space::{Origin, Region};
use crate::device::OutOfReach;
use crate::driver::{Driver, State};
use crate::error::{CuResult, Result};
use crate::faults::crash;
use crate::header::{BLOCK_BYTES, Kind, file_name, u32_at, u64_at};
use crate::measured;
use crate::physical::Physical;

/// One pool of this process.
#[derive(Debug)]
pub(crate) struct Pool {
    identity: Arc<Physical>,
    imported: bool,
    /// Made by the driver for a GPU, not by the program.
    default: bool,
}

impl Pool {
    pub(crate) fn gpu(&self) -> usize {
        self.identity.header().device
    }
}

impl Driver {
    /// `cuMemPoolCreate`.
    pub(crate) fn pool_create(&self, props: &PoolProps) -> Result<usize> {
        let device_memory =
            props.kind == abi::ALLOCATION_TYPE_PINNED && props.location.kind == abi::LOCATION_TYPE_DEVICE;
        let known_type = matches!(props.handle_types, abi::HANDLE_TYPE_NONE | abi::HANDLE_TYPE_POSIX_FD);
        if !device_memory || !known_type {
            return Err(measured::POOL_PROPERTY);
        }
        self.new_pool(self.devices.gpu(props.location.id)?, props.handle_types, false)
    }

    fn new_pool(&self, gpu: usize, handle_types: u32, default: bool) -> Result<usize> {
        let identity = Physical::create(&self.store, self.new_header(Kind::Pool, gpu, 0, handle_types))?;
        let handle = self.next_handle();
        self.state().pools.insert(handle, Pool { identity, imported: false, default });
        Ok(handle)
    }

    /// The pool that `cuMemAllocAsync` uses.
    pub(crate) fn default_pool(&self, gpu: usize) -> Result<usize> {
        let is_default = |pool: &Pool| pool.default && pool.gpu() == gpu;
        let known = self.state().pools.iter().find(|(_, pool)| is_default(pool)).map(|(&handle, _)| handle);
        known.map_or_else(|| self.new_pool(gpu, abi::HANDLE_TYPE_NONE, true), Ok)
    }

    /// `cuMemPoolDestroy`: what was allocated from it stays.
    pub(crate) fn pool_destroy(&self, handle: usize) -> Result<()> {
        let mut state = self.state();
        match state.pools.get(&handle) {
            Some(pool) if !pool.default => {
                state.pools.remove(&handle);
                Ok(())
            }
            _ => Err(measured::POOL_UNKNOWN),
        }
    }

    /// `cuMemPoolExportToShareableHandle`.
    pub(crate) fn pool_export(&self, handle: usize, handle_type: u32) -> Result<OwnedFd> {
        let state = self.state();
        let identity = &state.pool(handle)?.identity;
        if handle_type != abi::HANDLE_TYPE_POSIX_FD || identity.header().handle_types & handle_type == 0 {
            return Err(measured::POOL_EXPORT_NOT_EXPORTABLE);
        }
        identity.reopen()
    }

    /// `cuMemPoolImportFromShareableHandle`.
    pub(crate) fn pool_import(&self, fd: BorrowedFd<'_>, handle_type: u32) -> Result<usize> {
        let (own, header) = self.store.identify(fd).ok_or(measured::POOL_IMPORT_FOREIGN)?;
        if header.kind != Kind::Pool || handle_type != abi::HANDLE_TYPE_POSIX_FD {
            return Err(measured::POOL_IMPORT_OTHER_KIND);
        }
        self.devices.reach(self.store.dir(), header.device).map_err(|why| match why {
            // As the driver does (sharing 7).
            OutOfReach::Node => crash(),
            OutOfReach::Instance => measured::POOL_IMPORT_OTHER_INSTANCE,
        })?;
        let identity = Physical::adopt(&self.store, own, header)?;
        let handle = self.next_handle();
        self.state().pools.insert(handle, Pool { identity, imported: true, default: false });
        Ok(handle)
    }

    /// `cuMemAllocFromPoolAsync`; the memory is there at once, which no ordering forbids.
    pub(crate) fn pool_allocate(&self, handle: usize, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Err(measured::ALLOC_ZERO);
        }
        let mut state = self.state();
        let pool = state.pool(handle)?;
        if pool.imported {
            return Err(measured::POOL_ALLOC_IMPORTED);
        }
        let identity = *pool.identity.header();
        let room = bytes.checked_next_multiple_of(BLOCK_BYTES).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let mut header = self.new_header(Kind::PoolMemory, identity.device, room, identity.handle_types);
        header.pool = (identity.client, identity.object);
        let memory = Physical::create(&self.store, header)?;
        self.add_pooled(&mut state, &memory, bytes, Origin::Pooled { pool: handle, imported: false })
    }

    fn add_pooled(
        &self,
        state: &mut State,
        memory: &Arc<Physical>,
        bytes: u64,
        origin: Origin,
    ) -> Result<u64> {
        let view = memory.view()?;
        let start = state.space.take(memory.header().bytes).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        state.space.insert(Region::open(start, bytes, view, 0, origin, self.next_id()));
        Ok(start)
    }

    /// `cuMemPoolExportPointer`.
    pub(crate) fn pool_export_pointer(&self, address: u64) -> Result<IpcHandle> {
        let mut state = self.state();
        let region = state.space.at(address).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let Origin::Pooled { imported: false, .. } = region.origin else {
            return Err(CuResult::ERROR_INVALID_VALUE);
        };
        let header = region.view.physical().header();
        let words = [header.client, header.object, header.pool.0, header.pool.1];
        let mut raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        raw.extend_from_slice(&region.bytes.to_le_bytes());
        raw.resize(64, 0);
        raw.try_into().map(|bytes| IpcHandle { bytes }).map_err(|_| CuResult::ERROR_UNKNOWN)
    }

    /// `cuMemPoolImportPointer`.
    pub(crate) fn pool_import_pointer(&self, handle: usize, data: &IpcHandle) -> Result<u64> {
        let word = |at| u32_at(&data.bytes, at).unwrap_or(0);
        let bytes = u64_at(&data.bytes, 16).unwrap_or(0);
        let mut state = self.state();
        let identity = *state.pool(handle)?.identity.header();
        let name = file_name(word(0), word(4));
        let (fd, header) = self.store.open(&name).ok_or(measured::POOL_IMPORT_POINTER)?;
        let of_pool = header.kind == Kind::PoolMemory && header.pool == (identity.client, identity.object);
        if !of_pool || bytes == 0 || bytes > header.bytes {
            return Err(measured::POOL_IMPORT_POINTER);
        }
        let memory = Physical::adopt(&self.store, fd, header)?;
        self.add_pooled(&mut state, &memory, bytes, Origin::Pooled { pool: handle, imported: true })
    }

    /// `cuMemFreeAsync`: the address is gone at once, the memory when the stream comes to it.
    pub(crate) fn free_async(&self, address: u64, stream: usize, gpu: usize) -> Result<()> {
        let region = self.state().space.at(address).cloned().ok_or(measured::FREE_UNKNOWN)?;
        self.free(address)?;
        self.streams.submit(
            stream,
            gpu,
            Box::new(move || {
                drop(region);
                Ok(())
            }),
        )
    }
}

impl State {
    pub(crate) fn pool(&self, handle: usize) -> Result<&Pool> {
        self.pools.get(&handle).ok_or(measured::POOL_UNKNOWN)
    }

    /// Bytes that live allocations of a pool have in this process.
    pub(crate) fn pool_used(&self, handle: usize) -> u64 {
        let of_pool =
            |region: &&Region| matches!(region.origin, Origin::Pooled { pool, .. } if pool == handle);
        self.space.regions().filter(of_pool).map(|region| region.bytes).sum()
    }

    pub(crate) fn free_pooled(&mut self, address: u64) -> Result<()> {
        let region = self.space.remove(address).ok_or(measured::FREE_UNKNOWN)?;
        self.space.give(region.start);
        Ok(())
    }
}
