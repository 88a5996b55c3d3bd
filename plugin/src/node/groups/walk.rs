//! Going through all files of a tmpfs that pods write to, a few at a time: only beneath its root, and never through a link or
//! onto something that is mounted there.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use gpu_handoff_sys::fanotify::FileKey;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2};

use crate::limits;

/// Where one is.
#[derive(Debug)]
pub(super) struct Walk {
    /// The folders that it is in, from the root down.
    stack: Vec<Dir>,
}

impl Walk {
    /// From the root of a file system.
    pub(super) fn new(root: &OwnedFd) -> io::Result<Self> {
        Ok(Self { stack: vec![Dir::read_from(root)?] })
    }

    /// Goes on for so many files and folders, each of which is told with its folder and name. Whether there are more.
    pub(super) fn go_on(
        &mut self,
        most: usize,
        mut found: impl FnMut(BorrowedFd<'_>, &CStr),
    ) -> io::Result<bool> {
        for _ in 0..most {
            let Some(folder) = self.stack.last_mut() else { return Ok(false) };
            let Some(entry) = folder.next() else {
                self.stack.pop();
                continue;
            };
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let below = match entry.file_type() {
                FileType::Directory if self.stack.len() < limits::SWEEP_DEPTH => {
                    self.stack.last().map(|folder| open_below(folder.fd()?, entry.file_name()))
                }
                _ => None,
            };
            if let Some(folder) = self.stack.last() {
                found(folder.fd()?, entry.file_name());
            }
            // A folder that has gone, or become something else, is none.
            if let Some(Ok(below)) = below {
                self.stack.push(Dir::new(below)?);
            }
        }
        Ok(!self.stack.is_empty())
    }
}

/// All that there is; `None`: more than is looked at.
pub(super) fn all(root: &OwnedFd) -> io::Result<Option<Vec<FileKey>>> {
    let (mut walk, mut keys) = (Walk::new(root)?, Vec::new());
    let more = walk.go_on(limits::LEDGER_THINGS, |folder, name| keys.extend(FileKey::of(folder, name)))?;
    Ok((!more).then_some(keys))
}

/// The folder that a file system is mounted at.
pub(super) fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, root, flags, Mode::empty())?)
}

fn open_below(folder: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let only = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    openat2(folder.as_fd(), name, flags, Mode::empty(), only)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn all_is_found_a_few_at_a_time_and_nothing_beyond() {
        let place = tempfile::tempdir().unwrap();
        let (root, outside) = (place.path().join("root"), place.path().join("outside"));
        for folder in [&root, &outside] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(outside.join("secret"), "").unwrap();
        let mut wanted = BTreeSet::new();
        let long = "x".repeat(255);
        for name in ["file", "a\nb", &long, "deep/er/file"] {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            wanted.insert(path.file_name().unwrap().to_os_string());
        }
        drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap());
        symlink(&outside, root.join("link")).unwrap();
        symlink("/proc/self/root", root.join("deep/magic")).unwrap();
        wanted.extend(["socket", "link", "magic", "deep", "er"].map(Into::into));
        for most in [1, 3, 1_000] {
            let (mut walk, mut found) = (Walk::new(&open_root(&root).unwrap()).unwrap(), BTreeSet::new());
            let mut turns = 0;
            while walk
                .go_on(most, |_, name| {
                    use std::os::unix::ffi::OsStrExt;
                    found.insert(std::ffi::OsStr::from_bytes(name.to_bytes()).to_os_string());
                })
                .unwrap()
            {
                turns += 1;
            }
            assert_eq!(found, wanted);
            assert!(turns >= 9 / most, "{turns}");
        }
        assert!(open_root(&root.join("link")).is_err() && open_root(&root.join("file")).is_err());
    }

    #[test]
    fn folders_that_are_too_deep_are_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let deep = (0..2 * limits::SWEEP_DEPTH).fold(place.path().to_path_buf(), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).unwrap();
        let mut found = 0;
        while Walk::new(&open_root(place.path()).unwrap()).unwrap().go_on(1_000, |_, _| found += 1).unwrap() {
        }
        assert_eq!(found, limits::SWEEP_DEPTH);
    }
}
