//! Legacy memory handles: giving one out, opening one, closing it.
//!
//! A handle is a bearer token made of predictable fields (sharing 2). Opening checks what the driver was seen to check: that the
//! PID number is not the importer's own, that the exporter lives, that the named memory was exported. It does not check who asks.

use std::os::fd::AsFd;

use crate::abi::{IPC_LAZY_ENABLE_PEER_ACCESS, IpcHandle};
use crate::address_space::{Origin, Region};
use crate::device::OutOfReach;
use crate::driver::{Driver, State};
use crate::error::{CuResult, Result};
use crate::header::{ExportSlot, Kind, file_name};
use crate::legacy_handle::{LegacyHandle, pages};
use crate::measured;
use crate::physical::Physical;
use crate::process::{is_alive, own_pid};

impl Driver {
    /// `cuIpcGetMemHandle`: the handle of the allocation that holds the address.
    pub(crate) fn ipc_get(&self, address: u64) -> Result<IpcHandle> {
        let mut state = self.state();
        let region = state.space.find_mut(address).ok_or(measured::IPC_GET_UNKNOWN)?;
        let Origin::Allocated { generation, exported } = region.origin else {
            let imported = matches!(region.origin, Origin::Imported { .. });
            return Err(if imported { measured::IPC_GET_IMPORTED } else { measured::IPC_GET_NOT_LEGACY });
        };
        let slot = ExportSlot { offset: region.offset, bytes: region.bytes, generation, open: true };
        if !exported {
            region.view.physical().set_export(&slot)?;
            region.origin = Origin::Allocated { generation, exported: true };
        }
        let header = region.view.physical().header();
        let handle = LegacyHandle {
            pid: own_pid(),
            bytes: slot.bytes,
            pages: pages(slot.bytes),
            offset: u32::try_from(slot.offset).map_err(|_| CuResult::ERROR_UNKNOWN)?,
            generation,
            gpu: u16::try_from(header.device).map_err(|_| CuResult::ERROR_UNKNOWN)?,
            client: header.client,
            object: header.object,
        };
        Ok(handle.encode())
    }

    /// `cuIpcOpenMemHandle` in a GPU's context. A handle that is open already gives the same address again.
    pub(crate) fn ipc_open(&self, handle: &IpcHandle, flags: u32, gpu: usize) -> Result<u64> {
        if flags != IPC_LAZY_ENABLE_PEER_ACCESS {
            return Err(measured::IPC_OPEN_FLAGS);
        }
        if LegacyHandle::pid(handle) == own_pid() {
            return Err(measured::IPC_OPEN_SAME_PID);
        }
        let wanted = LegacyHandle::decode(handle).ok_or(measured::IPC_OPEN_UNKNOWN)?;
        let mut state = self.state();
        if let Some(start) = state.reopen_import(&wanted) {
            return Ok(start);
        }
        let (memory, bytes) = self.exported_memory(&wanted)?;
        let of = memory.header().device;
        self.devices.reach(self.store.dir(), of).map_err(|why| match why {
            OutOfReach::Node => measured::IPC_OPEN_NO_NODE,
            OutOfReach::Instance => measured::IPC_OPEN_OTHER_INSTANCE,
        })?;
        if of != gpu && !self.devices.can_access_peer(gpu, of) {
            return Err(measured::IPC_OPEN_NO_PEER);
        }
        let view = memory.view()?;
        let base = state.space.take(memory.header().bytes).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let offset = u64::from(wanted.offset);
        let origin = Origin::Imported { gpu, opens: 1 };
        state.space.insert(Region::open(base + offset, bytes, view, offset, origin, self.next_id()));
        Ok(base + offset)
    }

    /// The memory that a handle names and how many bytes of it, if its maker lives and gave out a handle for just this part.
    fn exported_memory(&self, wanted: &LegacyHandle) -> Result<(std::sync::Arc<Physical>, u64)> {
        if !is_alive(&self.store, wanted.client) {
            return Err(measured::IPC_OPEN_EXPORTER_DEAD);
        }
        let name = file_name(wanted.client, wanted.object);
        let (fd, header) = self.store.open(&name).ok_or(measured::IPC_OPEN_UNKNOWN)?;
        if header.kind != Kind::Legacy || header.device != usize::from(wanted.gpu) {
            return Err(measured::IPC_OPEN_UNKNOWN);
        }
        let slot =
            ExportSlot::read(fd.as_fd(), u64::from(wanted.offset)).ok_or(measured::IPC_OPEN_UNKNOWN)?;
        if pages(slot.bytes) != wanted.pages || slot.bytes >> 32 != wanted.bytes >> 32 {
            return Err(measured::IPC_OPEN_UNKNOWN);
        }
        if !slot.open {
            return Err(measured::IPC_OPEN_FREED);
        }
        Ok((Physical::adopt(&self.store, fd, header)?, slot.bytes))
    }

    /// `cuIpcCloseMemHandle`.
    pub(crate) fn ipc_close(&self, address: u64) -> Result<()> {
        let mut state = self.state();
        let region = state.space.at(address).ok_or(measured::IPC_CLOSE_UNKNOWN)?;
        match &mut region.origin {
            Origin::Imported { opens, .. } if *opens > 1 => {
                *opens -= 1;
                Ok(())
            }
            Origin::Imported { .. } => state.drop_import(address),
            _ => Err(measured::IPC_CLOSE_UNKNOWN),
        }
    }
}

impl State {
    fn reopen_import(&mut self, wanted: &LegacyHandle) -> Option<u64> {
        let same = |region: &&Region| {
            let header = region.view.physical().header();
            matches!(region.origin, Origin::Imported { .. })
                && (header.client, header.object) == (wanted.client, wanted.object)
                && region.offset == u64::from(wanted.offset)
        };
        let start = self.space.regions().find(same)?.start;
        if let Some(Region { origin: Origin::Imported { opens, .. }, .. }) = self.space.at(start) {
            *opens += 1;
        }
        Some(start)
    }

    pub(crate) fn drop_import(&mut self, start: u64) -> Result<()> {
        let region = self.space.remove(start).ok_or(measured::IPC_CLOSE_UNKNOWN)?;
        self.space.give(region.start - region.offset);
        Ok(())
    }
}
