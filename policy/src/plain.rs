//! Texts that an administrator writes, in as much of YAML as they need.

use std::fmt;

use serde::de::DeserializeOwned;

use crate::{Place, PolicyError, limits};

/// What such a text is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The policy of a node.
    Policy,
    /// The settings of the injection.
    Settings,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "a policy",
            Self::Settings => "a file of settings",
        })
    }
}

/// Reads a text of its own: YAML, or JSON, which is YAML; UTF-8 to the last comment. A byte order mark before it is passed over.
///
/// # Errors
/// What is wrong first, and where.
pub fn read_plain<T: DeserializeOwned>(bytes: &[u8], subject: Subject) -> Result<T, PolicyError> {
    if bytes.len() > limits::TEXT_BYTES {
        let what = format!("{} bytes, expected at most {}", bytes.len(), limits::TEXT_BYTES);
        return Err(PolicyError { place: None, what });
    }
    let text = as_text(bytes)?;
    scan(text, subject)?;
    Ok(serde_yaml::from_str(text)?)
}

/// What a file has in it, as a text. Nothing is read in the place of what is none. A byte order mark before it is left out.
///
/// # Errors
/// The first byte that belongs to no text in UTF-8, and where it is.
pub fn as_text(bytes: &[u8]) -> Result<&str, PolicyError> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|e| {
        let before = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let column = line.chars().count() + 1;
        at(before.matches('\n').count() + 1, column, "a byte that is no UTF-8".to_owned())
    })
}

/// Refuses what YAML has and such a text does not need: directives, aliases, tags, several documents and deep nesting.
/// Some of it costs the parser time that grows with the square of its length, some writes much in few bytes. The letters
/// that these begin with are in no name, so that nothing is refused within quotes that could be right.
fn scan(text: &str, subject: Subject) -> Result<(), PolicyError> {
    let (mut depth, mut has_begun) = (0_usize, false);
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some((column, c)) = odd_break(line) {
            return Err(at(number, column + 1, format!("{c:?}, expected lines that end with a line feed")));
        }
        if line.starts_with('%') {
            return Err(at(number, 1, format!("a directive of YAML, which {subject} does not take")));
        }
        if line.starts_with("---") && has_begun {
            return Err(at(number, 1, format!("a second document, expected {subject} alone")));
        }
        for (column, c) in without_comment(line).chars().enumerate() {
            match c {
                '[' | '{' => depth += 1,
                ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            let what = match c {
                // Settings have patterns. Without anchors, nothing is an alias.
                '*' if subject == Subject::Policy => {
                    "`*`: a policy takes neither patterns nor aliases, each name has to be written".to_owned()
                }
                '&' | '!' => format!("`{c}`: {subject} takes neither anchors nor tags"),
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

pub(crate) const fn at(line: usize, column: usize, what: String) -> PolicyError {
    PolicyError { place: Some(Place { line, column }), what }
}
