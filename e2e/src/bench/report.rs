//! Percentiles, as a table and as JSON.

use std::fmt;

use serde::Serialize;

use super::{Case, Mode, baseline, ours};
use crate::agent::MemoryKind;

/// Median and 99th percentile, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile; of fewer than 100 values the largest.
    pub p99_us: f64,
}

impl Percentiles {
    /// Of these values; `None` if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied()
        };
        Some(Self { p50_us: at(50)?, p99_us: at(99)? })
    }
}

/// One case.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    kind: MemoryKind,
    size: u64,
    mode: Mode,
    pause_us: u64,
    rounds: usize,
    #[serde(flatten)]
    total: Option<Percentiles>,
    export: Option<Percentiles>,
    node: Option<Percentiles>,
    /// Of `node`: the check by the GPU worker, from the publication's arrival to the verdict.
    check: Option<Percentiles>,
    map: Option<Percentiles>,
    /// The whole but for `check`.
    unchecked: Option<Percentiles>,
    raw_driver: Option<Percentiles>,
    /// The check that the node's GPU worker makes, measured alone.
    inspect: Option<Percentiles>,
}

impl Row {
    pub(super) fn new(case: &Case, ours: &ours::Times, raw: Option<&baseline::Times>) -> Self {
        Self {
            kind: case.kind,
            size: case.bytes,
            mode: case.mode,
            pause_us: case.pause_us,
            rounds: ours.total.len(),
            total: Percentiles::of(&ours.total),
            export: Percentiles::of(&ours.export),
            node: Percentiles::of(&ours.node),
            check: Percentiles::of(&ours.check),
            map: Percentiles::of(&ours.map),
            unchecked: Percentiles::of(&ours.unchecked),
            raw_driver: raw.and_then(|r| Percentiles::of(&r.total)),
            inspect: raw.and_then(|r| Percentiles::of(&r.inspect)).filter(|_| case.mode == Mode::Fresh),
        }
    }
}

/// All of them.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    gpu: String,
    rows: Vec<Row>,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(gpu: String) -> Self {
        Self { gpu, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "From \"buffer ready\" to \"readable in the other pod\", in µs (p50 / p99):\n")?;
        writeln!(
            f,
            "| kind | size | buffer is | rest before | rounds | gpu-handoff | of that: export | node | of node: check | import and map | \
             all but the check | raw driver | check alone |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for r in &self.rows {
            let (kind, rest) = (kind_name(r.kind), rest(r.pause_us));
            write!(f, "| {kind} | {} | {} | {rest} | {} |", size(r.size), mode_name(r.mode), r.rounds)?;
            for value in [r.total, r.export, r.node, r.check, r.map, r.unchecked, r.raw_driver, r.inspect] {
                match value {
                    Some(p) => write!(f, " {:.0} / {:.0} |", p.p50_us, p.p99_us)?,
                    None => write!(f, " – |")?,
                }
            }
            writeln!(f)?;
        }
        write!(
            f,
            "\nfresh: exported, published, validated and acquired by a waiting consumer; published: acquired by a \
             consumer that has not mapped it;\nleased before: acquired again by the same consumer. The raw driver \
             column is the same hand-off between the same pods by a bare socket,\nunchecked, with another export of the \
             process alive."
        )
    }
}

/// A case in words.
#[must_use]
pub fn describe(case: &Case) -> String {
    let (kind, mode, rest) = (kind_name(case.kind), mode_name(case.mode), rest(case.pause_us));
    format!("{kind} {}, {mode}, rest before each: {rest}", size(case.bytes))
}

fn kind_name(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Vmm | MemoryKind::VmmPrivate => "vmm",
        MemoryKind::Legacy => "legacy",
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Fresh => "fresh",
        Mode::Exported => "published",
        Mode::Again => "leased before",
    }
}

fn rest(us: u64) -> String {
    if us == 0 { "none".to_owned() } else { format!("{us} µs") }
}

fn size(bytes: u64) -> String {
    let mib = bytes >> 20;
    if mib >= 1024 && mib.is_multiple_of(1024) { format!("{} GiB", mib / 1024) } else { format!("{mib} MiB") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_values_themselves() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(Percentiles::of(&values), Some(Percentiles { p50_us: 101.0, p99_us: 199.0 }));
        assert_eq!(Percentiles::of(&[7.0]), Some(Percentiles { p50_us: 7.0, p99_us: 7.0 }));
        assert_eq!(Percentiles::of(&[]), None);
    }
}
