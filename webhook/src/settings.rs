//! What the administrator decides: the settings of the injection, and the policy of the nodes. Two YAML files, read again when
//! they change. A file that cannot be used changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu_handoff_inject::Settings;
use gpu_handoff_logs::chain;
use gpu_handoff_policy::{Contents, FileError, Files, Policy, PolicyError};
use tokio::sync::watch;
use tracing::{error, info};

use crate::files;
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
        source: PolicyError,
    },
    /// They cannot be.
    #[error("the settings {path} cannot be used")]
    Values {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: gpu_handoff_inject::SettingsError,
    },
    /// The policy is none.
    #[error("{path} is no policy")]
    Policy {
        /// Which file.
        path: PathBuf,
        /// Where, and what is wrong.
        source: PolicyError,
    },
}

/// What is in force.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) settings: Settings,
    pub(crate) policy: Policy,
}

/// The files, and what they said when they were last of use.
#[derive(Debug)]
pub(crate) struct RulesFiles {
    settings: Files,
    policy: Option<Files>,
    rules: watch::Sender<Arc<Rules>>,
}

impl RulesFiles {
    /// Reads them. Without a policy's file the built-in rules hold: no pod is let into another namespace's group.
    pub(crate) fn open(settings: &Path, policy: Option<&Path>) -> Result<Self, SettingsError> {
        let (settings_file, contents) = Files::open([settings.to_owned()], limits::SETTINGS_BYTES)?;
        let settings = read_settings(settings, &contents)?;
        let (policy_file, policy) = match policy {
            Some(path) => {
                let (file, contents) =
                    Files::open([path.to_owned()], gpu_handoff_policy::limits::FILE_BYTES)?;
                (Some(file), read_policy(path, &contents)?)
            }
            None => (None, Policy::default()),
        };
        let rules = watch::channel(Arc::new(Rules { settings, policy })).0;
        Ok(Self { settings: settings_file, policy: policy_file, rules })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Rules>> {
        self.rules.subscribe()
    }

    /// Reads them again whenever they change, for ever.
    pub(crate) async fn keep(mut self) {
        loop {
            tokio::select! {
                changed = files::changed(&mut self.settings) => {
                    let path = self.settings.path();
                    let settings = changed.map_err(SettingsError::from).and_then(|text| read_settings(path, &text));
                    self.follow(path, settings, |rules, settings| rules.settings = settings);
                }
                (path, changed) = changed(&mut self.policy) => {
                    let policy = changed.map_err(SettingsError::from).and_then(|text| read_policy(&path, &text));
                    self.follow(&path, policy, |rules, policy| rules.policy = policy);
                }
            }
        }
    }

    fn follow<T>(&self, path: &Path, read: Result<T, SettingsError>, put: impl FnOnce(&mut Rules, T)) {
        match read {
            Ok(new) => {
                info!(path = %path.display(), "what the file says now is in force");
                self.rules.send_modify(|rules| put(Arc::make_mut(rules), new));
            }
            Err(error) => error!(error = chain(&error), "what was before stays in force"),
        }
    }
}

/// The policy's file, when it has changed; never where there is none.
async fn changed(file: &mut Option<Files>) -> (PathBuf, Result<Contents<1>, FileError>) {
    match file {
        Some(file) => {
            let changed = files::changed(file).await;
            (file.path().to_owned(), changed)
        }
        None => std::future::pending().await,
    }
}

fn read_settings(path: &Path, [text]: &Contents<1>) -> Result<Settings, SettingsError> {
    let settings =
        Settings::read(text).map_err(|source| SettingsError::Form { path: path.to_owned(), source })?;
    settings.check().map_err(|source| SettingsError::Values { path: path.to_owned(), source })?;
    Ok(settings)
}

fn read_policy(path: &Path, [text]: &Contents<1>) -> Result<Policy, SettingsError> {
    Policy::read(text).map_err(|source| SettingsError::Policy { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_told_with_their_place_and_nothing_is_read_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (settings, policy) = (b"image: x\n".as_slice(), b"version: gpu-handoff.io/v1\n".as_slice());
        let comment = b"# caf\xe9\n".as_slice();
        let good = (at("settings", settings), at("policy", policy));
        let bad = (at("bad", &[settings, comment].concat()), at("worse", &[policy, comment].concat()));
        assert!(RulesFiles::open(&good.0, Some(&good.1)).is_ok());
        for (settings, policy) in [(&bad.0, &good.1), (&good.0, &bad.1)] {
            let error = RulesFiles::open(settings, Some(policy)).unwrap_err();
            let told = chain(&error);
            assert!(told.contains("line 2 column 6: a byte that is no UTF-8"), "{told}");
        }
    }
}
