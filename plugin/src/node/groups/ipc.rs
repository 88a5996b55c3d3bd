//! A group's IPC namespace: nobody has to be in it, a file keeps it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gpu_handoff_sys::namespaces;

use super::mounts::Mounted;

/// Makes one that is kept by a file at this place. Gives its number.
pub(super) fn pin(place: &Path) -> io::Result<u64> {
    drop(OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(place)?);
    namespaces::pin_new_ipc(place)?;
    number(place)
}

/// Whether a mount keeps one.
pub(super) fn is_one(mount: &Mounted) -> bool {
    mount.file_system == "nsfs" && mount.root.starts_with("ipc:[")
}

/// The number of one that is kept there.
pub(super) fn number(place: &Path) -> io::Result<u64> {
    namespaces::number(place)?.ok_or_else(|| io::Error::other("no file of a namespace"))
}
