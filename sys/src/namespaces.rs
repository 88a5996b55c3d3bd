//! IPC namespaces that no process has to be in: one is made by a thread of its own, and lives by a bind mount of its file.
//!
//! A namespace belongs to a thread, not to a process, so nothing of this changes what the rest of the process is in: each of
//! these threads ends with what it was started for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen, mount_bind,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The IPC namespace of a thread.
const OWN: &str = "/proc/thread-self/ns/ipc";
/// `NSFS_MAGIC` of `linux/magic.h`: what the file of a namespace is of.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// Makes an IPC namespace and binds its file to `pin`, which is an empty file. It lives until nobody is in it and `pin` is
/// unmounted.
///
/// # Errors
/// What `unshare` (it takes `CAP_SYS_ADMIN`) and `mount` answer, and where no thread can be started.
pub fn pin_new_ipc(pin: &Path) -> io::Result<()> {
    on_own_thread(|| {
        // SAFETY: no descriptor table is unshared (`CLONE_FILES` is not passed), so no descriptor loses its meaning; the IPC
        // namespace alone changes, and for this thread alone, which has used nothing of the one before.
        unsafe { unshare_unsafe(UnshareFlags::NEWIPC)? };
        Ok(mount_bind(OWN, pin)?)
    })?
}

/// The number of the namespace whose file is bound there; `None`: there is none of a namespace.
///
/// # Errors
/// What `open`, `fstatfs` and `fstat` answer.
pub fn number(pin: &Path) -> io::Result<Option<u64>> {
    let file = rustix::fs::open(pin, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if u64::try_from(rustix::fs::fstatfs(&file)?.f_type) != Ok(NSFS_MAGIC) {
        return Ok(None);
    }
    Ok(Some(rustix::fs::fstat(&file)?.st_ino))
}

/// Does `work` within the IPC namespace whose file is bound to `pin`, on a thread of its own, and waits for it.
///
/// # Errors
/// When `pin` is no file of an IPC namespace, one may not be entered, or no thread can be started.
pub fn within<T: Send>(pin: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let file = rustix::fs::open(pin, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    on_own_thread(|| {
        let ipc = LinkNameSpaceType::InterProcessCommunication;
        move_into_link_name_space(file.as_fd(), Some(ipc))?;
        Ok(work())
    })?
}

/// The folder of the POSIX message queues of the IPC namespace whose file is bound to `pin`, mounted nowhere. As long as it
/// is open the namespace lives.
///
/// # Errors
/// As [`within`], and what the calls answer that make a mount.
pub fn message_queues(pin: &Path) -> io::Result<OwnedFd> {
    within(pin, || {
        let file_system = fsopen(c"mqueue", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(file_system.as_fd())?;
        let safe = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(file_system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, safe)?;
        // What a mount is made as cannot be read.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&mount, c".", flags, Mode::empty())?)
    })?
}

/// A thread that ends with what it is started for. A panic in it is one here.
fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, work)?;
        thread.join().or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::apart;

    fn own_number() -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(OWN).unwrap().ino()
    }

    #[test]
    fn a_pinned_namespace_is_entered_by_one_thread_and_lives_without_any() {
        if !apart("namespaces::tests::a_pinned_namespace_is_entered_by_one_thread_and_lives_without_any") {
            return;
        }
        let place = crate::testing::Place::new("pin");
        let pin = place.path().join("ipc");
        std::fs::write(&pin, "").unwrap();
        assert_eq!(number(&pin).unwrap(), None);
        let before = own_number();
        pin_new_ipc(&pin).unwrap();
        let pinned = number(&pin).unwrap().unwrap();
        assert_ne!(pinned, before);
        for _ in 0..2 {
            assert_eq!(within(&pin, own_number).unwrap(), pinned);
        }
        assert_eq!(own_number(), before, "this thread has stayed where it was");
        rustix::mount::unmount(&pin, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(number(&pin).unwrap(), None);
        // One of another kind.
        mount_bind("/proc/self/ns/net", &pin).unwrap();
        assert_eq!(within(&pin, || ()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        rustix::mount::unmount(&pin, rustix::mount::UnmountFlags::DETACH).unwrap();
    }

    #[test]
    fn what_is_no_namespace_is_not_entered() {
        let place = crate::testing::Place::new("no-pin");
        let file = place.path().join("file");
        assert_eq!(within(&file, || ()).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, "").unwrap();
        assert_eq!(within(&file, || ()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let link = place.path().join("link");
        std::os::unix::fs::symlink(OWN, &link).unwrap();
        assert_eq!(within(&link, || ()).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }
}
