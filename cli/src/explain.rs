//! `gpu-handoff explain`: what the code of a refusal or denial means. Reads the documentation that was built in, asks nobody.

use std::io::Write;

use gpu_handoff_client::Code;
use serde::Serialize;

use crate::args::Format;
use crate::failure::Failure;
use crate::output;

/// The page that explains every refusal.
const REFUSALS: &str = include_str!("../../docs/refusals.md");
/// The page that explains every denial.
#[cfg(feature = "inject")]
const DENIALS: &str = include_str!("../../docs/denials.md");
/// Width of the text, in columns.
const COLUMNS: usize = 100;
/// Where the text begins, in columns.
const INDENT: usize = 10;

/// A code that a page explains.
struct Entry {
    code: &'static str,
    /// Denials have none.
    number: Option<u32>,
    remedy: &'static str,
    documentation: String,
    page: &'static str,
}

impl From<Code> for Entry {
    fn from(code: Code) -> Self {
        Self {
            code: code.as_str(),
            number: Some(code.number()),
            remedy: code.remedy(),
            documentation: code.anchor(),
            page: REFUSALS,
        }
    }
}

#[cfg(feature = "inject")]
impl From<gpu_handoff_inject::DenialCode> for Entry {
    fn from(code: gpu_handoff_inject::DenialCode) -> Self {
        Self {
            code: code.as_str(),
            number: None,
            remedy: code.remedy(),
            documentation: code.anchor(),
            page: DENIALS,
        }
    }
}

/// All that can be explained.
fn entries() -> Vec<Entry> {
    let refusals = Code::ALL.iter().copied().map(Entry::from);
    #[cfg(feature = "inject")]
    let refusals = refusals.chain(gpu_handoff_inject::DenialCode::ALL.iter().copied().map(Entry::from));
    refusals.collect()
}

#[derive(Serialize)]
struct Explanation {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    means: String,
    compared: String,
    r#do: String,
    documentation: String,
}

pub(crate) fn run(code: Option<&str>, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(asked) = code else { return all(format, out) };
    let explanation = Explanation::of(&find(asked)?);
    match format {
        Format::Json => output::json(out, &explanation),
        Format::Text | Format::Yaml => Ok(explanation.write(out)?),
    }
}

fn all(format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let entries = entries();
    if format == Format::Json {
        return output::json(out, &entries.iter().map(Explanation::of).collect::<Vec<_>>());
    }
    let rows = entries.iter().map(|entry| {
        let number = entry.number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        output::row([&number, entry.code, &entry.in_short().unwrap_or_default()])
    });
    let rows: Vec<_> = std::iter::once(output::row(["NUMBER", "CODE", "IN SHORT"])).chain(rows).collect();
    output::table(out, &rows)?;
    Ok(writeln!(out, "\n`gpu-handoff explain CODE` tells what was compared and what to do.")?)
}

/// The code of a name or number, however it is written.
fn find(asked: &str) -> Result<Entry, Failure> {
    let name = asked.to_ascii_uppercase().replace(['-', ' '], "_");
    let mut entries = entries();
    let found = |entry: &Entry| entry.code == name || entry.number.is_some_and(|n| n.to_string() == name);
    match entries.iter().position(found) {
        Some(index) => Ok(entries.swap_remove(index)),
        None => Err(Failure::UnknownCode { asked: asked.to_owned(), nearest: nearest(&name, &entries) }),
    }
}

/// The code that may have been meant: at most every third letter was mistaken.
fn nearest(name: &str, entries: &[Entry]) -> Option<&'static str> {
    let distances = entries.iter().map(|entry| (strsim::levenshtein(name, entry.code), entry.code));
    let (mistakes, nearest) = distances.min_by_key(|(mistakes, _)| *mistakes)?;
    (mistakes <= name.len() / 3).then_some(nearest)
}

impl Explanation {
    fn of(entry: &Entry) -> Self {
        let section = entry.section().unwrap_or_default();
        Self {
            code: entry.code,
            number: entry.number,
            means: part(section, "Means").unwrap_or_default(),
            compared: part(section, "Compared").unwrap_or_default(),
            r#do: part(section, "Do").unwrap_or_else(|| entry.remedy.to_owned()),
            documentation: entry.documentation.clone(),
        }
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        match self.number {
            Some(number) => writeln!(out, "{} ({number})", self.code)?,
            None => writeln!(out, "{}", self.code)?,
        }
        let parts = [("means", &self.means), ("compared", &self.compared), ("do", &self.r#do)];
        for (name, text) in parts.into_iter().chain([("more", &self.documentation)]) {
            for (n, line) in wrap(text, COLUMNS - INDENT).iter().enumerate() {
                let name = if n == 0 { name } else { "" };
                writeln!(out, "{name:INDENT$}{line}")?;
            }
        }
        Ok(())
    }
}

impl Entry {
    /// What the page says of a code, up to the next heading.
    fn section(&self) -> Option<&'static str> {
        let heading = format!("\n### {}\n", self.code);
        let (_, rest) = self.page.split_once(&heading)?;
        Some(rest.split("\n##").next().unwrap_or(rest))
    }

    /// The column beside the code in the page's table.
    fn in_short(&self) -> Option<String> {
        let code = format!("[`{}`](", self.code);
        let line = self.page.lines().find(|line| line.starts_with('|') && line.contains(&code))?;
        let mut cells = line.split('|').skip_while(|cell| !cell.contains(&code));
        cells.nth(1).map(|cell| plain(cell.trim()))
    }
}

/// The paragraph of a section that begins with this word in bold, on one line and without markup.
fn part(section: &str, name: &str) -> Option<String> {
    let (_, rest) = section.split_once(&format!("**{name}:**"))?;
    let end = [rest.find("\n**"), rest.find("\n\n")].into_iter().flatten().min();
    let text = rest.get(..end.unwrap_or(rest.len()))?;
    Some(plain(text).split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Text without the marks of links, code and emphasis.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        out.push_str(before);
        rest = after.split_once(')').map_or("", |(_, tail)| tail);
    }
    out.push_str(rest);
    out.replace(['`', '*', '['], "")
}

fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_meaning_a_comparison_and_a_remedy() {
        for entry in entries() {
            let Explanation { means, compared, r#do, .. } = Explanation::of(&entry);
            for text in [means, compared, r#do, entry.in_short().unwrap_or_default()] {
                assert!(!text.is_empty() && !text.contains(['`', '*', '[']), "{}: {text:?}", entry.code);
            }
        }
    }

    #[test]
    fn a_code_is_found_however_it_is_written() {
        for asked in ["NOT_FOUND", "not-found", "Not Found", "20"] {
            assert_eq!(find(asked).unwrap().code, "NOT_FOUND", "{asked}");
        }
    }

    #[test]
    fn an_unknown_code_names_the_nearest_if_it_is_near() {
        let told = [
            ("NOT_FUOND", Some("NOT_FOUND")),
            ("quota-lease", Some("QUOTA_LEASES")),
            ("NOPE", None),
            ("999", None),
            ("", None),
        ];
        for (asked, wanted) in told {
            let Err(Failure::UnknownCode { nearest, .. }) = find(asked) else { panic!("found {asked}") };
            assert_eq!(nearest, wanted, "{asked}");
        }
    }
}
