//! A process as the machine knows it: a number that never repeats, and a record that is locked while it lives.
//!
//! The number stands for the driver's resource-manager client, which legacy handles carry. It is predictable, as the
//! real one is: handles are bearer tokens made of small counters.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use rustix::io::Errno;

use crate::header::Creator;
use crate::store::{Store, list};

/// Client numbers begin here; real ones look alike.
const CLIENT_BASE: u32 = 0xc1d0_0000;

/// This process's record, locked as long as the description lives: also in a forked child, which inherits it as it would the
/// driver's own descriptors.
#[derive(Debug)]
pub(crate) struct ProcessRecord {
    pub(crate) client: u32,
    pub(crate) creator: Creator,
    _lock: OwnedFd,
}

impl ProcessRecord {
    pub(crate) fn register(store: &Store) -> rustix::io::Result<Self> {
        let mut ledger = store.ledger()?;
        forget_dead(store)?;
        ledger.clients = ledger.clients.wrapping_add(1);
        let client = CLIENT_BASE.wrapping_add(ledger.clients);
        ledger.save()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let lock = openat(store.dir().process(), file_name(client), flags, store.dir().file_mode())?;
        flock(&lock, FlockOperation::LockExclusive)?;
        rustix::fs::fchmod(&lock, store.dir().file_mode())?;
        Ok(Self { client, creator: current(), _lock: lock })
    }
}

/// Whether the process with this number lives.
pub(crate) fn is_alive(store: &Store, client: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(store.dir().process(), file_name(client), flags, Mode::empty())
        .is_ok_and(|record| flock(&record, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// Drops the records of dead processes; the ledger's lock must be held.
fn forget_dead(store: &Store) -> rustix::io::Result<()> {
    for name in list(store.dir().process())? {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(record) = openat(store.dir().process(), &name, flags, Mode::empty()) else { continue };
        if flock(&record, FlockOperation::NonBlockingLockExclusive).is_ok() {
            unlinkat(store.dir().process(), &name, AtFlags::empty())?;
        }
    }
    Ok(())
}

fn file_name(client: u32) -> String {
    format!("{client:08x}")
}

/// The PID number of this process, as libcuda sees it.
pub(crate) fn own_pid() -> u32 {
    // SAFETY: `getpid` has no preconditions. It is called through the C library on purpose: a preloaded `getpid` must be
    // seen here, as the real driver sees it.
    let pid = unsafe { libc::getpid() };
    pid.unsigned_abs()
}

fn current() -> Creator {
    let mut comm = [0; 16];
    if let Ok(text) = std::fs::read("/proc/self/comm") {
        for (to, from) in comm.iter_mut().zip(text.into_iter().filter(|&byte| byte != b'\n')) {
            *to = from;
        }
    }
    Creator {
        pid: own_pid(),
        uid: rustix::process::getuid().as_raw(),
        pid_namespace: rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino),
        comm,
    }
}
