//! What a container's first process got, by what the kernel says of it.
//!
//! No file system of the pod is touched, only text of `/proc` read, so nothing here waits for anybody. Between its
//! making and its start, the process is the runtime's own, inside the container: nothing of the pod's has run, and what
//! is read is true. Later a pod with the rights for it could mount something else at its own `/dev/shm`, and would
//! deceive itself alone.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use gpu_handoff_protocol::{Code, Refusal};
use rustix::fs::{Mode, OFlags, major, makedev, minor};

use crate::identity::start_in;
use crate::limits;

/// What it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Got {
    /// When it started, in clock ticks after boot.
    pub(super) started: u64,
    /// Its IPC namespace.
    pub(super) ipc: u64,
    /// The file system at its `/dev/shm`, as `stat` numbers it.
    pub(super) shm: u64,
}

/// What it is to have got; `None`: it does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// The IPC namespace.
    pub(super) ipc: Option<u64>,
    /// The file system at `/dev/shm`.
    pub(super) shm: Option<u64>,
}

impl Expected {
    /// Whether there is nothing to look at.
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Holds what it got against this.
    ///
    /// # Errors
    /// `NOT_ADJUSTED`, with all that differs.
    pub(super) fn check(&self, got: &Got) -> Result<(), Refusal> {
        let mut refusal = Refusal::new(Code::NotAdjusted);
        let mut differs = false;
        if let Some(wanted) = self.shm.filter(|wanted| *wanted != got.shm) {
            refusal = refusal.compared_with("file system of /dev/shm", number(wanted), number(got.shm));
            differs = true;
        }
        if let Some(wanted) = self.ipc.filter(|wanted| *wanted != got.ipc) {
            refusal = refusal.compared_with("IPC namespace", wanted, got.ipc);
            differs = true;
        }
        if differs { Err(refusal) } else { Ok(()) }
    }
}

/// As `mountinfo` writes it.
fn number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// Looks at a process.
///
/// # Errors
/// When it has ended, or what is said of it cannot be read. All that is read is of one process, whatever has its number
/// later.
pub(super) fn got(pid: u32) -> io::Result<Got> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let process = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?;
    let strange =
        |what| io::Error::new(io::ErrorKind::InvalidData, format!("{what} of process {pid} reads strangely"));
    let ipc = rustix::fs::readlinkat(&process, "ns/ipc", Vec::new())?;
    let ipc = ipc.to_str().ok().and_then(namespace).ok_or_else(|| strange("the IPC namespace"))?;
    let mounts = read(&process, "mountinfo")?;
    let shm = shm_of(&mounts).ok_or_else(|| strange("/dev/shm"))?;
    let started = start_in(read(&process, "stat")?.as_bytes()).ok_or_else(|| strange("the start"))?;
    Ok(Got { started, ipc, shm })
}

/// A file of it, which may have bytes that are no text: a program's name is cut within a letter, and paths are anything.
fn read(process: &OwnedFd, name: &str) -> io::Result<String> {
    let file = rustix::fs::openat(process.as_fd(), name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    let most = limits::MOUNTS_BYTES;
    if File::from(file).take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        let why = format!("{name} has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The number in `ipc:[4026531839]`.
fn namespace(link: &str) -> Option<u64> {
    link.strip_prefix("ipc:[")?.strip_suffix(']')?.parse().ok()
}

/// A line of `mountinfo`, as far as it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mounted<'t> {
    id: u64,
    on: u64,
    device: u64,
    at: &'t str,
}

impl<'t> Mounted<'t> {
    fn read(line: &'t str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, on) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (major, minor) = words.next()?.split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Self { id, on, device, at: words.nth(1)? })
    }
}

/// The file system in which a path `/dev/shm` ends, by the text of `mountinfo`: mounts may hide others, in any order.
fn shm_of(mountinfo: &str) -> Option<u64> {
    let all: Vec<Mounted<'_>> = mountinfo.lines().map(Mounted::read).collect::<Option<_>>()?;
    let is_listed = |id| all.iter().any(|mount| mount.id == id);
    let root = all.iter().find(|mount| mount.at == "/" && (mount.on == mount.id || !is_listed(mount.on)))?;
    let mut here = *root;
    for at in ["/", "/dev", "/dev/shm"] {
        // Each covers the one before. A mount covers another at most once, so this ends; a text that says otherwise
        // does not count.
        for _ in 0..all.len() {
            match all.iter().find(|mount| mount.on == here.id && mount.at == at && mount.id != here.id) {
                Some(cover) => here = *cover,
                None => break,
            }
        }
    }
    Some(here.device)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use proptest::prelude::*;

    use super::*;

    fn device(mountinfo: &str) -> Option<String> {
        shm_of(mountinfo).map(number)
    }

    #[test]
    fn this_process_has_what_stat_says() {
        let own = got(std::process::id()).unwrap();
        assert_eq!(
            own.shm,
            std::fs::metadata("/dev/shm").or_else(|_| std::fs::metadata("/dev")).unwrap().dev()
        );
        let ipc = std::fs::metadata("/proc/self/ns/ipc").unwrap().ino();
        assert_eq!(own.ipc, ipc);
        assert!(own.started > 0);
        assert!(got(u32::MAX >> 1).is_err());
    }

    #[test]
    fn a_process_whose_name_is_cut_within_a_letter_is_looked_at() {
        let process = crate::identity::testing::Misnamed::start();
        let (own, other) = (got(std::process::id()).unwrap(), got(process.pid()).unwrap());
        assert_eq!((other.ipc, other.shm), (own.ipc, own.shm));
    }

    #[test]
    fn what_differs_is_named() {
        let got = Got { started: 1, ipc: 4_026_532_588, shm: makedev(0, 61) };
        let expected = Expected { ipc: Some(4_026_532_651), shm: Some(makedev(0, 87)) };
        let refusal = expected.check(&got).unwrap_err().to_string();
        assert!(
            refusal.starts_with(
                "refused: NOT_ADJUSTED (file system of /dev/shm: wanted 0:87, found 0:61; \
                 IPC namespace: wanted 4026532651, found 4026532588)"
            ),
            "{refusal}"
        );
        assert_eq!(Expected { shm: None, ipc: Some(got.ipc) }.check(&got), Ok(()));
        assert_eq!(Expected { shm: Some(got.shm), ipc: None }.check(&got), Ok(()));
        assert!(Expected { shm: Some(1), ipc: Some(got.ipc) }.check(&got).is_err());
        assert!(Expected::default().is_nothing() && Expected::default().check(&got).is_ok());
    }

    #[test]
    fn the_mount_that_a_path_ends_in_is_found() {
        let plain = "\
100 50 0:40 / / rw - overlay overlay rw
101 100 0:41 / /proc rw - proc proc rw
102 100 0:42 / /dev rw - tmpfs tmpfs rw
103 102 0:43 / /dev/mqueue rw - mqueue mqueue rw
104 102 0:44 /x /dev/shm rw,nosuid - tmpfs shm rw
";
        assert_eq!(device(plain).unwrap(), "0:44");
        // Covered by another, whichever is named first.
        assert_eq!(device(&format!("105 104 0:45 / /dev/shm rw - tmpfs t rw\n{plain}")).unwrap(), "0:45");
        // Hidden by what is mounted above it later.
        assert_eq!(device(&format!("{plain}105 102 0:45 / /dev rw - tmpfs t rw\n")).unwrap(), "0:45");
        assert_eq!(device(&format!("{plain}105 100 0:45 / / rw - tmpfs t rw\n")).unwrap(), "0:45");
        // Beside it, and below it.
        assert_eq!(device(&format!("{plain}105 104 0:45 / /dev/shm/a rw - tmpfs t rw\n")).unwrap(), "0:44");
        // None of its own: a folder of /dev, or of the root.
        let without: String =
            plain.lines().filter(|line| !line.contains("shm")).map(|line| format!("{line}\n")).collect();
        assert_eq!(device(&without).unwrap(), "0:42");
        assert_eq!(device("100 50 0:40 / / rw - overlay overlay rw\n").unwrap(), "0:40");
    }

    #[test]
    fn what_reads_strangely_is_nothing() {
        for strange in ["", "garbage", "1 2", "1 2 3:4 /", "1 2 x:4 / / rw", "1 2 3 / / rw"] {
            assert_eq!(device(strange), None, "{strange:?}");
        }
        // Two that cover each other.
        assert!(
            device(
                "1 9 0:1 / / rw\n2 3 0:2 / /dev rw\n3 2 0:3 / /dev rw\n4 1 0:4 / /dev rw\n5 4 0:4 / /dev rw\n"
            )
            .is_some()
        );
        assert_eq!(namespace("ipc:[4026531839]"), Some(4_026_531_839));
        for strange in ["", "ipc:4026531839", "pid:[1]", "ipc:[]", "ipc:[x]"] {
            assert_eq!(namespace(strange), None, "{strange:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(
            lines in prop::collection::vec(
                (0_u32..6, 0_u32..6, prop::sample::select(vec!["/", "/dev", "/dev/shm", "/x"])),
                0..12,
            ),
        ) {
            let line = |(id, on, at): &(u32, u32, &str)| format!("{id} {on} 0:{id} / {at} rw - t t rw\n");
            let text: String = lines.iter().map(line).collect();
            let is_one = |found| lines.iter().any(|(id, ..)| found == makedev(0, *id));
            prop_assert!(shm_of(&text).is_none_or(is_one));
        }
    }
}
