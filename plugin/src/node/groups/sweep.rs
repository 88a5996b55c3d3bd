//! Removing what a member has left: what the ledger says is over, and no process of a member that is here holds.
//!
//! Folders stay until the group ends, as somebody may be about to put something there. Between the last look at a file's name
//! and its removal somebody may give another file that name: a millionth of a second, in which the new name would be lost,
//! never its contents.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use gpu_handoff_protocol::PodUid;
use gpu_handoff_sys::fanotify::FileKey;
use gpu_handoff_sys::sysv::{self, Kind, Thing};
use rustix::fs::{AtFlags, FileType, statat, unlinkat};

use super::holders::{Held, Places};
use super::ledger::Ledger;
use crate::limits;

/// A thing of System V's calls. A number comes again after tens of thousands of others at the earliest, and then with another
/// maker.
pub(super) type SysvKey = (Kind, i32, Option<u32>);

/// How the ledger knows one.
pub(super) const fn key_of(thing: &Thing) -> SysvKey {
    (thing.kind, thing.id, thing.maker)
}

/// What a sweep has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Swept {
    /// Removed.
    pub(super) removed: u64,
    /// Over, and held by somebody: looked at again.
    pub(super) held: u64,
    /// Could not be removed.
    pub(super) failed: u64,
}

impl std::ops::AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.removed += other.removed;
        self.held += other.held;
        self.failed += other.failed;
    }
}

impl Swept {
    fn add(&mut self, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.removed += 1,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(_) => self.failed += 1,
        }
    }
}

/// Removes the file of this name, if it is over and not held.
pub(super) fn file<'a>(
    folder: BorrowedFd<'_>,
    name: &CStr,
    ledger: &Ledger<FileKey>,
    held: impl Fn() -> &'a Held,
    swept: &mut Swept,
) {
    let Ok(key) = FileKey::of(folder, name) else { return };
    if !ledger.is_over(&key) {
        return;
    }
    let Ok(seen) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return };
    if FileType::from_raw_mode(seen.st_mode) == FileType::Directory {
        return;
    }
    if held().holds(seen.st_ino) {
        swept.held += 1;
        return;
    }
    // What has this name now is still that file.
    if FileKey::of(folder, name).is_ok_and(|now| now == key) {
        swept.add(unlinkat(folder, name, AtFlags::empty()).map_err(io::Error::from));
    }
}

/// Removes what is over of the IPC namespace that this thread is in, and is not in use.
pub(super) fn sysv(ledger: &Ledger<SysvKey>, places: &Places) -> io::Result<Swept> {
    let mut swept = Swept::default();
    let (all, _) = sysv::list(limits::SYSV_THINGS)?;
    for thing in all.iter().filter(|thing| ledger.is_over(&key_of(thing))) {
        if is_used(thing, ledger.here(), places)? {
            swept.held += 1;
        } else {
            swept.add(sysv::remove(thing.kind, thing.id));
        }
    }
    Ok(swept)
}

/// Whether a process of a member that is here uses it, as far as the kernel tells: has it attached, waits for it, used it last.
fn is_used(thing: &Thing, here: &BTreeSet<PodUid>, places: &Places) -> io::Result<bool> {
    let is_here = |users: &[u32]| users.iter().any(|pid| places(*pid).is_some_and(|pod| here.contains(&pod)));
    match thing.kind {
        Kind::Segment => Ok(thing.attached > 0),
        Kind::Queue => Ok(is_here(&thing.users)),
        Kind::Semaphores if thing.size > u64::from(limits::SEMAPHORES_LOOKED_AT) => Ok(true),
        Kind::Semaphores => {
            let (users, waiting) =
                match sysv::semaphore_users(thing.id, thing.size, limits::SEMAPHORES_LOOKED_AT) {
                    Ok(found) => found,
                    // It is gone.
                    Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                        return Ok(true);
                    }
                    Err(e) => return Err(e),
                };
            Ok(waiting > 0 || is_here(&users))
        }
    }
}
