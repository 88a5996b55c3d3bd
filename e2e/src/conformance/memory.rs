//! Steps that many rows take: a context, filled memory of each kind, an import, a look at the bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::puppet::{Puppet, Step};
use super::wire::Request;

pub(crate) const MIB: u64 = 1 << 20;
/// What shared memory is filled with.
pub(crate) const FILL: u32 = 0xC0FF_EE42;

/// Makes the primary context of a device current.
pub(crate) fn enter(puppet: &Puppet, device: i32) -> Step<u64> {
    let context = puppet.word(Request::Retain { device })?;
    puppet.tell(Request::SetCurrent { context })?;
    Ok(context)
}

/// Fills the first and the last MiB of a range.
pub(crate) fn fill(puppet: &Puppet, ptr: u64, bytes: u64) -> Step<()> {
    let part = bytes.min(MIB);
    for ptr in [ptr, ptr + bytes - part] {
        puppet.tell(Request::Fill { ptr, value: FILL, words: part / 4 })?;
    }
    puppet.tell(Request::Synchronize)
}

/// Filled memory of cuMemAlloc and its handle.
pub(crate) fn legacy(puppet: &Puppet, bytes: u64) -> Step<(u64, Vec<u8>)> {
    let ptr = puppet.word(Request::Alloc { bytes })?;
    fill(puppet, ptr, bytes)?;
    Ok((ptr, puppet.bytes(Request::IpcGet { ptr })?))
}

/// Opens a handle with the usual flag.
pub(crate) fn open(puppet: &Puppet, handle: &[u8]) -> Step<u64> {
    puppet.word(Request::IpcOpen { handle: handle.to_vec(), flags: 1 })
}

/// A mapping of vmm memory and the handle that it was made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped {
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
    pub(crate) handle: u64,
}

/// Maps a handle, read and write.
pub(crate) fn map(puppet: &Puppet, handle: u64, bytes: u64) -> Step<Mapped> {
    let ptr = puppet.word(Request::Reserve { bytes })?;
    puppet.tell(Request::Map { ptr, bytes, offset: 0, handle })?;
    puppet.tell(Request::Allow { ptr, bytes, read_only: false })?;
    Ok(Mapped { ptr, bytes, handle })
}

/// Unmaps it, frees its addresses and releases its handle.
pub(crate) fn unmap(puppet: &Puppet, mapped: Mapped) -> Step<()> {
    let Mapped { ptr, bytes, handle } = mapped;
    puppet.tell(Request::Unmap { ptr, bytes })?;
    puppet.tell(Request::AddressFree { ptr, bytes })?;
    puppet.tell(Request::Release { handle })
}

/// Filled vmm memory.
pub(crate) fn vmm(puppet: &Puppet, bytes: u64, exportable: bool) -> Step<Mapped> {
    let handle = puppet.word(Request::Create { bytes, exportable })?;
    let mapped = map(puppet, handle, bytes)?;
    fill(puppet, mapped.ptr, bytes)?;
    Ok(mapped)
}

/// Filled vmm memory and a descriptor for it.
pub(crate) fn shared_vmm(puppet: &Puppet, bytes: u64) -> Step<(Mapped, OwnedFd)> {
    let mapped = vmm(puppet, bytes, true)?;
    Ok((mapped, puppet.fd(Request::Export { handle: mapped.handle })?))
}

/// Filled memory of a pool: the pool's descriptor and the pointer's data.
pub(crate) fn pooled(puppet: &Puppet, bytes: u64) -> Step<(OwnedFd, Vec<u8>)> {
    let pool = puppet.word(Request::PoolCreate { exportable: true })?;
    let ptr = puppet.word(Request::PoolAlloc { pool, bytes })?;
    fill(puppet, ptr, bytes)?;
    Ok((puppet.fd(Request::PoolExport { pool })?, puppet.bytes(Request::PoolExportPointer { ptr })?))
}

/// Imports a pool and a pointer of it.
pub(crate) fn import_pooled(puppet: &Puppet, fd: &OwnedFd, data: Vec<u8>) -> Step<u64> {
    let (pool, _) = puppet.ask(&Request::PoolImport, Some(fd.as_fd()))?;
    let pool = pool.words.first().copied().unwrap_or(0);
    puppet.word(Request::PoolImportPointer { pool, data })
}

/// Imports a descriptor.
pub(crate) fn import(puppet: &Puppet, fd: BorrowedFd<'_>) -> Step<u64> {
    puppet.ask(&Request::Import, Some(fd)).map(|(response, _)| response.words.first().copied().unwrap_or(0))
}

/// Imports a descriptor and maps it.
pub(crate) fn import_map(puppet: &Puppet, fd: &OwnedFd, bytes: u64) -> Step<Mapped> {
    map(puppet, import(puppet, fd.as_fd())?, bytes)
}

/// `OK` if the first and the last word are the fill.
pub(crate) fn verify(puppet: &Puppet, ptr: u64, bytes: u64) -> Step<String> {
    let words = (read(puppet, ptr)?, read(puppet, ptr + bytes - 4)?);
    let fill = u64::from(FILL);
    Ok(if words == (fill, fill) {
        "OK".into()
    } else {
        format!("other bytes ({:x}, {:x})", words.0, words.1)
    })
}

/// One 32-bit word of device memory.
pub(crate) fn read(puppet: &Puppet, ptr: u64) -> Step<u64> {
    puppet.words(Request::Read { ptr, bytes: 4 }).map(|(word, _)| word)
}
