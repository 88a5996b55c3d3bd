//! Host mappings of memory files: the one place that calls `mmap`.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// A shared mapping of part of a file; it keeps the file's open description, and so its lock, alive.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; all access goes through raw pointers, and `Drop` needs the exclusive owner.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only hands out the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        write: bool,
    ) -> rustix::io::Result<Self> {
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: no address is asked for, so no existing mapping is replaced; the result is owned by `Self` alone and
        // unmapped once, in `Drop`.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, offset) }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, bytes })
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a byte in the mapping; `offset` must lie inside.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "offset outside the mapping");
        // SAFETY: `offset` is at most the length of the one mapped object that `start` points to.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Backs a range with host memory now, so that a full file system is an error here and not a SIGBUS later.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> rustix::io::Result<()> {
        let page = rustix::param::page_size();
        let start = offset / page * page;
        let end = offset.saturating_add(bytes).next_multiple_of(page).min(self.bytes);
        let length = end.saturating_sub(start);
        // SAFETY: the range lies inside this mapping; populating changes no contents.
        match unsafe { madvise(self.at(start).cast(), length, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know the advice; nothing is lost but the early error.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            other => other,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of the mapping made in `new`; whoever uses its memory holds `Self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping");
    }
}
