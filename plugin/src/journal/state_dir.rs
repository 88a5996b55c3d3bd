//! The folder of what outlives a broker, but not the machine's boot: a key, and the journal. The node has made it, and
//! closed it to everybody but the broker's own user.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::BootTag;
use gpu_handoff_sys::random::random;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use tracing::info;

/// The secret of this node and boot.
const KEY: &str = "key";
/// It, while it is being written.
const NEXT_KEY: &str = "key.new";
/// What a key file begins with.
const KEY_MAGIC: &[u8; 8] = b"gpuhoke1";
/// Length of a key file, in bytes: what it begins with, the boot, the key.
const KEY_FILE_BYTES: usize = 8 + 8 + 32;
/// What is alive.
pub(super) const JOURNAL: &str = "journal";
/// It, while it is being written anew.
pub(super) const NEXT_JOURNAL: &str = "journal.new";

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
    folder: Arc<OwnedFd>,
    key: NodeKey,
    boot: BootTag,
}

impl StateDir {
    /// Takes over the folder and its key; what is of another boot is thrown away.
    ///
    /// # Errors
    /// When the key cannot be read or written.
    pub fn open(folder: OwnedFd, boot: BootTag) -> io::Result<Self> {
        let files = Files(&folder);
        let key = match files.read_key(boot)? {
            Some(key) => key,
            None => {
                files.remove(JOURNAL)?;
                info!("a new key: nothing outlives an earlier boot");
                files.make_key(boot)?
            }
        };
        Ok(Self { folder: Arc::new(folder), key, boot })
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

    pub(super) fn files(&self) -> Files<'_> {
        Files(&self.folder)
    }
}

/// The files of the folder. Links are never followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files<'a>(&'a OwnedFd);

impl Files<'_> {
    /// Opens a file for reading; `None`: there is none.
    pub(super) fn open(self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(self.0, name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes an empty file that only its owner may read, in the place of whatever is there.
    pub(super) fn create(self, name: &str) -> io::Result<File> {
        self.remove(name)?;
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.0, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    pub(super) fn rename(self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.0, from, self.0, to)?)
    }

    /// Removes a file, if there is one.
    pub(super) fn remove(self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads the key; `None`: there is none of this boot.
    fn read_key(self, boot: BootTag) -> io::Result<Option<NodeKey>> {
        let Some(file) = self.open(KEY)? else { return Ok(None) };
        let mut text = Vec::new();
        file.take(KEY_FILE_BYTES as u64 + 1).read_to_end(&mut text)?;
        let found = text.strip_prefix(KEY_MAGIC).and_then(|rest| rest.strip_prefix(&boot.0.to_be_bytes()));
        Ok(found.and_then(|key| key.try_into().ok()).map(NodeKey))
    }

    fn make_key(self, boot: BootTag) -> io::Result<NodeKey> {
        let key: [u8; 32] = random()?;
        let mut file = self.create(NEXT_KEY)?;
        file.write_all(&[KEY_MAGIC.as_slice(), &boot.0.to_be_bytes(), &key].concat())?;
        self.rename(NEXT_KEY, KEY)?;
        Ok(NodeKey(key))
    }
}
