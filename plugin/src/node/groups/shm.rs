//! A group's `/dev/shm`: a tmpfs of a size, in which nothing is a program, a device or set-uid.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount as mount_once, mount_remount, unmount};

use super::mounts::Mounted;

/// What the kernel's list of mounts calls ours.
const SOURCE: &str = "gpu-handoff";
/// For so many bytes there may be a file: what a file costs beside what is in it does not count towards the size.
const BYTES_OF_A_FILE: u64 = 4_096;
/// So many there may be in any case.
const LEAST_FILES: u64 = 1_024;

/// Mounts one. Gives its number, as `stat` has it.
pub(super) fn mount(place: &Path, bytes: u64) -> io::Result<u64> {
    let options = format!("mode=1777,{}", size(bytes));
    let options = std::ffi::CString::new(options).map_err(io::Error::from)?;
    mount_once(SOURCE, place, "tmpfs", flags(), options.as_c_str())?;
    match std::fs::metadata(place) {
        Ok(seen) => Ok(seen.dev()),
        Err(e) => {
            // Not as it was to be: then not at all.
            unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
            Err(e)
        }
    }
}

/// Makes one larger, with all that is in it.
pub(super) fn grow(place: &Path, bytes: u64) -> io::Result<()> {
    Ok(mount_remount(place, flags(), size(bytes))?)
}

/// Whether a mount is one of these.
pub(super) fn is_ours(mount: &Mounted) -> bool {
    (mount.file_system.as_str(), mount.source.as_str(), mount.root.as_str()) == ("tmpfs", SOURCE, "/")
}

/// The size and the number of one that is there.
pub(super) fn look(place: &Path) -> io::Result<(u64, u64)> {
    let seen = rustix::fs::statvfs(place)?;
    Ok((seen.f_blocks.saturating_mul(seen.f_frsize), std::fs::metadata(place)?.dev()))
}

fn flags() -> MountFlags {
    MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC
}

/// No size at all would be no bound.
fn size(bytes: u64) -> String {
    let files = (bytes / BYTES_OF_A_FILE).max(LEAST_FILES);
    format!("size={},nr_inodes={files}", bytes.max(1))
}
