//! The administrator's settings: a YAML file, read again when it changes. A file that cannot be used changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu_handoff_inject::Settings;
use gpu_handoff_logs::chain;
use tokio::sync::watch;
use tracing::{error, info};

use crate::files::{self, FileError, Watched};
use crate::limits;

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("read the settings")]
    Read(#[from] FileError),
    /// It is no YAML, or has a field that does not exist or cannot have that value.
    #[error("the settings {path} cannot be read")]
    Form {
        /// Which file.
        path: PathBuf,
        /// Where, and what is wrong.
        source: serde_yaml::Error,
    },
    /// They cannot be.
    #[error("the settings {path} cannot be used")]
    Values {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: gpu_handoff_inject::SettingsError,
    },
}

/// A file of settings, and what it said when it was last of use.
#[derive(Debug)]
pub(crate) struct SettingsFile {
    file: Watched,
    settings: watch::Sender<Arc<Settings>>,
}

impl SettingsFile {
    /// Reads the settings.
    pub(crate) fn open(path: &Path) -> Result<Self, SettingsError> {
        let (file, contents) = Watched::open([path.to_owned()], limits::SETTINGS_BYTES)?;
        let settings = parse(path, &contents)?;
        Ok(Self { file, settings: watch::channel(Arc::new(settings)).0 })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Settings>> {
        self.settings.subscribe()
    }

    /// Reads them again whenever the file changes, for ever.
    pub(crate) async fn keep(mut self) {
        loop {
            let changed = self.file.changed().await;
            let path = self.file.path();
            match changed.map_err(SettingsError::from).and_then(|contents| parse(path, &contents)) {
                Ok(settings) => {
                    info!(path = %path.display(), "new settings");
                    self.settings.send_replace(Arc::new(settings));
                }
                Err(error) => error!(error = chain(&error), "the settings before stay in force"),
            }
        }
    }
}

fn parse(path: &Path, [text]: &files::Contents<1>) -> Result<Settings, SettingsError> {
    let settings: Settings = serde_yaml::from_slice(text)
        .map_err(|source| SettingsError::Form { path: path.to_owned(), source })?;
    settings.check().map_err(|source| SettingsError::Values { path: path.to_owned(), source })?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    fn write(text: &str) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("injection.yaml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_line_and_column() {
        let table = [
            ("image: [", "line 1 column 8"),
            ("image: x\nimag: y\n", "line 2 column 1"),
            ("image: x\nrun-as-user: me\n", "line 2 column 14"),
            ("image: ''\n", "image: wanted"),
            ("", "image: wanted"),
        ];
        for (text, wanted) in table {
            let (_folder, path) = write(text);
            let error = chain(&SettingsFile::open(&path).unwrap_err());
            assert!(error.contains(wanted) && error.contains("injection.yaml"), "{text:?}: {error}");
        }
        let (_folder, path) =
            write(&format!("image: x\n#{}", "x".repeat(usize::try_from(limits::SETTINGS_BYTES).unwrap())));
        assert!(matches!(SettingsFile::open(&path), Err(SettingsError::Read(FileError::TooLarge { .. }))));
        let error = SettingsFile::open(&path.with_file_name("none")).unwrap_err();
        assert!(matches!(error, SettingsError::Read(FileError::Io { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_cannot_be_used_changes_nothing_until_it_can() {
        let (_folder, path) = write("image: sidecar:1\n");
        let file = SettingsFile::open(&path).unwrap();
        let settings = file.subscribe();
        let mut task = JoinSet::new();
        task.spawn(file.keep());
        for (text, expected) in [
            (Some("image: sidecar:2\n"), "sidecar:2"),
            (Some("image: sidecar:3\nunknown: x\n"), "sidecar:2"),
            (Some("image: ''\n"), "sidecar:2"),
            (None, "sidecar:2"),
            (Some("image: sidecar:4\n"), "sidecar:4"),
        ] {
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            // The clock is the test's: this takes no time.
            sleep(2 * limits::FILE_LOOK).await;
            assert_eq!(settings.borrow().image, expected, "{text:?}");
        }
    }
}
