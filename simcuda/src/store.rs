//! Physical memory as files, and the one rule of their life: a file lives while anybody holds its shared lock.
//!
//! Whoever opens a memory file takes `flock(LOCK_SH)` on that open file description. Descriptors, duplicates, mappings and
//! descriptors in flight in a socket all keep the description, so "somebody still pins this memory" is exactly "an
//! exclusive lock on a fresh description fails". That includes processes that never loaded CUDA, as measured.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, fstatvfs, ftruncate, openat,
    statat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{CuResult, Result};
use crate::header::{DATA_OFFSET, Header};
use crate::ledger::Ledger;
use crate::rendezvous::Rendezvous;

/// At least this many allocations between two collections, so that many allocations stay linear.
const COLLECT_EVERY_MIN: u32 = 16;

/// The machine's memory.
#[derive(Debug)]
pub(crate) struct Store {
    dir: Rendezvous,
    /// Bytes of memory of each device.
    capacities: Vec<u64>,
}

impl Store {
    pub(crate) const fn new(dir: Rendezvous, capacities: Vec<u64>) -> Self {
        Self { dir, capacities }
    }

    pub(crate) const fn dir(&self) -> &Rendezvous {
        &self.dir
    }

    /// Bytes of memory of a device.
    pub(crate) fn capacity(&self, device: usize) -> u64 {
        self.capacities.get(device).copied().unwrap_or(0)
    }

    pub(crate) fn ledger(&self) -> rustix::io::Result<Ledger> {
        Ledger::lock(self.dir.root(), self.dir.file_mode())
    }

    /// Makes a new memory file within the device's capacity; the descriptor holds the shared lock.
    pub(crate) fn create(&self, header: &Header) -> Result<OwnedFd> {
        let mut ledger = self.ledger().map_err(io)?;
        let used = |ledger: &Ledger| ledger.used.get(header.device).copied().unwrap_or(u64::MAX);
        let capacity = self.capacity(header.device);
        let fits = |used: u64| used.saturating_add(header.bytes) <= capacity;
        if !fits(used(&ledger)) || ledger.created >= ledger.files.max(COLLECT_EVERY_MIN) {
            self.collect_locked(&mut ledger).map_err(io)?;
        }
        if !fits(used(&ledger)) || !self.host_has_room(header.bytes) {
            ledger.save().map_err(io)?;
            return Err(CuResult::ERROR_OUT_OF_MEMORY);
        }
        let fd = self.create_file(header).map_err(io)?;
        ledger.created = ledger.created.saturating_add(1);
        if let Some(used) = ledger.used.get_mut(header.device) {
            *used += header.bytes;
        }
        ledger.save().map_err(io)?;
        Ok(fd)
    }

    /// A sparse file that the file system could never back would end in SIGBUS, far from its cause.
    fn host_has_room(&self, bytes: u64) -> bool {
        fstatvfs(self.dir.alloc()).is_ok_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) >= bytes)
    }

    fn create_file(&self, header: &Header) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = openat(self.dir.alloc(), header.name(), flags, self.dir.file_mode())?;
        flock(&fd, FlockOperation::LockShared)?;
        fchmod(&fd, self.dir.memory_mode())?;
        ftruncate(&fd, DATA_OFFSET + header.bytes)?;
        header.write(fd.as_fd())?;
        Ok(fd)
    }

    /// Opens a memory file by name with its own description and shared lock; `None` if it is gone.
    pub(crate) fn open(&self, name: &str) -> Option<(OwnedFd, Header)> {
        let fd =
            openat(self.dir.alloc(), name, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
                .ok()?;
        flock(&fd, FlockOperation::LockShared).ok()?;
        // A collection may have unlinked it between the two calls.
        (fstat(&fd).ok()?.st_nlink > 0).then_some(())?;
        let header = Header::read(fd.as_fd()).filter(|header| header.name() == name)?;
        Some((fd, header))
    }

    /// The memory that a stranger's descriptor stands for: only the very file that lies in this directory counts, a
    /// copy of its bytes elsewhere does not.
    pub(crate) fn identify(&self, fd: BorrowedFd<'_>) -> Option<(OwnedFd, Header)> {
        let given = fstat(fd).ok()?;
        let ours = fstat(self.dir.alloc()).ok()?;
        if given.st_dev != ours.st_dev || given.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let name = Header::read(fd)?.name();
        let named = statat(self.dir.alloc(), &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (named.st_ino == given.st_ino).then_some(())?;
        self.open(&name)
    }

    /// Drops every file that nobody pins, brings the ledger up to date, and tells what is left.
    pub(crate) fn collect(&self) -> rustix::io::Result<Vec<(Header, Stat)>> {
        let mut ledger = self.ledger()?;
        let live = self.collect_locked(&mut ledger)?;
        ledger.save()?;
        Ok(live)
    }

    fn collect_locked(&self, ledger: &mut Ledger) -> rustix::io::Result<Vec<(Header, Stat)>> {
        let mut live = Vec::new();
        ledger.used.fill(0);
        ledger.files = 0;
        ledger.created = 0;
        for name in list(self.dir.alloc())? {
            if let Fate::Pinned(fd) = self.try_free(&name)?
                && let Some(header) = Header::read(fd.as_fd())
            {
                ledger.files = ledger.files.saturating_add(1);
                if let Some(used) = ledger.used.get_mut(header.device) {
                    *used += header.bytes;
                }
                live.push((header, fstat(&fd)?));
            }
        }
        Ok(live)
    }

    /// Unlinks the file if nobody pins it. The ledger's lock must be held: a file is made before it is pinned.
    fn try_free(&self, name: &str) -> rustix::io::Result<Fate> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(fd) = openat(self.dir.alloc(), name, flags, Mode::empty()) else {
            return Ok(Fate::OutOfReach);
        };
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => unlinkat(self.dir.alloc(), name, AtFlags::empty()).map(|()| Fate::Freed),
            Err(Errno::WOULDBLOCK) => Ok(Fate::Pinned(fd)),
            Err(error) => Err(error),
        }
    }

    /// Called when this process dropped its last hold on a file: frees it at once if it was the last of all.
    pub(crate) fn collect_one(&self, header: &Header) -> rustix::io::Result<()> {
        let mut ledger = self.ledger()?;
        if let Fate::Freed = self.try_free(&header.name())? {
            ledger.files = ledger.files.saturating_sub(1);
            if let Some(used) = ledger.used.get_mut(header.device) {
                *used = used.saturating_sub(header.bytes);
            }
            ledger.save()?;
        }
        Ok(())
    }

    /// Bytes in use on a GPU, exactly.
    pub(crate) fn used(&self, device: usize) -> rustix::io::Result<u64> {
        Ok(self
            .collect()?
            .iter()
            .filter(|(header, _)| header.device == device)
            .map(|(header, _)| header.bytes)
            .sum())
    }
}

/// What became of a file that a collection looked at.
#[derive(Debug)]
enum Fate {
    Freed,
    Pinned(OwnedFd),
    /// Already gone, or another user's.
    OutOfReach,
}

/// The names in a directory, without the dots.
pub(crate) fn list(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// A failing file operation is the simulator's own trouble, not one of the driver's answers.
pub(crate) const fn io(errno: Errno) -> CuResult {
    match errno {
        Errno::NOSPC | Errno::NOMEM | Errno::MFILE | Errno::NFILE => CuResult::ERROR_OUT_OF_MEMORY,
        _ => CuResult::ERROR_OPERATING_SYSTEM,
    }
}
