//! What a descriptor looks like without the driver's help: enough to tell it from most things that are no GPU memory.
//!
//! An exported descriptor of the driver is a character device with one number, whatever file system the exporter's
//! container has it on: devices are compared by type and number alone. Anything else is compared by the whole of its mode
//! and by its file system. The measure is memory that the worker exported itself, never a number that is written here.
//!
//! Looking at a stranger's file can block, so it is for the lane of the member that sent it.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, fstat};

/// What the kernel says of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// A device, by its number.
    Device {
        /// Whether it is one of characters.
        of_characters: bool,
        major: u32,
        minor: u32,
    },
    /// Anything else.
    File {
        /// Type and permissions, as in `st_mode`.
        mode: u32,
        /// The file system, as in `st_dev`.
        on: (u32, u32),
    },
}

impl Look {
    /// Looks at an open file.
    ///
    /// # Errors
    /// What `fstat` answers.
    pub(super) fn at(file: BorrowedFd<'_>) -> io::Result<Self> {
        let found = fstat(file)?;
        let pair = |number| (rustix::fs::major(number), rustix::fs::minor(number));
        let kind = FileType::from_raw_mode(found.st_mode);
        Ok(match kind {
            FileType::CharacterDevice | FileType::BlockDevice => {
                let (major, minor) = pair(found.st_rdev);
                Self::Device { of_characters: kind == FileType::CharacterDevice, major, minor }
            }
            _ => Self::File { mode: found.st_mode, on: pair(found.st_dev) },
        })
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { of_characters, major, minor } => {
                let kind = if *of_characters { "character" } else { "block" };
                write!(f, "{kind} device {major}:{minor}")
            }
            Self::File { mode, on: (major, minor) } => {
                let kind = match FileType::from_raw_mode(*mode) {
                    FileType::RegularFile => "regular file",
                    FileType::Directory => "directory",
                    FileType::Symlink => "symbolic link",
                    FileType::Fifo => "pipe",
                    FileType::Socket => "socket",
                    _ => "file of no type",
                };
                write!(f, "{kind} of mode {mode:o} on device {major}:{minor}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
    use std::fs::File;
    use std::os::fd::AsFd;

    fn look(file: impl AsFd) -> Look {
        Look::at(file.as_fd()).unwrap()
    }

    #[test]
    fn devices_are_told_by_their_number() {
        let null = look(File::open("/dev/null").unwrap());
        assert_eq!(null, look(File::open("/dev/null").unwrap()));
        assert_ne!(null, look(File::open("/dev/zero").unwrap()));
        assert_eq!(null.to_string(), "character device 1:3");
    }

    #[test]
    fn files_are_told_by_mode_and_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name| {
            let file = File::create(folder.path().join(name)).unwrap();
            fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::SVTX).unwrap();
            file
        };
        let (one, other) = (look(file("one")), look(file("other")));
        assert_eq!(one, other);
        assert_ne!(one, look(File::open(folder.path()).unwrap()));
        let memory = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        fchmod(&memory, Mode::RUSR | Mode::WUSR | Mode::SVTX).unwrap();
        assert_ne!(one, look(&memory), "another file system");
        assert!(one.to_string().starts_with("regular file of mode 101600 on device "), "{one}");
    }
}
