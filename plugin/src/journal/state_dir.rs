//! The folder of what outlives a daemon, but not the machine's boot: a key, and the journal.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gpu_handoff_protocol::BootTag;
use tracing::{info, warn};

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;
/// `RAMFS_MAGIC` of `linux/magic.h`.
const RAMFS: u64 = 0x8584_58f6;
/// What a key file begins with.
const KEY_MAGIC: &[u8; 8] = b"gpuhoke1";

/// The secret of this node and boot, which seals receipts and the journal.
#[derive(Clone)]
pub struct NodeKey([u8; 32]);

impl NodeKey {
    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A key of these bytes, which must be hard to guess.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(secret)")
    }
}

/// An opened state folder.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
    key: NodeKey,
    boot: BootTag,
}

impl StateDir {
    /// Opens the folder, makes it where it is missing, and takes over its key; what is of another boot is thrown away.
    ///
    /// # Errors
    /// When the folder cannot be made our own, or the key cannot be written.
    pub fn open(path: &Path, boot: BootTag) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
        warn_if_on_disk(path)?;
        let file = path.join("key");
        let key = match read_key(&file, boot)? {
            Some(key) => key,
            None => {
                drop(std::fs::remove_file(path.join("journal")));
                info!(folder = %path.display(), "a new key: nothing outlives an earlier boot");
                make_key(path, &file, boot)?
            }
        };
        Ok(Self { path: path.to_path_buf(), key, boot })
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &NodeKey {
        &self.key
    }

    /// The boot that it is of.
    #[must_use]
    pub const fn boot(&self) -> BootTag {
        self.boot
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    pub(super) fn next_journal(&self) -> PathBuf {
        self.path.join("journal.new")
    }
}

/// On a disk the key outlives the boot, which its boot tag makes good, but whoever gets the disk gets the key.
fn warn_if_on_disk(path: &Path) -> io::Result<()> {
    let kind = rustix::fs::fstatfs(File::open(path)?.as_fd())?.f_type;
    if !matches!(u64::try_from(kind), Ok(TMPFS | RAMFS)) {
        warn!(folder = %path.display(), "the state folder is not on a tmpfs: its key outlives the boot on a disk");
    }
    Ok(())
}

/// Reads the key; `None`: there is none of this boot.
fn read_key(file: &Path, boot: BootTag) -> io::Result<Option<NodeKey>> {
    let mut text = Vec::new();
    match OpenOptions::new().read(true).custom_flags(no_follow()).open(file) {
        Ok(open) => open.take(64).read_to_end(&mut text)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let found = text.strip_prefix(KEY_MAGIC).and_then(|rest| rest.strip_prefix(&boot.0.to_be_bytes()));
    Ok(found.and_then(|key| key.try_into().ok()).map(NodeKey))
}

fn make_key(folder: &Path, file: &Path, boot: BootTag) -> io::Result<NodeKey> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let new = folder.join("key.new");
    let mut open = create(&new)?;
    open.write_all(&[KEY_MAGIC.as_slice(), &boot.0.to_be_bytes(), &key].concat())?;
    std::fs::rename(&new, file)?;
    Ok(NodeKey(key))
}

/// Makes an empty file that only its owner may read, in the place of whatever is there.
pub(super) fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    OpenOptions::new().append(true).create_new(true).mode(0o600).custom_flags(no_follow()).open(path)
}

pub(super) fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}
