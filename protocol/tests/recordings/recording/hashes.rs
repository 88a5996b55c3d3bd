//! The list of a version's recordings with a hash of each, so that none changes, comes or goes unnoticed.

use std::fmt::Write as _;
use std::path::Path;

/// The list's name in its folder.
pub const LIST: &str = "hashes.txt";

/// The list as it should be for the files that are there.
///
/// # Errors
/// A sentence with what cannot be read.
pub fn list_of(folder: &Path) -> Result<String, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names: Vec<String> = entries
        .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    names.retain(|name| name != LIST);
    names.sort();
    let mut out = String::new();
    for name in names {
        let bytes = std::fs::read(folder.join(&name)).map_err(|e| format!("{name}: {e}"))?;
        let _ = writeln!(out, "{}  {name}", hash(&bytes));
    }
    Ok(out)
}

/// BLAKE3, as `b3sum` prints it.
pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}
