//! What a device node is, which a container is to get.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use gpu_handoff_nri::view::Device;
use rustix::fs::{major, minor};

/// Who may do what with a node: as the driver makes them. What a container may do is said beside, by its cgroup.
const MODE: u32 = 0o666;

/// A node of the machine's `/dev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// A character device: the runtime makes the same one in the container, and lets it be used.
    Character(Device),
    /// Anything else, as a simulated driver has: it is mounted.
    File,
}

/// Looks at it, without following links.
///
/// # Errors
/// When it is not there.
pub(super) fn node_at(path: &Path) -> io::Result<Node> {
    let file = std::fs::symlink_metadata(path)?;
    if !file.file_type().is_char_device() {
        return Ok(Node::File);
    }
    let path = path.to_str().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    let (major, minor) = (i64::from(major(file.rdev())), i64::from(minor(file.rdev())));
    Ok(Node::Character(Device {
        path: path.to_owned(),
        kind: "c".to_owned(),
        major,
        minor,
        mode: Some(MODE),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_files_are_told_apart() {
        let Node::Character(null) = node_at(Path::new("/dev/null")).unwrap() else {
            panic!("it is a device")
        };
        assert_eq!((null.major, null.minor, null.mode), (1, 3, Some(0o666)));
        assert_eq!(node_at(Path::new("/proc/self/stat")).unwrap(), Node::File);
        assert!(node_at(Path::new("/dev/nothing-of-that-name")).is_err());
    }
}
