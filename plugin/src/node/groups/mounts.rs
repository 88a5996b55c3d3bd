//! Where groups' things are mounted: a folder for each group in one that root alone may enter, in it the tmpfs that is its
//! `/dev/shm`, and the file that keeps its IPC namespace.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use tracing::warn;

use super::shares::Part;
use super::{ipc, shm};

/// More mounts than this at one place of ours are not taken down at once.
const MOST_LAYERS: usize = 64;
/// Letters of the name of a group's folder.
const FOLDER_LETTERS: usize = 32;

/// What can be done with mounts, by the names of groups' folders.
pub(super) trait Mounts {
    /// What there is.
    fn found(&self) -> io::Result<Vec<Found>>;
    /// Where a thing is.
    fn path(&self, folder: &str, part: Part) -> PathBuf;
    /// Makes a `/dev/shm`. Gives its file system's number.
    fn shm(&mut self, folder: &str, bytes: u64) -> io::Result<u64>;
    /// Makes it larger.
    fn grow(&mut self, folder: &str, bytes: u64) -> io::Result<()>;
    /// Makes an IPC namespace. Gives its number.
    fn ipc(&mut self, folder: &str) -> io::Result<u64>;
    /// Has nothing there of these parts, whatever is mounted, and no folder where it is empty. Well where there was nothing.
    fn take_down(&mut self, folder: &str, parts: &[Part]) -> io::Result<()>;
}

/// What is in a group's folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) folder: String,
    /// The size and the number of a tmpfs of ours.
    pub(super) shm: Option<(u64, u64)>,
    /// The number of a namespace.
    pub(super) ipc: Option<u64>,
    /// Something else is mounted there.
    pub(super) other: bool,
}

/// The kernel's own.
#[derive(Debug)]
pub(super) struct Kernel {
    folder: PathBuf,
}

impl Kernel {
    /// In this folder, which is made, and closed to others.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        // As the kernel names it in its list of mounts.
        Ok(Self { folder: folder.canonicalize()? })
    }

    /// Whether what is mounted here is seen by container runtimes outside of this process's mount namespace.
    pub(super) fn is_seen_outside(&self) -> io::Result<bool> {
        let all = list()?;
        let over = all.iter().filter(|mount| self.folder.starts_with(&mount.at));
        // The longest path of them, and of several there the last one.
        Ok(over.max_by_key(|mount| mount.at.as_os_str().len()).is_some_and(|mount| mount.is_shared))
    }

    fn group(&self, folder: &str) -> PathBuf {
        self.folder.join(folder)
    }

    /// Has nothing mounted at a place or below.
    fn unmount_all(place: &Path) -> io::Result<()> {
        for _ in 0..MOST_LAYERS {
            let all = list()?;
            // What was mounted last lies on top.
            let Some(last) = all.iter().rev().find(|mount| mount.at.starts_with(place)) else {
                return Ok(());
            };
            unmount(&last.at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        }
        Err(io::Error::other(format!("more than {MOST_LAYERS} mounts are at {}", place.display())))
    }

    fn what_is_in(&self, name: &str, mounts: &[Mounted]) -> Found {
        let folder = self.group(name);
        let mut found = Found { folder: name.to_owned(), ..Found::default() };
        let mut there: BTreeMap<&Path, Vec<&Mounted>> = BTreeMap::new();
        for mount in mounts.iter().filter(|mount| mount.at.starts_with(&folder)) {
            there.entry(&mount.at).or_default().push(mount);
        }
        for (at, layers) in there {
            let is = |part| at == self.path(name, part);
            match layers[..] {
                [one] if is(Part::Shm) && shm::is_ours(one) => found.shm = shm::look(at).ok(),
                [one] if is(Part::Ipc) && ipc::is_one(one) => found.ipc = ipc::number(at).ok(),
                _ => found.other = true,
            }
        }
        found
    }
}

impl Mounts for Kernel {
    fn found(&self) -> io::Result<Vec<Found>> {
        let (mounts, mut found) = (list()?, Vec::new());
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().into_string().ok().filter(|name| is_folder_name(name));
            match name.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                Some(name) => found.push(self.what_is_in(&name, &mounts)),
                None => warn!(path = %entry.path().display(), "this is of no group: it is left alone"),
            }
        }
        Ok(found)
    }

    fn path(&self, folder: &str, part: Part) -> PathBuf {
        self.group(folder).join(match part {
            Part::Shm => "shm",
            Part::Ipc => "ipc",
        })
    }

    fn shm(&mut self, folder: &str, bytes: u64) -> io::Result<u64> {
        make_folder(&self.group(folder))?;
        let place = self.path(folder, Part::Shm);
        make_folder(&place)?;
        shm::mount(&place, bytes)
    }

    fn grow(&mut self, folder: &str, bytes: u64) -> io::Result<()> {
        shm::grow(&self.path(folder, Part::Shm), bytes)
    }

    fn ipc(&mut self, folder: &str) -> io::Result<u64> {
        make_folder(&self.group(folder))?;
        ipc::pin(&self.path(folder, Part::Ipc))
    }

    fn take_down(&mut self, folder: &str, parts: &[Part]) -> io::Result<()> {
        let group = self.group(folder);
        let all = parts.contains(&Part::Shm) && parts.contains(&Part::Ipc);
        if all {
            Self::unmount_all(&group)?;
        }
        for part in parts {
            let place = self.path(folder, *part);
            Self::unmount_all(&place)?;
            unless_gone(match part {
                Part::Shm => std::fs::remove_dir(&place),
                Part::Ipc => std::fs::remove_file(&place),
            })?;
        }
        if all { unless_gone(std::fs::remove_dir(&group)) } else { Ok(()) }
    }
}

fn is_folder_name(name: &str) -> bool {
    name.len() == FOLDER_LETTERS && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A mount of this process's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    /// What of its file system is mounted: of a namespace's file its kind and number.
    pub(super) root: String,
    pub(super) at: PathBuf,
    /// Namespaces beside this one see what is mounted below it.
    pub(super) is_shared: bool,
    pub(super) file_system: String,
    pub(super) source: String,
}

fn list() -> io::Result<Vec<Mounted>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.filter_map(parse).collect())
}

/// A line of `/proc/PID/mountinfo`: number, parent's number, device, root, place, options, further fields up to a dash, file
/// system, source, options.
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| Some(String::from_utf8_lossy(field).into_owned());
    let root = fields.nth(3).and_then(text)?;
    let at = PathBuf::from(OsString::from_vec(unescaped(fields.next()?)));
    let _options = fields.next()?;
    let mut is_shared = false;
    for field in fields.by_ref().take_while(|field| *field != b"-") {
        is_shared |= field.starts_with(b"shared:");
    }
    let (file_system, source) = (fields.next().and_then(text)?, fields.next().and_then(text)?);
    at.as_os_str().as_bytes().starts_with(b"/").then_some(Mounted {
        root,
        at,
        is_shared,
        file_system,
        source,
    })
}

/// Blanks, line ends and backslashes stand there as `\ooo`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte = digits.and_then(|d| u8::from_str_radix(str::from_utf8(d).ok()?, 8).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests;
