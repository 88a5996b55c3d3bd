//! Words for what a puppet found, and the vendor's names for what it is asked.

use gpu_handoff_cuda::raw::{Answer, ForkEnd, PointerAttribute, Raw};
use gpu_handoff_cuda::{Memory, Status};

use crate::conformance::wire::{Attribute, Forked};

/// Bytes of a little-endian word.
pub(super) fn sum(word: &[u8]) -> u64 {
    word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

pub(super) fn described(memory: Memory) -> String {
    match memory {
        Memory::Vmm { bytes, offset, .. } => format!("vmm, {bytes} bytes, offset {offset}"),
        Memory::Legacy { bytes, offset, .. } => format!("legacy, {bytes} bytes, offset {offset}"),
        Memory::NotExportable { why, .. } => format!("not exportable: {why:?}"),
    }
}

pub(super) fn forked(raw: Raw, what: Forked) -> String {
    let end = raw.in_forked_child(|raw| {
        let code = |outcome: Answer<()>| outcome.err().unwrap_or(Status::SUCCESS).0;
        match what {
            Forked::Init => raw.init().0,
            Forked::DeviceCount => code(raw.device_count().map(drop)),
            Forked::CurrentContext => code(raw.current().map(drop)),
            Forked::Alloc => code(raw.alloc(4 << 20).map(drop)),
            Forked::Read(ptr) => raw.read(ptr, &mut [0; 4]).0,
        }
    });
    match end {
        ForkEnd::Answered(code) => Status(code).to_string(),
        ForkEnd::Signal(14) => "hangs".to_owned(),
        ForkEnd::Signal(signal) => crate::conformance::puppet::signal_name(signal),
        ForkEnd::Exited(code) => format!("exit {code}"),
        ForkEnd::NoFork(error) => format!("not run: fork failed with {error}"),
    }
}

pub(super) fn pointer_attribute(attribute: Attribute) -> PointerAttribute {
    match attribute {
        Attribute::MemoryType => PointerAttribute::MemoryType,
        Attribute::IsManaged => PointerAttribute::IsManaged,
        Attribute::DeviceOrdinal => PointerAttribute::DeviceOrdinal,
        Attribute::IsLegacyIpcCapable => PointerAttribute::IsLegacyIpcCapable,
        Attribute::RangeStart => PointerAttribute::RangeStart,
        Attribute::RangeSize => PointerAttribute::RangeSize,
        Attribute::Mapped => PointerAttribute::Mapped,
        Attribute::MappingBase => PointerAttribute::MappingBase,
        Attribute::MappingSize => PointerAttribute::MappingSize,
        Attribute::AllowedHandleTypes => PointerAttribute::AllowedHandleTypes,
        Attribute::MempoolHandle => PointerAttribute::MempoolHandle,
    }
}
