//! The node's lock, and the folder of its broker's own files.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use gpu_handoff_sys::unprivileged::User;
use rustix::fs::{FlockOperation, Mode, OFlags, StatFs};
use tokio::time::sleep;
use tracing::warn;

use crate::config::Config;
use crate::limits;

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of `linux/magic.h`: file systems that are empty after a boot.
const VOLATILE: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What the node has made for its broker.
#[derive(Debug)]
pub struct Place {
    /// Held for as long as a node or a broker of it lives.
    pub(super) lock: Arc<OwnedFd>,
    /// The folder of the broker's own files.
    pub(super) state: Arc<OwnedFd>,
}

impl Place {
    /// Takes the node and makes everything.
    ///
    /// # Errors
    /// What could not be made, or that another daemon has the node.
    pub async fn prepare(config: &Config) -> anyhow::Result<Self> {
        let lock = own_the_node(&config.run_dir).await?;
        let state = open_state(&config.state_dir, config.user)?;
        // Where it lies elsewhere: two journals in one folder would each make what the other has lost.
        own(state.as_fd(), &config.state_dir).await?;
        Ok(Self { lock: Arc::new(lock.into()), state: Arc::new(state) })
    }
}

/// One daemon owns a node: two would give the same slots to different members. A broker holds the lock too, and may need a
/// moment to end after its node was killed.
async fn own_the_node(run_dir: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(run_dir)
        .with_context(|| format!("make the run directory {}", run_dir.display()))?;
    let path = run_dir.join("lock");
    let file = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    own(file.as_fd(), run_dir).await?;
    Ok(file)
}

/// Takes the lock of a file or folder, for as long as it is open.
async fn own(file: BorrowedFd<'_>, folder: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + limits::TAKE_OVER_TIME;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                sleep(limits::TAKE_OVER_PAUSE).await;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                bail!("another daemon owns {}: stop it first, or name another folder", folder.display());
            }
            Err(e) => return Err(e).with_context(|| format!("lock {}", folder.display())),
        }
    }
}

/// Makes the folder for the broker's own files, readable by nobody else, and opens it.
fn open_state(path: &Path, user: Option<User>) -> anyhow::Result<OwnedFd> {
    let wanted = user.map_or_else(|| rustix::process::geteuid().as_raw(), |u| u.uid);
    let named = |what: &str| format!("{what} the state directory {}", path.display());
    let made = match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => true,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
        Err(e) => return Err(e).with_context(|| named("make")),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder: File = rustix::fs::open(path, flags, Mode::empty()).with_context(|| named("open"))?.into();
    if made && let Some(User { uid, gid }) = user {
        std::os::unix::fs::fchown(&folder, Some(uid), Some(gid)).with_context(|| named("give away"))?;
    }
    let found = folder.metadata().with_context(|| named("look at"))?.uid();
    if found != wanted {
        bail!(
            "the state directory {} belongs to user {found}, the broker runs as {wanted}: remove it, or say --broker-user {found}",
            path.display()
        );
    }
    folder.set_permissions(Permissions::from_mode(0o700)).with_context(|| named("close to others"))?;
    let file_system = rustix::fs::fstatfs(&folder).with_context(|| named("look at"))?;
    if !is_volatile(&file_system) {
        warn!(
            state_dir = %path.display(),
            "the state directory is not on a tmpfs: it outlives the boot that it is of, and writing to it may wait for a disk"
        );
    }
    Ok(folder.into())
}

/// Whether a file system is empty after a boot.
pub(super) fn is_volatile(file_system: &StatFs) -> bool {
    u64::try_from(file_system.f_type).is_ok_and(|t| VOLATILE.contains(&t))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_folder_is_the_brokers_alone() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("state");
        drop(open_state(&path, None).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        // One that is open to others is closed to them; one that is a link is not followed.
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        drop(open_state(&path, None).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open_state(&link, None).is_err());
        // Another user's is refused, with both named.
        let own = rustix::process::geteuid().as_raw();
        let error = open_state(&path, Some(User { uid: own + 1, gid: own })).unwrap_err().to_string();
        assert!(error.contains(&format!("--broker-user {own}")), "{error}");
    }

    #[tokio::test]
    async fn a_node_has_one_owner_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = own_the_node(folder.path()).await.unwrap();
        let second = own_the_node(folder.path()).await.unwrap_err();
        assert!(second.to_string().contains("another daemon owns"), "{second}");
        drop(first);
        own_the_node(folder.path()).await.unwrap();
    }
}
