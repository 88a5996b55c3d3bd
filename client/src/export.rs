//! Memory to publications: the CUDA calls of a publish.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use gpu_handoff_cuda::vmm::ExportError;
use gpu_handoff_cuda::{
    DeviceUuid, Driver, ExportedFd, LegacyHandle, Memory, NotExportable, Sentinel, VmmAllocation, classify,
};
use gpu_handoff_protocol::message::{Carrier, Publication};
use gpu_handoff_protocol::{BufferFacts, Code, Kind, Refusal};

use crate::again::{Again, Kept};
use crate::buffer::{Buffer, Exportable, Source};
use crate::error::Fault;

/// Exports memory, and keeps one small export alive for each device, which makes all others cheap (22 instead of
/// 550 µs).
#[derive(Debug, Default)]
pub(crate) struct Exporter {
    sentinels: Mutex<HashMap<DeviceUuid, Sentinel>>,
}

/// A publication, and what its memory is exported again with.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) publication: Publication,
    pub(crate) kept: Kept,
}

impl Ready {
    /// What is sent, and what is kept of it.
    pub(crate) fn split(ready: Vec<Self>) -> (Vec<Publication>, Vec<Kept>) {
        ready.into_iter().map(|it| (it.publication, it.kept)).unzip()
    }
}

/// Memory on its way out.
struct Exported {
    kind: Kind,
    carrier: Carrier,
    again: Again,
    device: DeviceUuid,
    allocation: u64,
    /// Offset and size in bytes, where the memory itself says them.
    range: Option<(u64, u64)>,
}

impl Exporter {
    /// States a buffer's facts and exports its memory.
    pub(crate) fn export(&self, buffer: &Buffer<'_>) -> Result<Ready, Fault> {
        self.export_announced(buffer, &|| ())
    }

    /// The same; calls `announce` before the driver is asked for what takes it long.
    pub(crate) fn export_announced(&self, buffer: &Buffer<'_>, announce: &dyn Fn()) -> Result<Ready, Fault> {
        buffer.check()?;
        let memory = match &buffer.source {
            Source::Nothing => return Err(no_memory()),
            Source::Vmm(memory) => self.export_vmm(*memory, announce)?,
            Source::Exported(exported) => Exported {
                kind: Kind::Vmm,
                // A duplicate: a message owns what it attaches.
                carrier: Carrier::Descriptor(Arc::new(exported.fd.try_clone().map_err(Fault::Io)?)),
                again: Again::Given(Arc::clone(exported)),
                device: exported.device,
                allocation: exported.bytes,
                range: None,
            },
            Source::Pointer { ptr, bytes } => self.export_pointer(*ptr, *bytes, announce)?,
        };
        let (offset, size) = memory.range.or(buffer.range).unwrap_or((0, memory.allocation));
        check_range(offset, size, memory.allocation)?;
        let facts = BufferFacts {
            name: buffer.name.clone(),
            kind: memory.kind,
            device: memory.device,
            offset,
            size,
            allocation_size: memory.allocation,
            access: buffer.access,
            lifetime: buffer.lifetime,
            metadata: buffer.metadata.clone(),
            order: None,
        };
        let publication = Publication { facts, carrier: memory.carrier };
        Ok(Ready { publication, kept: Kept::new(memory.again) })
    }

    fn export_vmm(&self, memory: &dyn Exportable, announce: &dyn Fn()) -> Result<Exported, Fault> {
        announce();
        let ExportedFd { fd, bytes, device } = memory.export().map_err(export_fault)?;
        self.hold_sentinel(device)?;
        let (again, carrier) = (Again::Memory(memory.hold()), Carrier::Descriptor(Arc::new(fd)));
        Ok(Exported { kind: Kind::Vmm, carrier, again, device, allocation: bytes, range: None })
    }

    fn export_pointer(&self, ptr: u64, bytes: u64, announce: &dyn Fn()) -> Result<Exported, Fault> {
        let driver = Driver::load()?;
        match classify(driver, ptr)? {
            Memory::Vmm { offset, .. } => {
                let exported = self.export_vmm(&VmmAllocation::of_pointer(driver, ptr)?, announce)?;
                Ok(Exported { range: Some((offset, bytes)), ..exported })
            }
            Memory::Legacy { device, bytes: allocation, offset, .. } => Ok(Exported {
                kind: Kind::Legacy,
                carrier: Carrier::Legacy(*LegacyHandle::export(driver, ptr)?.as_bytes()),
                again: Again::Nothing,
                device: device.uuid(),
                allocation,
                range: Some((offset, bytes)),
            }),
            Memory::NotExportable { why, .. } => Err(not_exportable(why)),
        }
    }

    fn hold_sentinel(&self, device: DeviceUuid) -> Result<(), Fault> {
        let mut sentinels = self.sentinels.lock()?;
        if let Entry::Vacant(place) = sentinels.entry(device) {
            let driver = Driver::load()?;
            // Without one everything works, only slower: a full GPU is no reason to refuse a publish.
            if let Ok(sentinel) = Sentinel::hold(driver, driver.device(device)?) {
                place.insert(sentinel);
            }
        }
        Ok(())
    }
}

pub(crate) fn export_fault(error: ExportError) -> Fault {
    match error {
        ExportError::NotExportable(_) => not_exportable(NotExportable::VmmWithoutDescriptor),
        ExportError::Cuda(error) => Fault::Cuda(error),
        ExportError::CloseOnExec(error) => Fault::Io(error),
    }
}

fn not_exportable(why: NotExportable) -> Fault {
    let found = match why {
        NotExportable::VmmWithoutDescriptor => {
            "vmm memory that is imported, or was made without the POSIX descriptor type"
        }
        NotExportable::Managed => "managed memory",
        NotExportable::Host => "host memory",
        NotExportable::Pool => "memory of a stream-ordered pool",
        NotExportable::UnknownPointer => "a pointer that the driver does not know",
        NotExportable::Other => "device memory that the driver does not share",
    };
    let refusal =
        Refusal::new(Code::NotExportable).compared_with("memory", "exportable device memory", found);
    refusal.with_remedy(why.remedy()).into()
}

fn no_memory() -> Fault {
    let refusal = Refusal::new(Code::NotExportable).compared_with("memory", "a source", "none");
    refusal.with_remedy("say where the memory is: Buffer::vmm, Buffer::exported or Buffer::pointer").into()
}

fn check_range(offset: u64, size: u64, allocation: u64) -> Result<(), Fault> {
    if size > 0 && offset.checked_add(size).is_some_and(|end| end <= allocation) {
        return Ok(());
    }
    let wanted = format!("1 to {} from {offset} in one allocation", allocation.saturating_sub(offset));
    Err(Refusal::new(Code::SizeMismatch).compared_with("bytes", wanted, size).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_lie_within_one_allocation() {
        assert!(check_range(0, 10, 10).is_ok());
        for (offset, size) in [(0, 0), (0, 11), (10, 1), (u64::MAX, 1)] {
            assert!(check_range(offset, size, 10).is_err(), "{size} from {offset}");
        }
    }

    #[test]
    fn every_reason_has_its_own_remedy() {
        for why in [NotExportable::Managed, NotExportable::Pool, NotExportable::UnknownPointer] {
            let Fault::Refused(refusal) = not_exportable(why) else { panic!("not a refusal") };
            assert_eq!((refusal.code(), refusal.remedy()), (Code::NotExportable, why.remedy()));
        }
    }
}
