//! Which GPUs there are, by the driver's part of `/proc`, and of which of them a process has the device nodes.
//!
//! A GPU's node is found by the minor number that the driver gives beside its UUID, and compared with what is at the same
//! place in the process's own view of the files: a container that was not given the GPU has nothing there, or something else.
//! Whether the kernel would let the process open it is more than can be seen from outside.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use gpu_handoff_protocol::DeviceUuid;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use tracing::warn;

use crate::identity::start_in;
use crate::limits;

/// Where a process has its devices.
const OWN_DEV: &str = "/dev";

/// The node's GPUs.
#[derive(Debug)]
pub(super) struct Gpus {
    list: Vec<Gpu>,
    dev_root: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
struct Gpu {
    uuid: DeviceUuid,
    minor: u32,
}

impl Gpus {
    /// Reads the driver's part of `/proc`. Without a driver there is none, and no GPU.
    pub(super) fn read(proc_root: &Path, dev_root: &Path) -> Self {
        let folder = proc_root.join("driver/nvidia/gpus");
        let mut list = Vec::new();
        if let Ok(entries) = std::fs::read_dir(&folder) {
            for entry in entries.flatten().take(limits::NODE_GPUS) {
                let path = entry.path().join("information");
                match read_limited(&path).map(|text| Gpu::parse(&text)) {
                    Ok(Some(gpu)) => list.push(gpu),
                    Ok(None) => warn!(path = %path.display(), "this names no GPU by UUID and minor number"),
                    Err(e) => warn!(path = %path.display(), error = %e, "a GPU cannot be looked at"),
                }
            }
        }
        list.sort_unstable_by_key(|gpu| gpu.minor);
        Self { list, dev_root: dev_root.to_path_buf() }
    }

    /// As the node's status tells of them.
    pub(super) fn told(&self) -> Vec<gpu_handoff_admin::proto::Gpu> {
        let told = |gpu: &Gpu| gpu_handoff_admin::proto::Gpu { uuid: gpu.uuid.to_string(), minor: gpu.minor };
        self.list.iter().map(told).collect()
    }

    pub(super) fn uuids(&self) -> Vec<DeviceUuid> {
        self.list.iter().map(|gpu| gpu.uuid).collect()
    }

    /// What the driver's variable calls a device: a MIG instance, which is none of the GPUs, by another beginning.
    pub(super) fn visible_name(&self, device: DeviceUuid) -> String {
        let text = device.to_string();
        if self.list.is_empty() || self.list.iter().any(|gpu| gpu.uuid == device) {
            return text;
        }
        text.replacen("GPU-", "MIG-", 1)
    }

    /// The GPUs whose nodes that very process has. What it has is asked of the kernel, and nothing of it is opened.
    pub(super) fn reachable(&self, pid: u32, started: u64) -> io::Result<Vec<DeviceUuid>> {
        // What is looked up below this descriptor is of the process that had the number when it was opened, or nothing.
        let path_only = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = rustix::fs::open(format!("/proc/{pid}"), path_only, Mode::empty())?;
        if start_of(&process)? != Some(started) {
            return Err(io::Error::other("another process has its number"));
        }
        let root = rustix::fs::openat(&process, "root", path_only, Mode::empty())?;
        let has = |gpu: &&Gpu| {
            let name = format!("nvidia{}", gpu.minor);
            let Ok(wanted) = rustix::fs::stat(self.dev_root.join(&name)) else { return false };
            let places = [Path::new(OWN_DEV), &self.dev_root];
            places
                .iter()
                .any(|place| look(&root, &place.join(&name)).is_ok_and(|found| same_node(&found, &wanted)))
        };
        Ok(self.list.iter().filter(has).map(|gpu| gpu.uuid).collect())
    }
}

impl Gpu {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let value = |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.trim() == name);
            text.lines().find(value)?.split_once(':').map(|(_, value)| value.trim())
        };
        Some(Self { uuid: field("GPU UUID")?.parse().ok()?, minor: field("Device Minor")?.parse().ok()? })
    }
}

fn read_limited(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(limits::GPU_FACTS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn start_of(process: &OwnedFd) -> io::Result<Option<u64>> {
    let stat = rustix::fs::openat(process, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    File::from(stat).read_to_end(&mut bytes)?;
    Ok(start_in(&bytes))
}

/// What is at this place as the process sees it; no link leads out of its view.
fn look(root: &OwnedFd, place: &Path) -> io::Result<Stat> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::fstat(rustix::fs::openat2(root, place, flags, Mode::empty(), resolve)?)?)
}

/// Whether two files are one GPU's node: a device is its number, whatever file it is; a simulated node is that very file.
fn same_node(one: &Stat, other: &Stat) -> bool {
    let kind = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    if kind(one) != kind(other) {
        return false;
    }
    match kind(one) {
        FileType::CharacterDevice => one.st_rdev == other.st_rdev,
        _ => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-01234567-89ab-cdef-0123-456789abcdef\n\
        Bus Location: \t 0000:1b:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n";

    #[test]
    fn a_gpu_is_read_by_uuid_and_minor_number() {
        let gpu = Gpu::parse(TEXT).unwrap();
        assert_eq!(
            (gpu.uuid.to_string().as_str(), gpu.minor),
            ("GPU-01234567-89ab-cdef-0123-456789abcdef", 3)
        );
        assert_eq!(Gpu::parse(&TEXT.replace("Device Minor", "Minor")), None);
        assert_eq!(Gpu::parse(&TEXT.replace("GPU-01234567", "0")), None);
    }

    #[test]
    fn a_process_has_the_nodes_that_it_sees_and_another_one_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let entry = folder.path().join("driver/nvidia/gpus/0000:1b:00.0");
        std::fs::create_dir_all(&entry).unwrap();
        std::fs::write(entry.join("information"), TEXT).unwrap();
        let gpus = Gpus::read(folder.path(), folder.path());
        let process = rustix::fs::open("/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (pid, started) = (std::process::id(), start_of(&process).unwrap().unwrap());
        assert_eq!(gpus.reachable(pid, started).unwrap(), [], "there is no such node");
        std::fs::write(folder.path().join("nvidia3"), "").unwrap();
        assert!(gpus.visible_name(gpus.uuids()[0]).starts_with("GPU-01234567-"));
        assert!(gpus.visible_name(DeviceUuid::from_bytes([7; 16])).starts_with("MIG-07070707-"));
        assert_eq!(gpus.reachable(pid, started).unwrap(), gpus.uuids());
        assert!(gpus.reachable(pid, started + 1).is_err());
        assert!(gpus.reachable(u32::MAX, started).is_err());
        // Nor does a name that is cut within a letter hide what it has.
        let misnamed = crate::identity::testing::Misnamed::start();
        let started = crate::identity::started(misnamed.pid()).unwrap();
        assert_eq!(gpus.reachable(misnamed.pid(), started).unwrap(), gpus.uuids());
    }
}
