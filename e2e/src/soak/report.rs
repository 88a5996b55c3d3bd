//! What was measured and what went wrong.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Victim;

/// Faults that are kept in full.
const FAULTS: usize = 50;

/// A time that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Time {
    /// Producer killed: until an importer's process is told that its buffer is an orphan.
    ImporterTold,
    /// The same, where a child of the producer still holds the connection.
    ImporterToldDespiteChild,
    /// Producer killed: until memory that no importer maps is free.
    UnmappedMemoryBack,
    /// The last importer lets go of a dead producer's buffer: until its memory is free.
    OrphanedMemoryBack,
    /// Consumer killed: until the producer's process is told that its retired buffer is gone.
    ProducerTold,
    /// Consumer killed: until the memory that it alone had left mapped is free.
    ConsumersMemoryBack,
    /// Worker killed: until fresh memory is published.
    PublishAfterWorker,
    /// Sidecar killed: an acquire and a release by an application of its pod, while there is no sidecar.
    HandOffWithoutSidecar,
    /// Sidecar started: until it is ready.
    SidecarReady,
    /// Broker killed: until an acquire that was asked at once is answered with a lease.
    AcquireAfterBroker,
    /// Plugin asked to stop, as by an upgrade: until it has ended, was started again, and an acquire is answered.
    AcquireAfterUpgrade,
    /// Broker and sidecar killed: until an acquire that was asked when the sidecar was ready again is answered.
    AcquireAfterSidecarAndBroker,
    /// Plugin started again: until an acquire that was asked when it was killed is answered with a lease.
    AcquireAfterPlugin,
}

impl Time {
    const fn describe(self) -> &'static str {
        match self {
            Self::ImporterTold => "producer killed → importer told (orphaned)",
            Self::ImporterToldDespiteChild => {
                "producer killed, its child holds the connection → importer told"
            }
            Self::UnmappedMemoryBack => "producer killed → memory that no importer maps is free",
            Self::OrphanedMemoryBack => "last importer of an orphan releases → its memory is free",
            Self::ProducerTold => "consumer killed → producer told that its retired buffer is gone",
            Self::ConsumersMemoryBack => "consumer killed → memory that only it mapped is free",
            Self::PublishAfterWorker => "worker killed → fresh memory is published",
            Self::HandOffWithoutSidecar => "no sidecar: acquire and release by its pod's application",
            Self::SidecarReady => "sidecar started again → ready",
            Self::AcquireAfterBroker => "broker killed → acquire answered with a lease",
            Self::AcquireAfterUpgrade => {
                "plugin asked to stop, started again → acquire answered with a lease"
            }
            Self::AcquireAfterSidecarAndBroker => "broker and sidecar killed → acquire answered with a lease",
            Self::AcquireAfterPlugin => "plugin started again → acquire answered with a lease",
        }
    }

    /// The target, in milliseconds.
    const fn target_ms(self) -> Option<f64> {
        match self {
            Self::ImporterTold | Self::ImporterToldDespiteChild => Some(50.0),
            Self::UnmappedMemoryBack | Self::OrphanedMemoryBack | Self::ConsumersMemoryBack => Some(100.0),
            _ => None,
        }
    }
}

/// A row of the table, in milliseconds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    what: Time,
    samples: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    target_p99_ms: Option<f64>,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    seed: u64,
    #[serde(skip)]
    times: BTreeMap<Time, Vec<f64>>,
    rows: Vec<Row>,
    killed: BTreeMap<String, usize>,
    /// What held in the end or all along, as sentences.
    facts: Vec<String>,
    faults: Vec<String>,
    more_faults: usize,
}

impl Report {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            times: BTreeMap::new(),
            rows: Vec::new(),
            killed: BTreeMap::new(),
            facts: Vec::new(),
            faults: Vec::new(),
            more_faults: 0,
        }
    }

    pub(super) fn killed(&mut self, victim: Victim) {
        *self.killed.entry(format!("{victim:?}")).or_default() += 1;
    }

    pub(super) fn time(&mut self, what: Time, ms: f64) {
        let times = self.times.entry(what).or_default();
        times.push(ms);
        let row = row(what, times);
        match self.rows.iter_mut().find(|row| row.what == what) {
            Some(old) => *old = row,
            None => self.rows.push(row),
        }
    }

    pub(super) fn fact(&mut self, fact: String) {
        self.facts.push(fact);
    }

    /// Notes a fault unless `good`.
    pub(super) fn check(&mut self, good: bool, what: impl FnOnce() -> String) {
        if good {
            return;
        }
        let what = what();
        eprintln!("FAULT: {what}");
        if self.faults.len() < FAULTS {
            self.faults.push(what);
        } else {
            self.more_faults += 1;
        }
    }

    pub(super) fn is_good(&self, times_too: bool) -> bool {
        self.faults.is_empty() && !(times_too && self.rows.iter().any(Row::is_late))
    }
}

impl Row {
    fn is_late(&self) -> bool {
        self.target_p99_ms.is_some_and(|target| self.p99_ms > target)
    }
}

fn row(what: Time, times: &[f64]) -> Row {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or(0.0)
    };
    Row {
        what,
        samples: sorted.len(),
        p50_ms: at(50),
        p99_ms: at(99),
        max_ms: at(100),
        target_p99_ms: what.target_ms(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | samples | p50 ms | p99 ms | max ms | target p99 ms |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for row in &self.rows {
            let Row { samples, p50_ms, p99_ms, max_ms, .. } = row;
            write!(f, "| {} | {samples} | {p50_ms:.2} | {p99_ms:.2} | {max_ms:.2} | ", row.what.describe())?;
            match row.target_p99_ms {
                Some(target) if row.is_late() => writeln!(f, "{target:.0}: missed |")?,
                Some(target) => writeln!(f, "{target:.0}: met |")?,
                None => writeln!(f, "– |")?,
            }
        }
        let killed: Vec<_> = self.killed.iter().map(|(who, times)| format!("{who} {times}")).collect();
        writeln!(f, "\nkilled: {}", killed.join(", "))?;
        for fact in &self.facts {
            writeln!(f, "- {fact}")?;
        }
        for fault in &self.faults {
            writeln!(f, "FAULT: {fault}")?;
        }
        write!(f, "{} faults", self.faults.len() + self.more_faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_or_on_request_a_late_time_makes_it_bad() {
        let mut report = Report::new(1);
        report.time(Time::ImporterTold, 1.0);
        report.time(Time::PublishAfterWorker, 1e6);
        assert!(report.is_good(true), "what has no target is never late");
        report.time(Time::ImporterTold, 51.0);
        assert!(report.is_good(false) && !report.is_good(true));
        report.check(true, || "nothing".to_owned());
        assert!(report.is_good(false));
        report.check(false, || "something is left".to_owned());
        assert!(!report.is_good(false));
        let shown = report.to_string();
        assert!(shown.contains("FAULT: something is left") && shown.contains("50: missed"), "{shown}");
    }
}
