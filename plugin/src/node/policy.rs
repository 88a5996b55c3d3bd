//! The policy's file, looked at again and again; and the policy on its way from node to broker.
//!
//! It is looked at, not watched: what mounts a ConfigMap puts another folder in the place of the old one by a symlink, so that
//! no watch of the file would see it, and other ways of replacing a file differ.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use gpu_handoff_policy::{Policy, PolicyError};
use rustix::fs::{MemfdFlags, SealFlags};
use tokio::sync::mpsc;
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
    #[error("cannot read the policy {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// It is no policy.
    #[error("{} is no policy", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: PolicyError,
    },
}

/// Which file it is, and as of when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

/// A policy's file, as it was when it was looked at last.
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    /// `None`: it was not there.
    seen: Option<Stamp>,
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
        let (seen, policy) = read(path);
        let (policy, version) = policy?;
        Ok((Self { path: path.to_path_buf(), seen, version, refused: 0 }, policy))
    }

    /// The policy, if the file is another one than before. What is no policy is refused once, and counted.
    ///
    /// # Errors
    /// Why it is refused; what was in force before stays so.
    pub fn look(&mut self) -> Result<Option<Policy>, PolicyFileError> {
        if stamp(&self.path).ok() == self.seen {
            return Ok(None);
        }
        let (seen, policy) = read(&self.path);
        self.seen = seen;
        self.refused += u64::from(policy.is_err());
        let (policy, version) = policy?;
        self.version = version;
        Ok(Some(policy))
    }

    /// What the text of the policy that was taken last is called.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many times what was found was refused.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    stamp_of(&std::fs::metadata(path)?)
}

#[allow(clippy::unnecessary_wraps, reason = "used where everything else may fail")]
fn stamp_of(file: &std::fs::Metadata) -> io::Result<Stamp> {
    let changed = (file.ctime(), file.ctime_nsec());
    Ok(Stamp { device: file.dev(), inode: file.ino(), bytes: file.len(), changed })
}

/// What the file says, with its text's version, and which one that was.
fn read(path: &Path) -> (Option<Stamp>, Result<(Policy, String), PolicyFileError>) {
    let mut seen = None;
    let mut text = || -> io::Result<String> {
        let file = File::open(path)?;
        seen = Some(stamp_of(&file.metadata()?)?);
        let mut text = String::new();
        file.take(gpu_handoff_policy::limits::TEXT_BYTES as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let own = || path.to_path_buf();
    let text = text().map_err(|source| PolicyFileError::Read { path: own(), source });
    let policy = text.and_then(|text| {
        let policy = Policy::read(&text).map_err(|source| PolicyFileError::Policy { path: own(), source })?;
        Ok((policy, version_of(text.as_bytes())))
    });
    (seen, policy)
}

/// Looks at the file again and again, for as long as somebody wants to know.
pub(super) async fn follow(mut file: PolicyFile, changes: mpsc::Sender<Change>, seen: Teller) {
    let mut looks = interval(limits::POLICY_PAUSE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        match file.look() {
            Ok(None) => {}
            Ok(Some(policy)) => {
                info!(path = %file.path.display(), "another policy is in force");
                for warning in policy.not_yet() {
                    tracing::warn!(warning, "the policy grants what this version does not do");
                }
                seen.taken(file.version(), &policy);
                if changes.send(Change::Policy(Arc::new(policy))).await.is_err() {
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
    fn a_file_that_is_replaced_in_any_way_is_read_again_and_only_then() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // As a ConfigMap is mounted: the file is a link into a folder that is a link.
        let publish = |name: &str, text: &str| {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("policy.yaml"), text).unwrap();
            std::os::unix::fs::symlink(name, at("new")).unwrap();
            std::fs::rename(at("new"), at("data")).unwrap();
        };
        publish("first", ONE);
        std::os::unix::fs::symlink("data/policy.yaml", at("policy.yaml")).unwrap();
        let (mut file, policy) = PolicyFile::open(&at("policy.yaml")).unwrap();
        assert_eq!(policy.quota.buffers, 1);
        assert_eq!(file.look().unwrap(), None);
        publish("second", TWO);
        assert_eq!(file.look().unwrap().unwrap().quota.buffers, 2);
        assert_eq!(file.look().unwrap(), None);
        std::fs::write(at("second").join("policy.yaml"), format!("{ONE}# longer\n")).unwrap();
        assert_eq!(file.look().unwrap().unwrap().quota.buffers, 1);
        assert_eq!(file.refused(), 0);
    }

    #[test]
    fn what_is_no_policy_is_refused_once_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        assert!(matches!(PolicyFile::open(&path), Err(PolicyFileError::Read { .. })));
        std::fs::write(&path, ONE).unwrap();
        let (mut file, _) = PolicyFile::open(&path).unwrap();
        std::fs::write(&path, format!("{ONE}legcy: deny\n")).unwrap();
        let why = format!("{:#}", anyhow::Error::from(file.look().unwrap_err()));
        assert!(why.contains("policy.yaml is no policy: line 3 column 1: unknown field `legcy`"), "{why}");
        assert_eq!((file.look().unwrap(), file.refused()), (None, 1));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.look(), Err(PolicyFileError::Read { .. })));
        assert_eq!((file.look().unwrap(), file.refused()), (None, 2));
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
