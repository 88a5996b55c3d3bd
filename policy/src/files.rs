//! Files that somebody else writes, such as a policy's, looked at now and then: by their contents, because a mounted ConfigMap or
//! Secret changes by a link that is renamed, which no watch of the file would see, and a mounted file by itself.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// What the system said.
    #[error("read {path}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is too large.
    #[error("{path} has more than {limit} bytes")]
    TooLarge {
        /// Which one.
        path: PathBuf,
        /// How many it may have.
        limit: u64,
    },
}

/// What some files have in them.
pub type Contents<const N: usize> = [Vec<u8>; N];

/// Files that belong together, as they were when they were looked at last.
#[derive(Debug)]
pub struct Files<const N: usize = 1> {
    paths: [PathBuf; N],
    /// Most bytes that each may have.
    limit: u64,
    /// What was read last; nothing where it could not be.
    last: Option<Contents<N>>,
}

impl<const N: usize> Files<N> {
    /// Reads them.
    ///
    /// # Errors
    /// What keeps one of them from being read.
    pub fn open(paths: [PathBuf; N], limit: u64) -> Result<(Self, Contents<N>), FileError> {
        let contents = read(&paths, limit)?;
        Ok((Self { paths, limit, last: Some(contents.clone()) }, contents))
    }

    /// What is in them, if that is something else than before.
    ///
    /// # Errors
    /// What keeps one of them from being read. That is told once, until they can be.
    pub fn look(&mut self) -> Result<Option<Contents<N>>, FileError> {
        match read(&self.paths, self.limit) {
            Ok(contents) if self.last.as_ref() == Some(&contents) => Ok(None),
            Ok(contents) => Ok(Some(self.last.insert(contents).clone())),
            Err(error) => self.last.take().map_or(Ok(None), |_| Err(error)),
        }
    }

    /// Where they are.
    #[must_use]
    pub const fn paths(&self) -> &[PathBuf; N] {
        &self.paths
    }
}

impl Files<1> {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        let [path] = &self.paths;
        path
    }
}

/// Opens a file for reading, and never waits: what is no regular file, such as a FIFO that nobody writes to, is refused.
///
/// # Errors
/// What the system answers, or that it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
    }
}

fn read<const N: usize>(paths: &[PathBuf; N], limit: u64) -> Result<Contents<N>, FileError> {
    let mut contents = [const { Vec::new() }; N];
    for (path, bytes) in paths.iter().zip(&mut contents) {
        let failed = |source| FileError::Io { path: path.clone(), source };
        let file = open_regular(path).map_err(failed)?;
        file.take(limit + 1).read_to_end(bytes).map_err(failed)?;
        if bytes.len() as u64 > limit {
            return Err(FileError::TooLarge { path: path.clone(), limit });
        }
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_in_any_way_is_read_again_and_only_then() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // As a ConfigMap is mounted: the file is a link into a folder that is a link.
        let publish = |name: &str, text: &str| {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), text).unwrap();
            std::os::unix::fs::symlink(name, at("new")).unwrap();
            std::fs::rename(at("new"), at("data")).unwrap();
        };
        publish("first", "one");
        std::os::unix::fs::symlink("data/file", at("file")).unwrap();
        let (mut file, contents) = Files::open([at("file")], 4).unwrap();
        assert_eq!((contents, file.look().unwrap()), ([b"one".to_vec()], None));
        publish("second", "one");
        assert_eq!(file.look().unwrap(), None, "it says the same");
        publish("third", "two");
        assert_eq!(file.look().unwrap(), Some([b"two".to_vec()]));
        // Of the same length, within the same moment.
        std::fs::write(at("third").join("file"), "six").unwrap();
        assert_eq!((file.look().unwrap(), file.look().unwrap()), (Some([b"six".to_vec()]), None));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_and_nobody_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let is_refused = |error: FileError| matches!(error, FileError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidInput);
        std::fs::write(&path, "good").unwrap();
        let (mut file, _) = Files::open([path.clone()], 4).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        // With nobody at its other end to open waits, and to read with somebody there who writes nothing.
        assert!(is_refused(file.look().unwrap_err()));
        let _silent = File::options().read(true).write(true).open(&path).unwrap();
        assert!(is_refused(Files::open([path.clone()], 4).unwrap_err()));
        for other in [Path::new("/dev/zero"), folder.path()] {
            assert!(is_refused(Files::open([other.to_path_buf()], 4).unwrap_err()));
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "else").unwrap();
        assert_eq!(file.look().unwrap(), Some([b"else".to_vec()]));
    }

    #[test]
    fn what_cannot_be_read_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(matches!(Files::open([path.clone()], 4), Err(FileError::Io { .. })));
        std::fs::write(&path, "good").unwrap();
        let (mut file, _) = Files::open([path.clone()], 4).unwrap();
        std::fs::write(&path, "large").unwrap();
        assert!(matches!(file.look(), Err(FileError::TooLarge { limit: 4, .. })));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.look().unwrap(), None);
        std::fs::write(&path, "good").unwrap();
        assert_eq!(file.look().unwrap(), Some([b"good".to_vec()]), "it is there again");
    }
}
