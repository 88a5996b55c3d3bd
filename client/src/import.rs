//! Granted buffers to addresses: the CUDA calls of an acquire.

use std::fmt;

use gpu_handoff_cuda::{
    ContextRef, Device, DeviceUuid, Driver, LegacyHandle, LegacyMapping, PidWordProof, VmmImport, VmmMapping,
};
use gpu_handoff_protocol::message::{Carrier, Grant};
use gpu_handoff_protocol::{BufferFacts, Code, Refusal};
use std::os::fd::AsFd;

use crate::error::Fault;

/// Where a mapping is valid: the CUDA context that was current when it was made, and its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Context(ContextRef, Device),
    #[cfg(test)]
    Nowhere,
}

impl Place {
    /// The device that memory is mapped on there.
    pub(crate) fn device(self) -> DeviceUuid {
        match self {
            Self::Context(_, device) => device.uuid(),
            #[cfg(test)]
            Self::Nowhere => crate::tests::DEVICE,
        }
    }
}

/// An imported buffer, mapped as a whole; unmapped on drop.
pub(crate) enum Mapping {
    Vmm(VmmMapping),
    Legacy(LegacyMapping),
    #[cfg(test)]
    Pretended(crate::tests::Pretended),
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:#x})", self.base())
    }
}

impl Mapping {
    /// Where the exported allocation begins, a `CUdeviceptr`.
    pub(crate) fn base(&self) -> u64 {
        match self {
            Self::Vmm(mapping) => mapping.ptr(),
            Self::Legacy(mapping) => mapping.ptr(),
            #[cfg(test)]
            Self::Pretended(pretended) => pretended.base,
        }
    }
}

/// What turns grants into mappings: the driver, or in tests something that pretends.
pub(crate) trait Importer: Send + Sync {
    /// The caller's current context.
    fn place(&self) -> Result<Place, Fault>;
    /// Maps what a grant carries.
    fn map(&self, grant: &Grant, place: Place) -> Result<Mapping, Fault>;
}

/// The driver of this process, loaded when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct CudaImporter;

impl Importer for CudaImporter {
    fn place(&self) -> Result<Place, Fault> {
        let driver = Driver::load()?;
        let context = driver.current_context()?.ok_or(Fault::NoContext)?;
        Ok(Place::Context(context, driver.current_device()?))
    }

    fn map(&self, grant: &Grant, place: Place) -> Result<Mapping, Fault> {
        let driver = Driver::load()?;
        check_range(&grant.buffer.facts, grant.buffer.facts.allocation_size)?;
        match &grant.carrier {
            Carrier::Descriptor(fd) => map_vmm(driver, &grant.buffer.facts, fd.as_fd(), place),
            Carrier::Legacy(bytes) => {
                let handle = readable(LegacyHandle::from_bytes(*bytes), grant.rewrite_pid_word);
                let mapping = LegacyMapping::open(driver, &handle)?;
                // Nobody but the driver knows how large it really is.
                check_range(&grant.buffer.facts, mapping.bytes()?)?;
                Ok(Mapping::Legacy(mapping))
            }
        }
    }
}

fn map_vmm(
    driver: Driver,
    facts: &BufferFacts,
    fd: std::os::fd::BorrowedFd<'_>,
    place: Place,
) -> Result<Mapping, Fault> {
    let device = match place {
        Place::Context(_, device) => device,
        #[cfg(test)]
        Place::Nowhere => return Err(Fault::NoContext),
    };
    let import = VmmImport::import(driver, fd)?;
    Ok(Mapping::Vmm(import.map(facts.allocation_size, facts.access, device)?))
}

/// The handle as this process can open it: with another process number in it where its own is the exporter's. The node
/// asks for that only where this driver has passed its self-test; else it refuses with `PID_COLLISION`.
fn readable(handle: LegacyHandle, rewrite: bool) -> LegacyHandle {
    if !rewrite {
        return handle;
    }
    // Any number that is not ours will do.
    let other = std::process::id().wrapping_add(1);
    handle.with_pid_word(&PidWordProof::vouched_by_node(), other)
}

/// The buffer must lie within what is really there.
fn check_range(facts: &BufferFacts, allocation: u64) -> Result<(), Fault> {
    let end = facts.offset.checked_add(facts.size);
    if end.is_some_and(|end| end <= allocation) {
        return Ok(());
    }
    let wanted = format!("{} from {}", facts.size, facts.offset);
    Err(Refusal::new(Code::SizeMismatch).compared_with("bytes", wanted, allocation).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_must_lie_within_its_allocation() {
        let facts = |offset, size| BufferFacts { offset, size, ..crate::tests::facts("x") };
        assert!(check_range(&facts(10, 90), 100).is_ok());
        assert!(check_range(&facts(10, 91), 100).is_err());
        assert!(check_range(&facts(u64::MAX, 2), 100).is_err());
    }

    #[test]
    fn a_handle_is_rewritten_only_where_the_node_asks_for_it() {
        let handle = LegacyHandle::from_bytes([1; 64]);
        assert_eq!(readable(handle, false), handle);
        let rewritten = readable(handle, true);
        assert_ne!(rewritten.pid_word(), handle.pid_word());
        assert_ne!(rewritten.pid_word(), std::process::id());
    }
}
