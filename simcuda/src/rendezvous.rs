//! The directory that stands for the machine's GPUs: whoever is given it has them, as with a device node.
//!
//! Nothing else is shared between simulated processes, so IPC, PID, network, mount and user namespaces make no
//! difference to memory, just as measured. Modes follow the directory's own: a directory open to all users gives files
//! open to all users.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fchmod, fstat, mkdirat, openat};
use rustix::io::Errno;

/// The directory and the two of its folders that every process uses, open.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    root: OwnedFd,
    alloc: OwnedFd,
    process: OwnedFd,
    mode: Mode,
    file_mode: Mode,
}

impl Rendezvous {
    /// Opens the directory, making it (and its folders) if missing. With `own`, it must belong to this user: the
    /// default directory stands in a place where anyone may make one.
    pub(crate) fn create(path: &Path, own: bool) -> rustix::io::Result<Self> {
        match mkdirat(CWD, path, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let root = open_dir(CWD, path)?;
        let stat = fstat(&root)?;
        if own && stat.st_uid != rustix::process::getuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
        for name in ["alloc", "clients"] {
            match mkdirat(&root, name, mode) {
                // The umask must not narrow what the directory's owner allowed.
                Ok(()) => fchmod(open_dir(&root, name)?, mode)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Self::from_root(root)
    }

    /// Opens a directory for looking at it from outside; `None` if no simulated process ever used it.
    pub(crate) fn open(path: &Path) -> rustix::io::Result<Option<Self>> {
        match Self::from_root(open_dir(CWD, path)?) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    fn from_root(root: OwnedFd) -> rustix::io::Result<Self> {
        let mode = Mode::from_raw_mode(fstat(&root)?.st_mode & 0o777);
        let file_mode = Mode::from_raw_mode(mode.as_raw_mode() & 0o666);
        Ok(Self {
            mode,
            alloc: open_dir(&root, "alloc")?,
            process: open_dir(&root, "clients")?,
            root,
            file_mode,
        })
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Memory files.
    pub(crate) fn alloc(&self) -> BorrowedFd<'_> {
        self.alloc.as_fd()
    }

    /// Process records.
    pub(crate) fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) const fn file_mode(&self) -> Mode {
        self.file_mode
    }

    /// The mode of memory files: that of other files and the simulator's mark, the sticky bit.
    ///
    /// A descriptor of the real driver is a character device 195:255, which `fstat` tells from anything that a program
    /// has by accident. On a regular file the sticky bit has no meaning, so nobody sets it: a memfd, a temporary file and
    /// a file beside the memory itself lack it. It is no protection: whoever wants to can set it on a file of his own, and the import then
    /// finds that the file is none of the machine's memory.
    pub(crate) fn memory_mode(&self) -> Mode {
        self.file_mode | Mode::SVTX
    }
}

pub(crate) fn open_dir(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
