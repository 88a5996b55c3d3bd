//! The policy's file, looked at again and again; and the policy on its way from node to broker.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use gpu_handoff_policy::{FileError, Files, Policy, PolicyError};
use rustix::fs::{MemfdFlags, SealFlags};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info};

use super::slots::Change;
use crate::limits;

mod seen;

pub use seen::Origin;
pub(super) use seen::{Seen, Teller, version_of};

/// Why a policy's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// It cannot be read.
    #[error("cannot read the policy")]
    Read(#[from] FileError),
    /// It is no policy.
    #[error("{} is no policy", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: PolicyError,
    },
}

/// A policy's file, as it was when it was looked at last.
#[derive(Debug)]
pub struct PolicyFile {
    file: Files,
    /// Of the last one that was taken.
    version: String,
    refused: u64,
}

impl PolicyFile {
    /// Reads the policy that is in force first.
    ///
    /// # Errors
    /// When there is none. A node without its policy does not serve.
    pub fn open(path: &Path) -> Result<(Self, Policy), PolicyFileError> {
        let (file, [text]) = Files::open([path.to_path_buf()], gpu_handoff_policy::limits::FILE_BYTES)?;
        let policy = read(path, &text)?;
        Ok((Self { file, version: version_of(&text), refused: 0 }, policy))
    }

    /// The policy, if the file says something else than before. What is no policy is refused once, and counted.
    ///
    /// # Errors
    /// Why it is refused; what was in force before stays so.
    pub fn look(&mut self) -> Result<Option<Policy>, PolicyFileError> {
        let looked = self.file.look().map_err(PolicyFileError::from);
        let taken = looked.and_then(|contents| {
            let Some([text]) = contents else { return Ok(None) };
            Ok(Some((read(self.path(), &text)?, version_of(&text))))
        });
        self.refused += u64::from(taken.is_err());
        Ok(taken?.map(|(policy, version)| {
            self.version = version;
            policy
        }))
    }

    /// What the text of the policy that was taken last is called.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// How many times what was found was refused.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

fn read(path: &Path, text: &[u8]) -> Result<Policy, PolicyFileError> {
    Policy::read(text).map_err(|source| PolicyFileError::Policy { path: path.to_path_buf(), source })
}

/// Looks at the file again and again, for as long as somebody wants to know. A policy is in force when the broker goes by it.
pub(super) async fn follow(
    mut file: PolicyFile,
    changes: mpsc::Sender<Change>,
    mut gone_by: watch::Receiver<Arc<Policy>>,
    seen: Teller,
) {
    let mut looks = interval(limits::POLICY_PAUSE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The last one that was read, until it is in force.
    let mut coming: Option<Arc<Policy>> = None;
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            Ok(()) = gone_by.changed() => {
                let by = Arc::clone(&gone_by.borrow_and_update());
                if let Some(policy) = coming.take_if(|coming| Arc::ptr_eq(coming, &by)) {
                    info!(path = %file.path().display(), "another policy is in force");
                    seen.taken(file.version(), &policy);
                }
                continue;
            }
        }
        match file.look() {
            Ok(None) => {}
            Ok(Some(policy)) => {
                info!(path = %file.path().display(), "another policy is read: the broker is told of it");
                for warning in policy.not_yet() {
                    tracing::warn!(warning, "the policy grants what this version does not do");
                }
                seen.read();
                let policy = Arc::new(policy);
                coming = Some(Arc::clone(&policy));
                if changes.send(Change::Policy(policy)).await.is_err() {
                    return;
                }
            }
            Err(e) => {
                let (why, refused) = (format!("{:#}", anyhow::Error::from(e)), file.refused());
                seen.refused(&why, refused);
                error!(why, refused, "the policy's file is refused; the policy before it stays in force");
            }
        }
    }
}

/// A policy as a file that nobody can change: it may be larger than a packet.
///
/// # Errors
/// What the system answers.
pub(super) fn packed(policy: &Policy) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("policy", flags)?);
    file.write_all(&serde_json::to_vec(policy)?)?;
    file.rewind()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Reads it again.
///
/// # Errors
/// When it is none.
pub(super) fn unpacked(descriptors: Vec<OwnedFd>) -> anyhow::Result<Policy> {
    let [file] = <[OwnedFd; 1]>::try_from(descriptors).ok().context("a policy without its file")?;
    let (mut bytes, limit) = (Vec::new(), limits::POLICY_BYTES);
    File::from(file).take(limit + 1).read_to_end(&mut bytes).context("read the policy")?;
    ensure!(bytes.len() as u64 <= limit, "a policy of more than {limit} bytes");
    serde_json::from_slice(&bytes).context("the node's policy does not read as one")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "version: gpu-handoff.io/v1\nquota: {buffers: 1}\n";
    const TWO: &str = "version: gpu-handoff.io/v1\nquota: {buffers: 2}\n";

    #[test]
    fn what_is_no_policy_is_refused_once_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        assert!(matches!(PolicyFile::open(&path), Err(PolicyFileError::Read(_))));
        std::fs::write(&path, ONE).unwrap();
        let (mut file, _) = PolicyFile::open(&path).unwrap();
        std::fs::write(&path, format!("{ONE}legcy: deny\n")).unwrap();
        let why = format!("{:#}", anyhow::Error::from(file.look().unwrap_err()));
        assert!(why.contains("policy.yaml is no policy: line 3 column 1: unknown field `legcy`"), "{why}");
        assert_eq!((file.look().unwrap(), file.refused()), (None, 1));
        std::fs::write(&path, [ONE.as_bytes(), b"# caf\xe9\n"].concat()).unwrap();
        let why = format!("{:#}", anyhow::Error::from(file.look().unwrap_err()));
        assert!(why.contains("line 3 column 6: a byte that is no UTF-8"), "{why}");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.look(), Err(PolicyFileError::Read(_))));
        assert_eq!((file.look().unwrap(), file.refused()), (None, 3));
        std::fs::write(&path, TWO).unwrap();
        assert_eq!(file.look().unwrap().unwrap().quota.buffers, 2);
    }

    #[test]
    fn a_large_policy_reaches_the_broker_and_nobody_changes_it_on_the_way() {
        let terms: String =
            (0..4_000).map(|n| format!("  namespace-{n}: {{quota: {{buffers: {n}}}}}\n")).collect();
        let policy = Policy::read(&format!("{ONE}namespaces:\n{terms}")).unwrap();
        let packed = packed(&policy).unwrap();
        let mut other = File::from(packed.try_clone().unwrap());
        assert!(other.write_all(b"x").is_err());
        assert_eq!(unpacked(vec![packed]).unwrap(), policy);
        assert!(unpacked(Vec::new()).is_err());
    }
}
