//! Which processes hold which files, found by device and inode through `/proc`, as far as this process may look.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Holder;
use crate::header::DATA_OFFSET;

/// A file by device and inode.
pub(super) type File = (u64, u64);

/// The holders of each of the given files, by PID.
pub(super) fn find(files: &[File]) -> HashMap<File, Vec<Holder>> {
    let wanted: HashSet<File> = files.iter().copied().collect();
    let mut found: HashMap<File, Vec<Holder>> = HashMap::new();
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    for pid in pids {
        for (file, holder) in of_process(pid, &wanted) {
            found.entry(file).or_default().push(holder);
        }
    }
    found
}

/// Processes come and go and belong to others, so whatever cannot be read counts as holding nothing.
fn of_process(pid: u32, wanted: &HashSet<File>) -> HashMap<File, Holder> {
    let dir = Path::new("/proc").join(pid.to_string());
    let comm = fs::read_to_string(dir.join("comm")).unwrap_or_default().trim_end().to_owned();
    let nothing = || Holder { pid, comm: comm.clone(), mapped_bytes: 0, imported: false, descriptors: 0 };
    let mut held: HashMap<File, Holder> = HashMap::new();
    for line in fs::read_to_string(dir.join("maps")).unwrap_or_default().lines() {
        if let Some(mapping) = Mapped::parse(line).filter(|mapping| wanted.contains(&mapping.file)) {
            let holder = held.entry(mapping.file).or_insert_with(nothing);
            holder.imported = true;
            if mapping.offset >= DATA_OFFSET {
                holder.mapped_bytes += mapping.bytes;
            }
        }
    }
    for entry in fs::read_dir(dir.join("fd")).into_iter().flatten().flatten() {
        let file = fs::metadata(entry.path()).map(|file| (file.dev(), file.ino()));
        if let Ok(file) = file
            && wanted.contains(&file)
        {
            held.entry(file).or_insert_with(nothing).descriptors += 1;
        }
    }
    held
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    file: File,
    offset: u64,
    bytes: u64,
}

impl Mapped {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let offset = hex(words.nth(1)?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let device = |text: &str| u32::from_str_radix(text, 16).ok();
        let file = (rustix::fs::makedev(device(major)?, device(minor)?), words.next()?.parse().ok()?);
        Some(Self { file, offset, bytes: hex(end)?.checked_sub(hex(start)?)? })
    }
}

#[cfg(test)]
mod tests {
    use super::Mapped;

    #[test]
    fn a_line_of_maps_gives_file_offset_and_length() {
        let line = "7f00-9f00 rw-s 00200000 00:1a 42   /dev/shm/simcuda-0/alloc/c1d00001-00000001";
        let file = (rustix::fs::makedev(0, 0x1a), 42);
        assert_eq!(Mapped::parse(line), Some(Mapped { file, offset: 0x20_0000, bytes: 0x2000 }));
        assert_eq!(Mapped::parse("nonsense"), None);
    }
}
