//! What a run found, as JSON, as a table, and two runs side by side.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::Tag;

/// What one row found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Result {
    /// Stable name.
    pub id: String,
    /// Section of the measured facts.
    pub section: u8,
    /// How it is compared.
    pub tag: Tag,
    /// The question in a sentence.
    pub says: String,
    /// The answer.
    pub outcome: String,
    /// How long the row took, in milliseconds.
    pub took_ms: u64,
}

impl Result {
    /// The row could not be tried.
    pub fn not_run(&self) -> bool {
        self.outcome.starts_with("not run: ")
    }
}

/// What one run found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// 1000 × major + 10 × minor.
    pub driver_version: u64,
    /// Number of devices seen.
    pub devices: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// All rows, in order.
    pub results: Vec<Result>,
}

/// Release of the running kernel.
pub(crate) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// How the columns of a row stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Same,
    Differs,
    NotCompared,
}

fn verdict(left: Option<&Result>, right: Option<&Result>) -> Verdict {
    match (left, right) {
        (Some(left), Some(right)) if left.tag == Tag::Api && right.tag == Tag::Api => {
            if left.not_run() || right.not_run() {
                Verdict::NotCompared
            } else if left.outcome == right.outcome {
                Verdict::Same
            } else {
                Verdict::Differs
            }
        }
        _ => Verdict::NotCompared,
    }
}

/// Both runs as a Markdown table, and the number of rows that must not differ and do.
pub fn compare(simulated: &Report, real: &Report) -> (String, usize) {
    let right: BTreeMap<&str, &Result> = real.results.iter().map(|row| (row.id.as_str(), row)).collect();
    let left: BTreeMap<&str, &Result> = simulated.results.iter().map(|row| (row.id.as_str(), row)).collect();
    let order =
        simulated.results.iter().chain(real.results.iter().filter(|row| !left.contains_key(row.id.as_str())));
    let mut table = String::from("| row | section | tag | simulated | real | |\n|---|---|---|---|---|---|\n");
    let (mut same, mut differ, mut open) = (0, 0, 0);
    for row in order {
        let (left, right) = (left.get(row.id.as_str()).copied(), right.get(row.id.as_str()).copied());
        let mark = match verdict(left, right) {
            Verdict::Same => {
                same += 1;
                "same"
            }
            Verdict::Differs => {
                differ += 1;
                "**DIFFERS**"
            }
            Verdict::NotCompared => {
                open += 1;
                match row.tag {
                    Tag::Api => "not compared",
                    Tag::Time => "not compared (time)",
                    Tag::Kernel => "not simulated",
                }
            }
        };
        let cell =
            |row: Option<&Result>| row.map_or_else(|| "–".to_owned(), |row| row.outcome.replace('|', "\\|"));
        let _ = writeln!(
            table,
            "| `{}` | {} | {} | {} | {} | {mark} |",
            row.id,
            row.section,
            row.tag,
            cell(left),
            cell(right)
        );
    }
    let _ = writeln!(table, "\n{same} rows are the same, {differ} differ, {open} are not compared.");
    (table, differ)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &[(&str, Tag, &str)]) -> Report {
        let result = |&(id, tag, outcome): &(&str, Tag, &str)| Result {
            id: id.into(),
            section: 1,
            tag,
            says: String::new(),
            outcome: outcome.into(),
            took_ms: 0,
        };
        let results = rows.iter().map(result).collect();
        Report { driver_version: 13000, devices: 1, kernel: String::new(), results }
    }

    #[test]
    fn only_api_rows_can_differ() {
        let left = report(&[("a", Tag::Api, "OK"), ("t", Tag::Time, "1.0 us"), ("k", Tag::Kernel, "x")]);
        let right = report(&[("a", Tag::Api, "OK"), ("t", Tag::Time, "9.0 us"), ("k", Tag::Kernel, "y")]);
        assert_eq!(compare(&left, &right).1, 0);
        let (table, differ) = compare(&left, &report(&[("a", Tag::Api, "SIGSEGV")]));
        assert_eq!(differ, 1);
        assert!(table.contains("| `a` | 1 | api | OK | SIGSEGV | **DIFFERS** |"), "{table}");
    }

    #[test]
    fn what_was_not_run_is_shown_and_no_difference() {
        let (table, differ) = compare(
            &report(&[("a", Tag::Api, "OK"), ("only-left", Tag::Api, "OK")]),
            &report(&[("a", Tag::Api, "not run: one GPU"), ("only-right", Tag::Api, "OK")]),
        );
        assert_eq!(differ, 0);
        assert!(table.contains("not run: one GPU | not compared"), "{table}");
        assert!(table.contains("`only-left`") && table.contains("`only-right`"), "{table}");
        assert!(table.ends_with("0 rows are the same, 0 differ, 3 are not compared.\n"), "{table}");
    }

    #[test]
    fn a_report_survives_json() {
        let report = report(&[("a", Tag::Kernel, "OK")]);
        assert_eq!(serde_json::from_str::<Report>(&serde_json::to_string(&report).unwrap()).unwrap(), report);
    }
}
