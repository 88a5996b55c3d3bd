//! A policy from its text.

use std::fmt;

use crate::{Policy, Version, limits};

/// Where in a text something stands, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// Why a text is no policy.
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
    /// Reads a policy that is a text of its own: YAML, or JSON, which is YAML.
    ///
    /// # Errors
    /// What is wrong first, and where.
    pub fn read(text: &str) -> Result<Self, PolicyError> {
        if text.len() > limits::TEXT_BYTES {
            let what = format!("{} bytes, expected at most {}", text.len(), limits::TEXT_BYTES);
            return Err(PolicyError { place: None, what });
        }
        scan(text)?;
        let policy: Self = serde_yaml::from_str(text)?;
        match policy.version {
            Some(Version::V1) => Ok(policy),
            None => Err(at(1, 1, format!("version: missing, expected `version: {}`", Version::V1))),
        }
    }
}

/// Refuses what YAML has and no policy needs: directives, aliases, tags, several documents and deep nesting. Some of it
/// costs the parser time that grows with the square of its length, some writes large policies in few bytes. The letters
/// that these begin with are in no name, so that nothing is refused within quotes that could be right.
fn scan(text: &str) -> Result<(), PolicyError> {
    let (mut depth, mut has_begun) = (0_usize, false);
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some((column, c)) = odd_break(line) {
            return Err(at(number, column + 1, format!("{c:?}, expected lines that end with a line feed")));
        }
        if line.starts_with('%') {
            return Err(at(number, 1, "a directive of YAML, which a policy does not take".to_owned()));
        }
        if line.starts_with("---") && has_begun {
            return Err(at(number, 1, "a second document, expected one policy".to_owned()));
        }
        for (column, c) in without_comment(line).chars().enumerate() {
            match c {
                '[' | '{' => depth += 1,
                ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            let what = match c {
                '*' => {
                    "`*`: a policy takes neither patterns nor aliases, each name has to be written".to_owned()
                }
                '&' | '!' => format!("`{c}`: a policy takes neither anchors nor tags"),
                _ if depth > limits::BRACKETS => {
                    format!("brackets within brackets, expected at most {}", limits::BRACKETS)
                }
                _ => continue,
            };
            return Err(at(number, column + 1, what));
        }
        has_begun |= !without_comment(line).trim().is_empty();
    }
    Ok(())
}

/// What YAML takes for the end of a line, or passes over, and no editor shows.
fn odd_break(line: &str) -> Option<(usize, char)> {
    let is_odd = |c: &char| matches!(c, '\r' | '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}');
    line.chars().enumerate().find(|(_, c)| is_odd(c))
}

/// A line up to its comment.
fn without_comment(line: &str) -> &str {
    let begins = |at: &usize| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(begins);
    comment.map_or(line, |at| &line[..at])
}

const fn at(line: usize, column: usize, what: String) -> PolicyError {
    PolicyError { place: Some(Place { line, column }), what }
}
