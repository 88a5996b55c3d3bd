//! A policy from its text.

use std::fmt;

use crate::plain::at;
use crate::{Policy, Subject, Version, read_plain};

/// Where in a text something stands, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// Why bytes are no text, no policy, or no settings of the injection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    /// Where.
    pub place: Option<Place>,
    /// The key's path and what is wrong with it.
    pub what: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { line, column }) = self.place {
            write!(f, "line {line} column {column}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl From<serde_yaml::Error> for PolicyError {
    fn from(error: serde_yaml::Error) -> Self {
        let place = error.location().map(|at| Place { line: at.line(), column: at.column() });
        let mut what = error.to_string();
        // It stands before the text here.
        if let Some(Place { line, column }) = place {
            what = what.replacen(&format!(" at line {line} column {column}"), "", 1);
        }
        Self { place, what }
    }
}

impl Policy {
    /// Reads a policy that is a text of its own, UTF-8 to the last comment: YAML, or JSON, which is YAML.
    ///
    /// # Errors
    /// What is wrong first, and where.
    pub fn read(text: &(impl AsRef<[u8]> + ?Sized)) -> Result<Self, PolicyError> {
        let policy: Self = read_plain(text.as_ref(), Subject::Policy)?;
        match policy.version {
            Some(Version::V1) => Ok(policy),
            None => Err(at(1, 1, format!("version: missing, expected `version: {}`", Version::V1))),
        }
    }
}
