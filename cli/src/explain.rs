//! `gpu-handoff explain`: what a refusal's code means. Reads the documentation that was built in, asks nobody.

use std::io::Write;

use gpu_handoff_client::Code;
use serde::Serialize;

use crate::args::Format;
use crate::failure::Failure;
use crate::output;

/// The page that explains every code.
const PAGE: &str = include_str!("../../docs/refusals.md");
/// Width of the text, in columns.
const COLUMNS: usize = 100;
/// Where the text begins, in columns.
const INDENT: usize = 10;

#[derive(Serialize)]
struct Explanation {
    code: &'static str,
    number: u32,
    means: String,
    compared: String,
    r#do: String,
    documentation: String,
}

pub(crate) fn run(code: Option<&str>, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(asked) = code else { return all(format, out) };
    let explanation = Explanation::of(find(asked)?);
    match format {
        Format::Json => output::json(out, &explanation),
        Format::Text => Ok(explanation.write(out)?),
    }
}

fn all(format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    if format == Format::Json {
        return output::json(out, &Code::ALL.iter().copied().map(Explanation::of).collect::<Vec<_>>());
    }
    let rows = Code::ALL.iter().map(|code| {
        let (number, short) = (code.number().to_string(), in_short(*code).unwrap_or_default());
        output::row([&number, code.as_str(), &short])
    });
    let rows: Vec<_> = std::iter::once(output::row(["NUMBER", "CODE", "IN SHORT"])).chain(rows).collect();
    output::table(out, &rows)?;
    Ok(writeln!(out, "\n`gpu-handoff explain CODE` tells what was compared and what to do.")?)
}

/// The code of a name or number, however it is written.
fn find(asked: &str) -> Result<Code, Failure> {
    let name = asked.to_ascii_uppercase().replace(['-', ' '], "_");
    let found = |code: &&Code| code.as_str() == name || code.number().to_string() == name;
    if let Some(code) = Code::ALL.iter().find(found) {
        return Ok(*code);
    }
    Err(Failure::UnknownCode { asked: asked.to_owned(), nearest: nearest(&name) })
}

/// The code that may have been meant: at most every third letter was mistaken.
fn nearest(name: &str) -> Option<&'static str> {
    let distances = Code::ALL.iter().map(|code| (distance(name, code.as_str()), code.as_str()));
    let (mistakes, nearest) = distances.min_by_key(|(mistakes, _)| *mistakes)?;
    (mistakes <= name.len() / 3).then_some(nearest)
}

impl Explanation {
    fn of(code: Code) -> Self {
        let section = section(code).unwrap_or_default();
        Self {
            code: code.as_str(),
            number: code.number(),
            means: part(section, "Means").unwrap_or_default(),
            compared: part(section, "Compared").unwrap_or_default(),
            r#do: part(section, "Do").unwrap_or_else(|| code.remedy().to_owned()),
            documentation: code.anchor(),
        }
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "{} ({})", self.code, self.number)?;
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

/// What the page says of a code, up to the next heading.
fn section(code: Code) -> Option<&'static str> {
    let heading = format!("\n### {}\n", code.as_str());
    let (_, rest) = PAGE.split_once(&heading)?;
    Some(rest.split("\n##").next().unwrap_or(rest))
}

/// The paragraph of a section that begins with this word in bold, on one line and without markup.
fn part(section: &str, name: &str) -> Option<String> {
    let (_, rest) = section.split_once(&format!("**{name}:**"))?;
    let end = [rest.find("\n**"), rest.find("\n\n")].into_iter().flatten().min();
    let text = rest.get(..end.unwrap_or(rest.len()))?;
    Some(plain(text).split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The third column of the code's line in the page's table.
fn in_short(code: Code) -> Option<String> {
    let start = format!("| {} |", code.number());
    let line = PAGE.lines().find(|line| line.starts_with(&start))?;
    line.split('|').nth(3).map(|cell| plain(cell.trim()))
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

/// Letters to change, add or remove to get from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_meaning_a_comparison_and_a_remedy() {
        for code in Code::ALL {
            let Explanation { means, compared, r#do, .. } = Explanation::of(*code);
            for text in [means, compared, r#do, in_short(*code).unwrap_or_default()] {
                assert!(!text.is_empty() && !text.contains(['`', '*', '[']), "{code}: {text:?}");
            }
        }
    }

    #[test]
    fn a_code_is_found_however_it_is_written() {
        for asked in ["NOT_FOUND", "not-found", "Not Found", "20"] {
            assert_eq!(find(asked).unwrap(), Code::NotFound, "{asked}");
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
