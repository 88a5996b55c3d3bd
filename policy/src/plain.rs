//! Texts that an administrator writes, in as much of YAML as they need.

use std::fmt;

use serde::de::DeserializeOwned;

use crate::{Place, PolicyError, Sign, limits, signs};

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

/// Refuses what YAML has and such a text does not need. Some of it costs the parser time that grows with the square of its
/// length, some writes much in few bytes.
fn scan(text: &str, subject: Subject) -> Result<(), PolicyError> {
    let found = [odd_line(text, subject), blanks(text), odd_sign(text, subject)];
    let first = found.into_iter().flatten().min_by_key(|(place, _)| (place.line, place.column));
    first.map_or(Ok(()), |(place, what)| Err(PolicyError { place: Some(place), what }))
}

/// The first line that is none of such a text.
fn odd_line(text: &str, subject: Subject) -> Option<(Place, String)> {
    let mut has_begun = false;
    for (index, line) in text.lines().enumerate() {
        let found = if let Some((column, c)) = odd_break(line) {
            Some((column, format!("{c:?}, expected lines that end with a line feed")))
        } else if line.starts_with("---") && has_begun {
            Some((0, format!("a second document, expected {subject} alone")))
        } else if let Some(column) = pattern(line).filter(|_| subject == Subject::Policy) {
            // Settings have patterns. Without anchors, nothing is an alias.
            let what = "`*`: a policy takes neither patterns nor aliases, each name has to be written";
            Some((column, what.to_owned()))
        } else {
            None
        };
        if let Some((column, what)) = found {
            return Some((Place { line: index + 1, column: column + 1 }, what));
        }
        let line = line.trim_start();
        has_begun |= !line.is_empty() && !line.starts_with('#');
    }
    None
}

/// Where more blanks and empty lines follow each other than may: of a text that has words after them, all are looked at with
/// each word.
fn blanks(text: &str) -> Option<(Place, String)> {
    let (mut line, mut column, mut row) = (1, 0, 0);
    for c in text.chars() {
        column += 1;
        row = if matches!(c, ' ' | '\t' | '\n' | '\r') { row + 1 } else { 0 };
        if row > limits::BLANKS {
            let what = format!("blanks in a row, expected at most {}", limits::BLANKS);
            return Some((Place { line, column }, what));
        }
        if c == '\n' {
            (line, column) = (line + 1, 0);
        }
    }
    None
}

fn odd_sign(text: &str, subject: Subject) -> Option<(Place, String)> {
    signs(text).find_map(|(place, sign)| {
        let what = match sign {
            Sign::Directive => format!("a directive of YAML, which {subject} does not take"),
            Sign::Anchor => format!("`&`: {subject} takes neither anchors nor tags"),
            Sign::Tag => format!("`!`: {subject} takes neither anchors nor tags"),
            Sign::Open(open) if open > limits::BRACKETS => {
                format!("brackets within brackets, expected at most {}", limits::BRACKETS)
            }
            Sign::Open(_) | Sign::Alias => return None,
        };
        Some((place, what))
    })
}

/// What YAML takes for the end of a line, or passes over, and no editor shows.
fn odd_break(line: &str) -> Option<(usize, char)> {
    let is_odd = |c: &char| matches!(c, '\r' | '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}');
    line.chars().enumerate().find(|(_, c)| is_odd(c))
}

/// The first `*` of a line before what looks like a comment.
fn pattern(line: &str) -> Option<usize> {
    let mut before = ' ';
    for (column, c) in line.chars().enumerate() {
        match c {
            '*' => return Some(column),
            '#' if before.is_whitespace() => return None,
            _ => before = c,
        }
    }
    None
}

pub(crate) const fn at(line: usize, column: usize, what: String) -> PolicyError {
    PolicyError { place: Some(Place { line, column }), what }
}
