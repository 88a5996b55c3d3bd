//! The volumes on record: a file for each in a folder that root alone reads, on the file system of the slots, which is empty after
//! a reboot, as the pods' mounts are.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use gpu_handoff_protocol::SlotId;
use tracing::warn;

use super::Volume;
use crate::limits;

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
    pub(super) fn slot_folder(&self, slot: &SlotId) -> PathBuf {
        self.run_dir.join("slots").join(slot.as_str())
    }

    fn file(&self, slot: &SlotId) -> PathBuf {
        self.folder.join(format!("{slot}.json"))
    }

    /// All that there are. What cannot be read is of nobody: it is said, and left out.
    pub(in crate::node) fn read(&self) -> io::Result<Vec<Volume>> {
        let mut volumes = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            let volume = std::fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Volume>(&text)?));
            match volume {
                Ok(volume) if self.file(&volume.slot) == path => volumes.push(volume),
                Ok(_) => {
                    warn!(path = %path.display(), "the record of a volume has another one's name: it is left out")
                }
                Err(e) => {
                    warn!(path = %path.display(), error = %e, "the record of a volume cannot be read: it is left out")
                }
            }
        }
        volumes.truncate(limits::MEMBERS);
        Ok(volumes)
    }

    /// Puts a volume on record: whole, or not at all.
    pub(super) fn write(&self, volume: &Volume) -> io::Result<()> {
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
