//! Which files of a group's `/dev/shm` processes of its members map or have open, by what `/proc` says of them in text: no
//! file of a pod's is touched, so none can keep anybody waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use gpu_handoff_protocol::PodUid;

use crate::limits;

/// Of which pod a process is, by its number.
pub(in crate::node) type Places = Box<dyn Fn(u32) -> Option<PodUid> + Send + Sync>;

/// The inodes of one file system that are held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    inodes: BTreeSet<u64>,
    /// Not all could be looked at, so anything may be.
    all: bool,
}

impl Held {
    /// Whether this one may be.
    pub(super) fn holds(&self, inode: u64) -> bool {
        self.all || self.inodes.contains(&inode)
    }
}

/// What the processes of these pods hold of the file system with this number.
pub(super) fn held(device: u64, here: &BTreeSet<PodUid>, places: &Places) -> Held {
    let mut held = Held::default();
    let looked = processes().and_then(|all| {
        let mounts = Mounts::of(&all);
        let of_members = all.into_iter().filter(|pid| places(*pid).is_some_and(|pod| here.contains(&pod)));
        for (n, pid) in of_members.enumerate() {
            held.all |= n >= limits::HOLDERS;
            if held.all {
                break;
            }
            unless_gone(of_process(pid, device, &mounts, &mut held))?;
        }
        Ok(())
    });
    held.all |= looked.is_err();
    held
}

/// The file systems of all mounts of all namespaces that processes are in, by the mounts' numbers, which no two have.
struct Mounts(BTreeMap<u64, u64>);

impl Mounts {
    /// As far as they can be read: of what is on another mount nothing is known.
    fn of(processes: &[u32]) -> Self {
        let (mut namespaces, mut mounts) = (BTreeSet::new(), BTreeMap::new());
        for pid in processes {
            let Ok(namespace) = std::fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
            if !namespaces.contains(&namespace)
                && let Ok(mut found) = File::open(format!("/proc/{pid}/mountinfo")).and_then(devices)
            {
                mounts.append(&mut found);
                namespaces.insert(namespace);
            }
        }
        Self(mounts)
    }
}

fn unless_gone(looked: io::Result<()>) -> io::Result<()> {
    looked.or_else(|e| if is_gone(&e) { Ok(()) } else { Err(e) })
}

fn processes() -> io::Result<Vec<u32>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        all.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(all)
}

fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn of_process(pid: u32, device: u64, mounts: &Mounts, held: &mut Held) -> io::Result<()> {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
    held.all |= !mapped(maps, device, &mut held.inodes)?;
    for (n, entry) in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))?.enumerate() {
        if n >= limits::HOLDERS_FILES {
            held.all = true;
            return Ok(());
        }
        let entry = entry?;
        let mut head = [0; limits::FDINFO_BYTES];
        let looked = File::open(entry.path()).and_then(|mut file| file.read(&mut head)).and_then(|length| {
            let Some((mount, inode)) = open(&head[..length]) else {
                held.all = true;
                return Ok(());
            };
            let may_be = match mounts.0.get(&mount) {
                Some(found) => *found == device,
                // As a file that a container has sent which is gone: it may be any file, but nothing that is none.
                None => {
                    is_file(&std::fs::read_link(format!("/proc/{pid}/fd/{}", entry.file_name().display()))?)
                }
            };
            if may_be {
                held.inodes.insert(inode);
            }
            Ok(())
        });
        // Closed meanwhile.
        unless_gone(looked)?;
    }
    Ok(())
}

/// Whether it is a file with a name, or had one; by the words of the kernel for what has none.
fn is_file(link: &Path) -> bool {
    link.is_absolute() && !link.as_os_str().as_bytes().starts_with(b"/memfd:")
}

/// Adds the inodes of a file system that are mapped; whether those are all.
fn mapped(maps: impl BufRead, device: u64, inodes: &mut BTreeSet<u64>) -> io::Result<bool> {
    let (mut rest, mut line) = (maps.take(limits::MAPS_BYTES), Vec::new());
    // A name in it may be of any bytes but a line's end.
    while rest.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        let mut fields = text.split_ascii_whitespace().skip(3);
        let place = fields.next().and_then(|field| number(field, 16)).zip(fields.next());
        let Some((found, inode)) = place.and_then(|(found, inode)| Some((found, inode.parse().ok()?))) else {
            return Ok(false);
        };
        if found == device {
            inodes.insert(inode);
        }
        line.clear();
    }
    Ok(rest.limit() > 0)
}

/// The file systems of mounts, by the mounts' numbers.
fn devices(mountinfo: impl Read) -> io::Result<BTreeMap<u64, u64>> {
    let mut text = Vec::new();
    mountinfo.take(limits::MOUNTINFO_BYTES).read_to_end(&mut text)?;
    let lines = text.split(|byte| *byte == b'\n').map(String::from_utf8_lossy);
    let mount = |line: std::borrow::Cow<'_, str>| {
        let mut fields = line.split(' ');
        Some((fields.next()?.parse().ok()?, number(fields.nth(1)?, 10)?))
    };
    Ok(lines.filter_map(mount).collect())
}

/// `MAJOR:MINOR` as `stat` has it.
fn number(text: &str, radix: u32) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    let number = |text| u32::from_str_radix(text, radix).ok();
    Some(rustix::fs::makedev(number(major)?, number(minor)?))
}

/// Mount and inode of what a descriptor is of; the kernel tells the latter from Linux 5.14 on.
fn open(fdinfo: &[u8]) -> Option<(u64, u64)> {
    let text = String::from_utf8_lossy(fdinfo);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("mnt_id:")?, field("ino:")?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn pod() -> PodUid {
        "00000001-0000-0000-0000-000000000000".parse().unwrap()
    }

    #[test]
    fn what_is_mapped_or_open_is_held_and_what_is_not_any_more_is_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4_096).unwrap();
        let (device, inode) = file.metadata().map(|seen| (seen.dev(), seen.ino())).unwrap();
        let own = std::process::id();
        let places: Places = Box::new(move |pid| (pid == own).then(pod));
        let here: BTreeSet<_> = [pod()].into();
        let is_held = |device| held(device, &here, &places).holds(inode);
        assert!(is_held(device), "it is open");
        assert!(!is_held(device + 1), "that is of another file system");
        assert!(!held(device, &BTreeSet::new(), &places).holds(inode), "nobody who counts has it");
        drop(file);
        assert!(!is_held(device));
        // This program itself is mapped, and not open.
        let own = std::fs::metadata(std::env::current_exe().unwrap()).unwrap();
        assert!(held(own.dev(), &here, &places).holds(own.ino()));
    }

    #[test]
    fn lines_of_maps_are_read_whatever_the_names_of_files() {
        let text = b"7f00-7f01 rw-s 00000000 00:2a 77                 /dev/shm/a b\xff (deleted)\n\
            7f01-7f02 r-xp 00001000 fe:01 12 /lib/x\n7f02-7f03 rw-p 00000000 00:00 0 \n";
        let read = |device| {
            let mut inodes = BTreeSet::new();
            (mapped(&text[..], device, &mut inodes).unwrap(), inodes)
        };
        assert_eq!(read(rustix::fs::makedev(0, 0x2a)), (true, [77].into()));
        assert_eq!(read(rustix::fs::makedev(0xfe, 1)), (true, [12].into()));
        let mut inodes = BTreeSet::new();
        assert!(!mapped(&b"nonsense\n"[..], 1, &mut inodes).unwrap());
        assert_eq!(open(b"pos:\t0\nflags:\t02\nmnt_id:\t31\nino:\t77\n"), Some((31, 77)));
        assert_eq!(open(b"pos:\t0\nflags:\t02\nmnt_id:\t31\n"), None);
        let mounts = devices(&b"31 1 0:42 / /dev/shm rw - tmpfs x rw\nnonsense\n"[..]).unwrap();
        assert_eq!(mounts, [(31, rustix::fs::makedev(0, 42))].into());
        for (link, wanted) in [
            ("/dev/shm/x", true),
            ("/x", true),
            ("pipe:[7]", false),
            ("/memfd:x (deleted)", false),
            ("anon_inode:[eventfd]", false),
        ] {
            assert_eq!(is_file(Path::new(link)), wanted, "{link}");
        }
    }
}
