//! Who makes which file on a file system, by the kernel's own word: fanotify with the handles of files and pidfds of processes.
//!
//! A file is known by its handle, which holds the inode's number and generation: no other file of that file system has it,
//! ever. No path is read, no file is opened, so whoever writes there cannot have anybody look at something else.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `MAX_HANDLE_SZ` of `linux/exportfs.h`: the longest handle of a file, in bytes.
const HANDLE_BYTES: usize = 128;
/// `AT_HANDLE_FID` of `linux/fcntl.h` (Linux 6.5).
const AT_HANDLE_FID: libc::c_int = 0x200;
/// What is read at once. The longest event is shorter by far: a name, two handles and a pidfd.
const READ_BYTES: usize = 16 << 10;
/// The lengths of what events consist of: metadata, the head of a piece, the number of a file system.
const METADATA_BYTES: usize = 24;
const HEAD_BYTES: usize = 4;
const FSID_BYTES: usize = 8;

/// A file of one file system.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey(Box<[u8]>);

impl FileKey {
    /// Of a handle's type and bytes.
    fn new(kind: i32, handle: &[u8]) -> Self {
        Self(kind.to_ne_bytes().iter().chain(handle).copied().collect())
    }

    /// The file of this name in a folder; a link is not followed.
    ///
    /// # Errors
    /// What `name_to_handle_at` answers: also that the file system has no handles (`EOPNOTSUPP`).
    pub fn of(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<Self> {
        #[repr(C)]
        struct Handle {
            bytes: libc::c_uint,
            kind: libc::c_int,
            handle: [u8; HANDLE_BYTES],
        }
        let mut found = Handle { bytes: 0, kind: 0, handle: [0; HANDLE_BYTES] };
        let mut mount = 0;
        // Of some file systems a file has a handle by which nobody can open it.
        let mut outcome = Ok(());
        for flags in [0, AT_HANDLE_FID] {
            found.bytes = 128;
            let into = (&raw mut found).cast();
            // SAFETY: `name` ends with a zero byte; `found` begins as a `file_handle` does, says how many bytes there are for
            // the handle behind that, and lives; so does `mount`, which is an int.
            let done = unsafe {
                libc::name_to_handle_at(folder.as_raw_fd(), name.as_ptr(), into, &raw mut mount, flags)
            };
            outcome = if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            if !outcome.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EOPNOTSUPP)) {
                break;
            }
        }
        outcome?;
        let length = usize::try_from(found.bytes).unwrap_or(HANDLE_BYTES).min(HANDLE_BYTES);
        Ok(Self::new(found.kind, &found.handle[..length]))
    }
}

/// What the kernel tells.
#[derive(Debug)]
pub enum Event {
    /// A process made a file, a folder, a link or another name of one, or gave one another name.
    Made {
        /// The file.
        file: FileKey,
        /// Who it was; `None`: it had ended when this was read.
        by: Option<Maker>,
    },
    /// A file is no more: it has no name, and nobody has it open.
    Gone(FileKey),
    /// More was told than was read in time: some of it is lost.
    Lost,
}

/// A process that made a file.
#[derive(Debug)]
pub struct Maker {
    /// Its number in our PID namespace: its own for as long as the pidfd says that it lives.
    pub pid: u32,
    /// Itself.
    pub pidfd: OwnedFd,
}

/// What is told of one file system.
#[derive(Debug)]
pub struct Watch {
    queue: OwnedFd,
    read: VecDeque<Event>,
}

impl Watch {
    /// Watches the file system that `folder` is on.
    ///
    /// # Errors
    /// What `fanotify_init` answers (it takes `CAP_SYS_ADMIN` and Linux 5.17; `EMFILE` where there are
    /// `/proc/sys/fs/fanotify/max_user_groups` already), and `fanotify_mark`.
    pub fn of(folder: BorrowedFd<'_>) -> io::Result<Self> {
        let what = libc::FAN_CREATE | libc::FAN_MOVED_TO | libc::FAN_DELETE_SELF | libc::FAN_ONDIR;
        Self::new(folder, libc::FAN_MARK_FILESYSTEM, what)
    }

    /// Watches one folder, in which no file has two names: what has none any more is gone. For file systems whose files nobody
    /// can open by their handles.
    ///
    /// # Errors
    /// As [`Self::of`]; before Linux 6.6 that the file system has no handles at all (`EOPNOTSUPP`, `ENODEV`).
    pub fn of_folder(folder: BorrowedFd<'_>) -> io::Result<Self> {
        Self::new(folder, 0, libc::FAN_CREATE | libc::FAN_DELETE)
    }

    fn new(folder: BorrowedFd<'_>, how: libc::c_uint, what: u64) -> io::Result<Self> {
        let flags = libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_DFID_NAME_TARGET
            | libc::FAN_REPORT_PIDFD;
        let of_files = libc::c_uint::try_from(libc::O_RDONLY | libc::O_CLOEXEC).unwrap_or(0);
        // SAFETY: it takes two numbers.
        let queue = owned(unsafe { libc::fanotify_init(flags, of_files) })?;
        let how = libc::FAN_MARK_ADD | how;
        // SAFETY: both descriptors are open; without a path it is `folder` itself that is meant, and none is read.
        let done = unsafe {
            libc::fanotify_mark(queue.as_raw_fd(), how, what, folder.as_raw_fd(), std::ptr::null())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { queue, read: VecDeque::new() })
    }

    /// What has been told next; `None`: nothing for now. Then the descriptor ([`AsFd`]) becomes readable when something is.
    ///
    /// # Errors
    /// What `read` answers, and where it does not read as it should.
    #[expect(clippy::should_implement_trait, reason = "it may fail, and goes on after its end")]
    pub fn next(&mut self) -> io::Result<Option<Event>> {
        if self.read.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let length = match rustix::io::read(&self.queue, &mut bytes) {
                Ok(length) => length,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            parse(&bytes[..length], &mut self.read)?;
        }
        Ok(self.read.pop_front())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A piece of what is read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| cut())
    }

    fn handle(&mut self) -> io::Result<FileKey> {
        self.take(FSID_BYTES)?;
        let length = u32::from_ne_bytes(self.array()?);
        let kind = i32::from_ne_bytes(self.array()?);
        let length = usize::try_from(length).ok().filter(|length| *length <= HANDLE_BYTES).ok_or_else(cut)?;
        Ok(FileKey::new(kind, self.take(length)?))
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what fanotify tells does not read as it should")
}

/// Reads all events of a buffer. All descriptors that came with it are owned first, whatever else is wrong.
fn parse(bytes: &[u8], into: &mut VecDeque<Event>) -> io::Result<()> {
    let (mut rest, mut outcome) = (Bytes(bytes), Ok(()));
    while !rest.0.is_empty() {
        let length = rest.0.first_chunk().map(|length| u32::from_ne_bytes(*length)).ok_or_else(cut)?;
        let length = usize::try_from(length).map_err(|_| cut())?;
        let event = event(Bytes(rest.take(length.max(METADATA_BYTES))?));
        match event {
            Ok(event) => into.extend(event),
            Err(e) => outcome = Err(e),
        }
    }
    outcome
}

/// Reads one event.
fn event(mut bytes: Bytes<'_>) -> io::Result<Option<Event>> {
    bytes.take(4)?;
    let [version, _reserved] = bytes.array()?;
    let metadata = usize::from(u16::from_ne_bytes(bytes.array()?));
    let mask = u64::from_ne_bytes(bytes.array()?);
    let _no_file = bytes.take(4)?;
    let pid = i32::from_ne_bytes(bytes.array()?);
    bytes.take(metadata.checked_sub(METADATA_BYTES).ok_or_else(cut)?)?;
    let (mut file, mut folder, mut pidfd) = (None, None, None);
    let mut outcome = if version == libc::FANOTIFY_METADATA_VERSION { Ok(()) } else { Err(cut()) };
    while !bytes.0.is_empty() {
        let [kind, _pad] = bytes.array()?;
        let length = usize::from(u16::from_ne_bytes(bytes.array()?));
        let mut piece = Bytes(bytes.take(length.checked_sub(HEAD_BYTES).ok_or_else(cut)?)?);
        match kind {
            libc::FAN_EVENT_INFO_TYPE_PIDFD => {
                let descriptor = i32::from_ne_bytes(piece.array()?);
                pidfd = (descriptor >= 0).then(|| owned(descriptor)).transpose()?;
            }
            libc::FAN_EVENT_INFO_TYPE_FID => file = piece.handle().map_err(|e| outcome = Err(e)).ok(),
            // A folder's own end is told of itself.
            libc::FAN_EVENT_INFO_TYPE_DFID | libc::FAN_EVENT_INFO_TYPE_DFID_NAME => {
                folder = piece.handle().map_err(|e| outcome = Err(e)).ok();
            }
            _ => {}
        }
    }
    outcome?;
    if mask & libc::FAN_Q_OVERFLOW != 0 {
        return Ok(Some(Event::Lost));
    }
    if mask & (libc::FAN_DELETE_SELF | libc::FAN_DELETE) != 0 {
        return Ok(file.or(folder).map(Event::Gone));
    }
    let by = pidfd.zip(u32::try_from(pid).ok()).map(|(pidfd, pid)| Maker { pid, pidfd });
    Ok(file.map(|file| Event::Made { file, by }))
}

#[cfg(test)]
mod tests;
