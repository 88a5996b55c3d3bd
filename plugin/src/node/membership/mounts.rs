//! A slot's folder at its place in a pod: a bind mount that is only read.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount as unmount_once};

/// More mounts on top of each other than this are not ours.
const MOST_LAYERS: usize = 8;

/// Has the folder there, once.
pub(super) fn mount(folder: &Path, target: &Path) -> io::Result<()> {
    make(target)?;
    if !is_same(folder, target)? {
        mount_bind(folder, target)?;
    } else if !is_mounted(target)? {
        return Ok(());
    }
    // Also of what was mounted before a crash, which may have come between the two steps.
    let flags =
        MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if let Err(e) = mount_remount(target, flags, "") {
        // Not as it was to be: then not at all.
        unmount(target)?;
        return Err(e.into());
    }
    Ok(())
}

/// The kubelet makes the folder that it is in.
fn make(target: &Path) -> io::Result<()> {
    match std::fs::create_dir(target) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Whether anything is mounted there.
pub(super) fn is_mounted(target: &Path) -> io::Result<bool> {
    let seen = rustix::fs::statx(CWD, target, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
    Ok(seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Whether the folder is there.
pub(super) fn is_same(folder: &Path, target: &Path) -> io::Result<bool> {
    let (one, other) = (std::fs::metadata(folder)?, std::fs::symlink_metadata(target)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Has nothing there, not even the place. Well where there was nothing.
pub(super) fn unmount(target: &Path) -> io::Result<()> {
    for _ in 0..MOST_LAYERS {
        match is_mounted(target) {
            Ok(true) => unmount_once(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?,
            Ok(false) => break,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    match std::fs::remove_dir(target) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
