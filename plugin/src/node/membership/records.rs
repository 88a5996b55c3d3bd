//! The volumes on record: a file for each in a folder that root alone reads, on the file system of the slots, which is empty after
//! a reboot, as the pods' mounts are.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use gpu_handoff_protocol::SlotId;
use tracing::{error, warn};

use super::Volume;

/// What names of records end with that cannot be read.
const ASIDE: &str = "unreadable";

/// Where they are.
#[derive(Debug)]
pub(in crate::node) struct Records {
    run_dir: PathBuf,
    folder: PathBuf,
}

impl Records {
    /// In this run directory.
    pub(in crate::node) fn open(run_dir: &Path) -> io::Result<Self> {
        let folder = run_dir.join("volumes");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Self { run_dir: run_dir.to_path_buf(), folder })
    }

    /// The folder of a slot.
    pub(in crate::node) fn slot_folder(&self, slot: &SlotId) -> PathBuf {
        self.run_dir.join("slots").join(slot.as_str())
    }

    fn file(&self, slot: &SlotId) -> PathBuf {
        self.folder.join(format!("{slot}.json"))
    }

    /// All that there are. What is no record is of nobody: it is said, and put aside.
    pub(in crate::node) fn read(&self) -> io::Result<Vec<Volume>> {
        let mut volumes = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            match path.extension().and_then(OsStr::to_str) {
                Some("json") => volumes.extend(self.volume(&path)),
                // What it was to replace is there, or the volume was never mounted, and the kubelet asks for it again.
                Some("partial") => {
                    warn!(path = %path.display(), "the daemon was ended while it wrote the record of a volume: what it had written is removed");
                    say_if_it_fails(&path, std::fs::remove_file(&path));
                }
                Some(ASIDE) => {}
                _ => warn!(path = %path.display(), "this is no record of a volume: it is left alone"),
            }
        }
        Ok(volumes)
    }

    /// The volume of a record. One that says nothing is put aside, for whoever wants to know what became of it; one that does not come
    /// now is as good as ever at the next start.
    fn volume(&self, path: &Path) -> Option<Volume> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(e) => {
                error!(
                    path = %path.display(), error = %e,
                    "the record of a volume does not come: its pod takes part no more until it is made anew, or the daemon started again"
                );
                return None;
            }
        };
        let why = match serde_json::from_slice::<Volume>(&text) {
            Ok(volume) if self.file(&volume.slot) == path => return Some(volume),
            Ok(volume) => format!("it is of slot {}", volume.slot),
            Err(e) => e.to_string(),
        };
        let aside = path.with_extension(ASIDE);
        warn!(
            path = %path.display(), why, aside = %aside.display(),
            "the record of a volume cannot be read: its pod takes part no more until it is made anew, and the record is put aside"
        );
        say_if_it_fails(path, std::fs::rename(path, &aside));
        None
    }

    /// Puts a volume on record: whole, or not at all.
    pub(in crate::node) fn write(&self, volume: &Volume) -> io::Result<()> {
        let (path, partial) = (self.file(&volume.slot), self.folder.join(format!("{}.partial", volume.slot)));
        std::fs::write(&partial, serde_json::to_vec(volume)?)?;
        std::fs::rename(&partial, &path)
    }

    /// Forgets it.
    pub(super) fn remove(&self, slot: &SlotId) {
        match std::fs::remove_file(self.file(slot)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => warn!(%slot, error = %e, "the record of a volume that is gone cannot be removed"),
        }
    }
}

fn say_if_it_fails(path: &Path, done: io::Result<()>) {
    if let Err(e) = done {
        warn!(path = %path.display(), error = %e, "this record of a volume stays where it is");
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::volume;
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn what_does_not_come_now_is_left_for_the_next_start() {
        let run_dir = tempfile::tempdir().unwrap();
        let records = Records::open(run_dir.path()).unwrap();
        let [good, other] = ["csi-1", "csi-2"].map(volume);
        records.write(&good).unwrap();
        // As where the disk fails: no file can be read there.
        std::fs::create_dir(records.file(&other.slot)).unwrap();
        assert_eq!(records.read().unwrap(), std::slice::from_ref(&good));
        std::fs::remove_dir(records.file(&other.slot)).expect("it is where it was");
    }

    #[test]
    fn what_cannot_be_read_is_put_aside_and_what_was_not_written_whole_is_removed() {
        let run_dir = tempfile::tempdir().unwrap();
        let records = Records::open(run_dir.path()).unwrap();
        let [good, cut, strange] = ["csi-1", "csi-2", "csi-3"].map(volume);
        for volume in [&good, &cut] {
            records.write(volume).unwrap();
        }
        let whole = std::fs::read(records.file(&cut.slot)).unwrap();
        std::fs::write(records.file(&cut.slot), &whole[..whole.len() / 2]).unwrap();
        std::fs::write(records.file(&strange.slot), whole).unwrap();
        let folder = run_dir.path().join("volumes");
        std::fs::write(folder.join(format!("{}.partial", good.slot)), "{").unwrap();
        assert_eq!(records.read().unwrap(), std::slice::from_ref(&good));
        let mut wanted = vec![
            format!("{}.json", good.slot),
            format!("{}.{ASIDE}", cut.slot),
            format!("{}.{ASIDE}", strange.slot),
        ];
        wanted.sort();
        assert_eq!(names(&folder), wanted);
        // And then it is no news any more.
        assert_eq!(records.read().unwrap(), [good]);
        assert_eq!(names(&folder), wanted);
    }
}
