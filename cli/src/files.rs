//! Files that people name, of limited size.

use std::io::{self, Read};
use std::path::Path;

/// Why a file has no text.
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

/// The text of a file of at most so many bytes, or of standard input where it is called `-`.
pub(crate) fn read(path: &Path, limit: u64) -> Result<String, FileError> {
    let failed = |e| FileError::Read(shown(path), e);
    let mut text = String::new();
    let mut limited = |source: &mut dyn Read| source.take(limit + 1).read_to_string(&mut text);
    let bytes = match is_standard_input(path) {
        true => limited(&mut io::stdin().lock()),
        false => std::fs::File::open(path).and_then(|mut file| limited(&mut file)),
    };
    if bytes.map_err(failed)? as u64 > limit {
        return Err(FileError::TooLarge { file: shown(path), limit });
    }
    Ok(text)
}

/// The text of a file that may be a policy, or settings. One byte more than one may have is a finding about it, many more are none that
/// anybody needs.
pub(crate) fn read_policy(path: &Path) -> Result<String, FileError> {
    read(path, 2 * gpu_handoff_policy::limits::TEXT_BYTES as u64)
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// What a file is called in messages.
pub(crate) fn shown(path: &Path) -> String {
    if is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}
