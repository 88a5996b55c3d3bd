//! Folders that go with their scenario, also when that is killed: the next one sweeps what nobody holds any more, whatever it
//! is that bears such a name.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::fs::FlockOperation;
use tempfile::TempDir;

/// Younger folders are left alone: their maker may not have locked them yet.
const YOUNG: Duration = Duration::from_secs(30);

/// A folder that is removed in the end.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    /// Held for as long as the scenario lives.
    _lock: File,
}

impl Scratch {
    /// Makes a folder in `parent`, or where temporary files belong, after sweeping what dead scenarios left there.
    ///
    /// # Errors
    /// When no folder can be made.
    pub fn make(prefix: &str, parent: Option<&Path>) -> anyhow::Result<Self> {
        let usual = std::env::temp_dir();
        let parents = parent.into_iter().chain([usual.as_path()]);
        let mut last = None;
        for parent in parents {
            sweep(prefix, parent);
            match tempfile::Builder::new().prefix(prefix).tempdir_in(parent) {
                Ok(folder) => return Self::lock(folder),
                Err(e) => last = Some((parent.to_path_buf(), e)),
            }
        }
        let (parent, error) = last.context("a place for temporary files")?;
        Err(error).with_context(|| format!("make a folder in {}", parent.display()))
    }

    fn lock(folder: TempDir) -> anyhow::Result<Self> {
        let lock = File::open(folder.path())?;
        rustix::fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockShared)?;
        Ok(Self { folder, _lock: lock })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of that prefix which nobody has locked. What cannot be looked at is another user's.
fn sweep(prefix: &str, parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let ours = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(prefix);
    for path in entries.flatten().filter(ours).map(|entry| entry.path()) {
        if is_left_over(&path).unwrap_or(false) {
            // Another scenario may sweep at the same time.
            let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        }
    }
}

fn is_left_over(path: &PathBuf) -> std::io::Result<bool> {
    let folder = File::open(path)?;
    let age = folder.metadata()?.modified()?.elapsed().unwrap_or_default();
    let free = || rustix::fs::flock(folder.as_fd(), FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok(age > YOUNG && free())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_scenarios_folder_is_not_swept_and_goes_with_it() {
        let scratch = Scratch::make("gpu-handoff-scratch-test-", None).unwrap();
        let path = scratch.path().to_path_buf();
        assert!(!is_left_over(&path).unwrap());
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn what_nobody_holds_any_more_is_swept_whether_folder_or_file() {
        let parent = tempfile::tempdir().unwrap();
        let [folder, file, young, anothers] =
            ["left-folder", "left-file", "left-young", "another"].map(|name| parent.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        for path in [&file, &young, &anothers] {
            std::fs::write(path, "").unwrap();
        }
        let long_ago = std::time::SystemTime::now() - YOUNG * 2;
        for path in [&folder, &file, &anothers] {
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        sweep("left-", parent.path());
        assert_eq!([folder, file, young, anothers].map(|path| path.exists()), [false, false, true, true]);
    }
}
