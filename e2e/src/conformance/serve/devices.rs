//! Devices, pairs of them, and memory pools.

use std::os::fd::{AsRawFd, OwnedFd};

use gpu_handoff_cuda::raw::{Answer, PeerAttribute};
use gpu_handoff_cuda::{Device, Driver, Status};

use super::super::wire::Request;
use super::{Given, Puppet, done, sixty_four, size};

impl Puppet {
    pub(super) fn devices(&mut self, request: Request) -> Answer<Given> {
        match request {
            Request::Uuid { device } => at(device).map(|device| device.uuid().to_string().into()),
            Request::PciBusId { device } => {
                at(device)?.pci_bus_id().map(Given::from).map_err(|error| error.status)
            }
            Request::Peer { from, to } => {
                let attribute = |which| self.raw.peer_attribute(which, from, to);
                let said = |answer: Answer<i32>| {
                    answer.map_or_else(|code| code.to_string(), |value| value.to_string())
                };
                Ok(format!(
                    "can {}, access {}, atomics {}, rank {}",
                    said(self.raw.can_access_peer(from, to)),
                    said(attribute(PeerAttribute::Access)),
                    said(attribute(PeerAttribute::Atomics)),
                    said(attribute(PeerAttribute::Rank)),
                )
                .into())
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    pub(super) fn pools(&mut self, request: Request, fd: Option<OwnedFd>) -> Answer<Given> {
        let raw = self.raw;
        match request {
            Request::PoolCreate { exportable } => {
                raw.pool_create(self.device, exportable).map(|pool| (pool as u64).into())
            }
            Request::PoolAlloc { pool, bytes } => raw.pool_alloc(size(pool), 0, size(bytes)).map(Given::from),
            Request::PoolExport { pool } => raw.pool_export(size(pool)).map(Given::from),
            Request::PoolExportPointer { ptr } => raw.pool_export_pointer(ptr).map(|data| (&data).into()),
            Request::PoolImport => {
                let pool = raw.pool_import(fd.as_ref().map_or(-1, AsRawFd::as_raw_fd))?;
                done(raw.pool_allow(pool, self.device))?;
                Ok((pool as u64).into())
            }
            Request::PoolImportPointer { pool, data } => {
                raw.pool_import_pointer(size(pool), sixty_four(&data)).map(Given::from)
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}

/// A device of this process, which must have called `cuInit`.
fn at(ordinal: i32) -> Answer<Device> {
    let driver = Driver::load().map_err(|_| Status::NOT_INITIALIZED)?;
    driver.device_at(ordinal).map_err(|error| error.status)
}
