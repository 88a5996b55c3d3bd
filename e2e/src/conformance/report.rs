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
    /// The answer; empty for one that is still to be measured: the row asks something else than when it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub outcome: String,
    /// How long the row took, in milliseconds.
    pub took_ms: u64,
}

impl Result {
    /// The row could not be tried.
    pub fn not_run(&self) -> bool {
        self.outcome.starts_with("not run: ")
    }

    /// The row could not be brought to what it asks.
    pub fn set_up_failed(&self) -> bool {
        self.outcome.starts_with("set-up failed: ")
    }
}

/// What one run found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whose answers these are, in words: GPU, driver, day.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// 1000 × major + 10 × minor.
    pub driver_version: u64,
    /// Number of devices seen.
    pub devices: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// All rows, in order.
    pub results: Vec<Result>,
}

/// Version of the running kernel, without what its distribution adds.
pub(crate) fn kernel_release() -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    release.split('-').next().unwrap_or_default().to_owned()
}

/// How the columns of a row stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The same answer.
    Same,
    /// Another answer.
    Differs,
    /// Not to be compared: times, and what is not simulated.
    NotCompared,
    /// One of the two could not try it.
    NotRun,
    /// The real driver has not been asked this.
    NotMeasured,
    /// The suite asks this no longer.
    NotAsked,
}

/// A row of two runs.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// What the simulated driver said.
    pub simulated: Option<&'a Result>,
    /// What the real driver said.
    pub real: Option<&'a Result>,
    /// Whether that is the same.
    pub verdict: Verdict,
}

fn verdict(simulated: Option<&Result>, real: Option<&Result>) -> Verdict {
    let Some(simulated) = simulated else { return Verdict::NotAsked };
    if simulated.tag != Tag::Api {
        return Verdict::NotCompared;
    }
    match real.filter(|real| !real.outcome.is_empty()) {
        None => Verdict::NotMeasured,
        Some(real) if simulated.not_run() || real.not_run() => Verdict::NotRun,
        Some(real) if simulated.outcome == real.outcome => Verdict::Same,
        Some(_) => Verdict::Differs,
    }
}

/// The rows of both runs in their order, those of the simulated driver first.
pub fn pairs<'a>(simulated: &'a Report, real: &'a Report) -> Vec<Pair<'a>> {
    let by_id = |report: &'a Report| -> BTreeMap<&'a str, &'a Result> {
        report.results.iter().map(|row| (row.id.as_str(), row)).collect()
    };
    let (left, right) = (by_id(simulated), by_id(real));
    let pair = |id: &str| {
        let (simulated, real) = (left.get(id).copied(), right.get(id).copied());
        Pair { simulated, real, verdict: verdict(simulated, real) }
    };
    let gone = real.results.iter().filter(|row| !left.contains_key(row.id.as_str()));
    simulated.results.iter().chain(gone).map(|row| pair(&row.id)).collect()
}

/// Both runs as a Markdown page, and the number of rows that must not differ and do.
pub fn compare(simulated: &Report, real: &Report) -> (String, usize) {
    let machine = if real.machine.is_empty() { "a real driver" } else { &real.machine };
    let mut page = format!(
        "# The simulated driver beside a real one\n\n\
         Real: {machine}; CUDA {}.{}, {} GPU(s), Linux {}.\n\
         Simulated: {} GPU(s), Linux {}.\n\n\
         Made by `conformance run --json FILE` on each and `conformance compare SIMULATED REAL`. Rows tagged `api` must \
         not differ.\n\n\
         | row | section | tag | simulated | real | |\n|---|---|---|---|---|---|\n",
        real.driver_version / 1000,
        real.driver_version % 1000 / 10,
        real.devices,
        real.kernel,
        simulated.devices,
        simulated.kernel,
    );
    let pairs = pairs(simulated, real);
    for Pair { simulated, real, verdict } in &pairs {
        let Some(row) = simulated.or(*real) else { continue };
        let mark = match (verdict, row.tag) {
            (Verdict::Same, _) => "same",
            (Verdict::Differs, _) => "**DIFFERS**",
            (Verdict::NotRun, _) => "not run",
            (Verdict::NotMeasured, _) => "not measured",
            (Verdict::NotAsked, _) => "no longer asked",
            (Verdict::NotCompared, Tag::Time) => "not compared (time)",
            (Verdict::NotCompared, _) => "not simulated",
        };
        let cell = |row: &Option<&Result>| {
            let outcome =
                row.map(|row| row.outcome.replace('|', "\\|")).filter(|outcome| !outcome.is_empty());
            outcome.unwrap_or_else(|| "–".to_owned())
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {mark} |",
            row.id,
            row.section,
            row.tag,
            cell(simulated),
            cell(real)
        );
    }
    let _ = writeln!(page, "\n{}", counts(&pairs));
    (page, count(&pairs, Verdict::Differs))
}

fn count(pairs: &[Pair<'_>], wanted: Verdict) -> usize {
    pairs.iter().filter(|pair| pair.verdict == wanted).count()
}

/// How many rows have which verdict, in a sentence.
pub fn counts(pairs: &[Pair<'_>]) -> String {
    let of = |verdict| count(pairs, verdict);
    format!(
        "{} rows are the same, {} differ, {} were not run, {} are not measured, {} are not compared.",
        of(Verdict::Same),
        of(Verdict::Differs),
        of(Verdict::NotRun),
        of(Verdict::NotMeasured),
        of(Verdict::NotCompared) + of(Verdict::NotAsked)
    )
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
        Report { machine: String::new(), driver_version: 13000, devices: 1, kernel: String::new(), results }
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
    fn what_was_not_run_or_not_measured_is_shown_and_no_difference() {
        let (table, differ) = compare(
            &report(&[("a", Tag::Api, "OK"), ("only-left", Tag::Api, "OK"), ("changed", Tag::Api, "OK")]),
            &report(&[
                ("a", Tag::Api, "not run: one GPU"),
                ("changed", Tag::Api, ""),
                ("gone", Tag::Api, "OK"),
            ]),
        );
        assert_eq!(differ, 0);
        for line in [
            "| OK | not run: one GPU | not run |",
            "| `only-left` | 1 | api | OK | – | not measured |",
            "| `changed` | 1 | api | OK | – | not measured |",
            "| `gone` | 1 | api | – | OK | no longer asked |",
        ] {
            assert!(table.contains(line), "{line} is missing in {table}");
        }
        let counts =
            "0 rows are the same, 0 differ, 1 were not run, 2 are not measured, 1 are not compared.\n";
        assert!(table.ends_with(counts), "{table}");
    }

    #[test]
    fn a_report_survives_json() {
        let report = report(&[("a", Tag::Kernel, "OK"), ("b", Tag::Api, "")]);
        assert_eq!(serde_json::from_str::<Report>(&serde_json::to_string(&report).unwrap()).unwrap(), report);
    }
}
