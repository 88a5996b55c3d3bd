//! The machine's small shared book: next process number, bytes in use per GPU, and the lock that orders changes.
//!
//! One file, `ledger`, read and rewritten under `flock(LOCK_EX)` on a fresh description. The byte counts are an upper
//! bound: memory of a process that died stays in them until a collection finds that nobody pins it any more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::{pread, pwrite};

use crate::config::GPUS_MAX;
use crate::header::{HEADER_BYTES, u32_at, u64_at};
use crate::mapping::Mapping;
use crate::tree::open_or_create;

const NAME: &str = "ledger";
const BYTES: usize = 16 + 8 * GPUS_MAX;
const ARMED_AT: usize = 12;

/// The book, open and locked; dropping it releases the lock without writing.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: OwnedFd,
    /// Processes that ever called `cuInit` on this machine.
    pub(crate) clients: u32,
    /// Allocations made since the last collection, and files it left.
    pub(crate) created: u32,
    pub(crate) files: u32,
    /// Not 0 when there may be faults to look for.
    armed: u32,
    /// Upper bound of the bytes in use on each GPU.
    pub(crate) used: [u64; GPUS_MAX],
}

impl Ledger {
    /// Waits for the lock, then reads.
    pub(crate) fn lock(root: BorrowedFd<'_>, mode: Mode) -> rustix::io::Result<Self> {
        let file = open_or_create(root, NAME, mode)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut raw = [0_u8; BYTES];
        // A short read is a new book: all zero.
        pread(&file, &mut raw, 0)?;
        let word = |at| u32_at(&raw, at).unwrap_or(0);
        let used = std::array::from_fn(|gpu| u64_at(&raw, 16 + 8 * gpu).unwrap_or(0));
        Ok(Self { file, clients: word(0), created: word(4), files: word(8), armed: word(ARMED_AT), used })
    }

    /// Writes what changed.
    pub(crate) fn save(&self) -> rustix::io::Result<()> {
        let mut raw = Vec::with_capacity(BYTES);
        for word in [self.clients, self.created, self.files, self.armed] {
            raw.extend_from_slice(&word.to_le_bytes());
        }
        for bytes in self.used {
            raw.extend_from_slice(&bytes.to_le_bytes());
        }
        pwrite(self.file.as_fd(), &raw, 0).map(drop)
    }
}

impl Ledger {
    /// Says in the book whether there may be faults.
    pub(crate) fn arm(&mut self, armed: bool) -> rustix::io::Result<()> {
        self.armed = u32::from(armed);
        self.save()
    }

    /// The word that says so, to be looked at without a call of the kernel.
    pub(crate) fn armed(&self) -> rustix::io::Result<Armed> {
        Mapping::new(self.file.as_fd(), 0, HEADER_BYTES, false).map(Armed)
    }
}

/// Whether there may be faults, as the book says at the moment.
#[derive(Debug)]
pub(crate) struct Armed(Mapping);

impl Armed {
    pub(crate) fn is_set(&self) -> bool {
        // SAFETY: the word lies in the mapped page of the book, whose first save made it longer than that, aligned to 4, and lives as
        // long as `self`. Other processes write it at any time, which is what an atomic is for.
        unsafe { AtomicU32::from_ptr(self.0.at(ARMED_AT).cast()) }.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // Said aloud: a child forked meanwhile shares the description and would keep the lock as long as it lives.
        let _released = flock(&self.file, FlockOperation::Unlock);
    }
}
