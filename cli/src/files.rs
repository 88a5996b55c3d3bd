//! Files that people name, of limited size.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use gpu_handoff_policy::open_regular;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It could not be read.
    #[error("read {0}")]
    Read(String, #[source] io::Error),
    /// It is larger than any may be.
    #[error("{file} has more than {limit} bytes")]
    TooLarge {
        /// Which one.
        file: String,
        /// Most that it may have.
        limit: u64,
    },
}

/// What is in a file of at most so many bytes, or on standard input where it is called `-`.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let mut limited = |source: &mut dyn Read| source.take(limit + 1).read_to_end(&mut bytes);
    let read = if is_standard_input(path) {
        limited(&mut io::stdin().lock())
    } else {
        open(path).and_then(|mut file| limited(&mut file))
    };
    match read {
        Err(e) => Err(FileError::Read(shown(path), e)),
        Ok(read) if read as u64 > limit => Err(FileError::TooLarge { file: shown(path), limit }),
        Ok(_) => Ok(bytes),
    }
}

/// What the command was given as an open file may be a pipe; nothing else that is waited for is a file to read.
fn open(path: &Path) -> io::Result<File> {
    let given =
        path == Path::new("/dev/stdin") || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd");
    if given { File::open(path) } else { open_regular(path) }
}

/// What is in a file that may be a policy, or settings. One byte more than one may have is a finding about it, many more are none that
/// anybody needs.
pub(crate) fn read_policy(path: &Path) -> Result<Vec<u8>, FileError> {
    read(path, 2 * gpu_handoff_policy::limits::TEXT_BYTES as u64)
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// What a file is called in messages.
pub(crate) fn shown(path: &Path) -> String {
    if is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}
