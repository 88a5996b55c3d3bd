//! What the driver answers to wrong addresses, sizes and handles.

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB, Mapped as Mapping};
use crate::conformance::puppet::{Puppet, Step, outcome};
use crate::conformance::wire::Request;

use super::here;

const BYTES: u64 = 4 * MIB;

/// A row of this file. Its outcome is what the script says, and the context's state afterwards if that is not well; then
/// the next row starts with another process.
fn row(id: &str, says: &str, script: impl Fn(&Puppet) -> Step<String> + 'static) -> Row {
    Row::api(4, id, says, move |stage| after(&stage.shared(&here(), "misuse")?, &script))
}

/// The same in a process of its own, where it matters what else is mapped nearby.
fn own_row(id: &str, says: &str, script: impl Fn(&Puppet) -> Step<String> + 'static) -> Row {
    Row::api(4, id, says, move |stage| after(&stage.own(&here())?, &script))
}

fn after(puppet: &Puppet, script: &impl Fn(&Puppet) -> Step<String>) -> Step<String> {
    let said = script(puppet)?;
    Ok(match puppet.tell(Request::Synchronize) {
        Ok(()) => said,
        Err(end) => format!("{said}, then synchronize {end}"),
    })
}

pub(super) fn rows() -> Vec<Row> {
    [of_copies(), of_access(), of_unmapping(), of_freeing()].into_iter().flatten().collect()
}

fn of_copies() -> Vec<Row> {
    vec![
        own_row("copy-out-of-range", "cuMemcpyDtoH past the end of cuMemAlloc memory", |puppet| {
            let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
            Ok(outcome(&puppet.words(Request::Read { ptr: ptr + BYTES - 4, bytes: 64 * MIB })))
        }),
        own_row("copy-out-of-range-vmm", "cuMemcpyDtoH past the end of a vmm mapping", |puppet| {
            let ptr = memory::vmm(puppet, BYTES, true)?.ptr;
            Ok(outcome(&puppet.words(Request::Read { ptr: ptr + BYTES - 4, bytes: 8 })))
        }),
        own_row("copy-in-out-of-range", "cuMemcpyHtoD past the end of a vmm mapping", |puppet| {
            let ptr = memory::vmm(puppet, BYTES, true)?.ptr;
            Ok(outcome(&puppet.tell(Request::Write { ptr: ptr + BYTES - 4, bytes: 8 })))
        }),
        own_row("copy-device-out-of-range", "cuMemcpyDtoD past the end of a vmm mapping", |puppet| {
            let ptr = memory::vmm(puppet, BYTES, true)?.ptr;
            let to = puppet.word(Request::Alloc { bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::Copy { to, from: ptr + BYTES - 4, bytes: 8 })))
        }),
        own_row("memset-out-of-range", "cuMemsetD32 past the end of a vmm mapping", |puppet| {
            let ptr = memory::vmm(puppet, BYTES, true)?.ptr;
            Ok(outcome(&puppet.tell(Request::Fill { ptr: ptr + BYTES - 4, value: 0, words: 2 })))
        }),
        row("memset-unaligned", "cuMemsetD32 at an odd address", |puppet| {
            let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::Fill { ptr: ptr + 1, value: 0, words: 1 })))
        }),
        row("copy-across-kinds", "cuMemcpyDtoD from vmm to cuMemAlloc memory", |puppet| {
            let from = memory::vmm(puppet, BYTES, true)?.ptr;
            let to = puppet.word(Request::Alloc { bytes: BYTES })?;
            puppet.tell(Request::Copy { to, from, bytes: BYTES })?;
            memory::verify(puppet, to, BYTES)
        }),
        row("read-nothing", "cuMemcpyDtoH of 0 bytes", |puppet| {
            let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
            Ok(outcome(&puppet.words(Request::Read { ptr, bytes: 0 })))
        }),
    ]
}

/// Maps new memory and sets no access.
fn mapped_without_access(puppet: &Puppet) -> Step<u64> {
    let handle = puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
    let ptr = puppet.word(Request::Reserve { bytes: BYTES })?;
    puppet.tell(Request::Map { ptr, bytes: BYTES, offset: 0, handle })?;
    Ok(ptr)
}

fn of_access() -> Vec<Row> {
    vec![
        row("memset-before-access", "cuMemsetD32 before cuMemSetAccess", |puppet| {
            let ptr = mapped_without_access(puppet)?;
            Ok(outcome(&puppet.tell(Request::Fill { ptr, value: 0, words: 1 })))
        }),
        row("read-before-access", "cuMemcpyDtoH before cuMemSetAccess", |puppet| {
            let ptr = mapped_without_access(puppet)?;
            Ok(outcome(&memory::read(puppet, ptr)))
        }),
        row("access-part", "cuMemSetAccess on the first granule of a mapping", |puppet| {
            let ptr = mapped_without_access(puppet)?;
            Ok(outcome(&puppet.tell(Request::Allow { ptr, bytes: 2 * MIB, read_only: false })))
        }),
        row("access-inside", "cuMemSetAccess on the second granule of a mapping", |puppet| {
            let ptr = mapped_without_access(puppet)? + 2 * MIB;
            Ok(outcome(&puppet.tell(Request::Allow { ptr, bytes: 2 * MIB, read_only: false })))
        }),
        row("access-beyond", "cuMemSetAccess on more than is mapped", |puppet| {
            let handle = puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
            let ptr = puppet.word(Request::Reserve { bytes: 2 * BYTES })?;
            puppet.tell(Request::Map { ptr, bytes: BYTES, offset: 0, handle })?;
            Ok(outcome(&puppet.tell(Request::Allow { ptr, bytes: 2 * BYTES, read_only: false })))
        }),
        row("access-not-mapped", "cuMemSetAccess on reserved addresses with nothing mapped", |puppet| {
            let ptr = puppet.word(Request::Reserve { bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::Allow { ptr, bytes: BYTES, read_only: false })))
        }),
        row("map-not-reserved", "cuMemMap at addresses that were not reserved", |puppet| {
            let handle = puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
            Ok(outcome(&puppet.tell(Request::Map { ptr: 0x7000_0000_0000, bytes: BYTES, offset: 0, handle })))
        }),
        row("map-unknown-handle", "cuMemMap of a handle that names nothing", |puppet| {
            let ptr = puppet.word(Request::Reserve { bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::Map { ptr, bytes: BYTES, offset: 0, handle: 0 })))
        }),
        row("map-released-handle", "cuMemMap of a handle that was released", |puppet| {
            let handle = puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
            let ptr = puppet.word(Request::Reserve { bytes: BYTES })?;
            puppet.tell(Request::Release { handle })?;
            Ok(outcome(&puppet.tell(Request::Map { ptr, bytes: BYTES, offset: 0, handle })))
        }),
    ]
}

fn of_unmapping() -> Vec<Row> {
    vec![
        row("unmap-not-mapped", "cuMemUnmap of reserved addresses with nothing mapped", |puppet| {
            let ptr = puppet.word(Request::Reserve { bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::Unmap { ptr, bytes: BYTES })))
        }),
        row("unmap-unknown", "cuMemUnmap of an address that was never reserved", |puppet| {
            Ok(outcome(&puppet.tell(Request::Unmap { ptr: 0x7000_0000_0000, bytes: BYTES })))
        }),
        row("unmap-twice", "cuMemUnmap a second time", |puppet| {
            let Mapping { ptr, .. } = mapping(puppet)?;
            puppet.tell(Request::Unmap { ptr, bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::Unmap { ptr, bytes: BYTES })))
        }),
        row("unmap-part", "cuMemUnmap of half a mapping", |puppet| {
            let Mapping { ptr, .. } = mapping(puppet)?;
            Ok(outcome(&puppet.tell(Request::Unmap { ptr, bytes: BYTES / 2 })))
        }),
        row("unmap-then-read", "reading after cuMemUnmap", |puppet| {
            let Mapping { ptr, .. } = mapping(puppet)?;
            puppet.tell(Request::Unmap { ptr, bytes: BYTES })?;
            Ok(outcome(&memory::read(puppet, ptr)))
        }),
        row("address-free-mapped", "cuMemAddressFree of a range that is still mapped", |puppet| {
            let Mapping { ptr, .. } = mapping(puppet)?;
            Ok(outcome(&puppet.tell(Request::AddressFree { ptr, bytes: BYTES })))
        }),
        row("address-free-part", "cuMemAddressFree of half a reservation", |puppet| {
            let ptr = puppet.word(Request::Reserve { bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::AddressFree { ptr, bytes: BYTES / 2 })))
        }),
        row("address-free-twice", "cuMemAddressFree a second time", |puppet| {
            let ptr = puppet.word(Request::Reserve { bytes: BYTES })?;
            puppet.tell(Request::AddressFree { ptr, bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::AddressFree { ptr, bytes: BYTES })))
        }),
    ]
}

fn mapping(puppet: &Puppet) -> Step<Mapping> {
    memory::vmm(puppet, BYTES, true)
}

fn of_freeing() -> Vec<Row> {
    vec![
        row("release-twice", "cuMemRelease a second time", |puppet| {
            let handle = puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
            puppet.tell(Request::Release { handle })?;
            Ok(outcome(&puppet.tell(Request::Release { handle })))
        }),
        row("release-zero", "cuMemRelease of handle 0", |puppet| {
            Ok(outcome(&puppet.tell(Request::Release { handle: 0 })))
        }),
        row("export-released", "exporting a released handle", |puppet| {
            let handle = puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
            puppet.tell(Request::Release { handle })?;
            Ok(outcome(&puppet.fd(Request::Export { handle })))
        }),
        row("free-unknown", "cuMemFree of an address that the driver never gave", |puppet| {
            Ok(outcome(&puppet.tell(Request::Free { ptr: 0x7000_0000_0000 })))
        }),
        row("free-null", "cuMemFree of 0", |puppet| Ok(outcome(&puppet.tell(Request::Free { ptr: 0 })))),
        row("free-twice", "cuMemFree a second time", |puppet| {
            let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
            puppet.tell(Request::Free { ptr })?;
            Ok(outcome(&puppet.tell(Request::Free { ptr })))
        }),
        row("free-inside", "cuMemFree of a pointer inside an allocation", |puppet| {
            let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
            Ok(outcome(&puppet.tell(Request::Free { ptr: ptr + MIB })))
        }),
        row("free-vmm", "cuMemFree of a vmm mapping", |puppet| {
            let Mapping { ptr, .. } = mapping(puppet)?;
            Ok(outcome(&puppet.tell(Request::Free { ptr })))
        }),
        row("alloc-zero", "cuMemAlloc of 0 bytes", |puppet| {
            Ok(outcome(&puppet.word(Request::Alloc { bytes: 0 })))
        }),
        row("alloc-too-large", "cuMemAlloc of 1 PiB", |puppet| {
            Ok(outcome(&puppet.word(Request::Alloc { bytes: 1 << 50 })))
        }),
    ]
}
