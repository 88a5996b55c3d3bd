//! The conformance suite: what the driver answers to each thing that gpu-handoff relies on, one row a question.
//!
//! It runs against whichever `libcuda.so.1` the loader finds, so the simulated driver and a real one can be laid side by
//! side. The suite itself never loads the driver. Each row is a script over *puppets*, child processes of the same
//! program that do to the driver what they are told (`serve`): so a crash is an outcome, a hang ends at a deadline,
//! and importers can have namespaces, a user or a `/dev/shm` of their own (`place`).
//!
//! It needs `libcuda.so.1`, util-linux and root, and nothing else; what cannot be tried is shown as `not run` with the
//! reason. The rows of several GPUs need two: `SIMCUDA_GPUS=2` for the simulated driver.
//!
//! A row that came to ask something else than when a real driver was asked has no outcome in the committed run, and is
//! shown as `not measured` until that is repeated.
//!
//! A row has a tag: [`Tag::Api`] rows must not differ between the simulator and a driver, [`Tag::Time`] rows are
//! microseconds and not compared, [`Tag::Kernel`] rows are about what the simulator does not simulate.

pub mod actor;
mod memory;
mod place;
mod puppet;
pub mod report;
mod rows;
mod serve;
mod stage;
mod wire;

use std::fmt;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Instant;

use gpu_handoff_cuda::{Driver, self_test};
use serde::{Deserialize, Serialize};

use puppet::{End, Step};
use report::{Report, Result as RowResult};
use stage::Stage;

/// How a row is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tag {
    /// Must be the same everywhere.
    Api,
    /// Microseconds; shown, not compared.
    Time,
    /// About the kernel's side of the driver or calls that the simulator does not have; shown, not compared.
    Kernel,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tag::Api => "api",
            Tag::Time => "time",
            Tag::Kernel => "kernel",
        })
    }
}

type Script = Box<dyn Fn(&mut Stage) -> Step<String>>;

/// One question to the driver.
struct Row {
    id: String,
    /// Section of the measured facts that it is from.
    section: u8,
    tag: Tag,
    says: String,
    script: Script,
}

impl Row {
    fn new(
        tag: Tag,
        section: u8,
        id: impl Into<String>,
        says: impl Into<String>,
        script: impl Fn(&mut Stage) -> Step<String> + 'static,
    ) -> Row {
        Row { id: id.into(), section, tag, says: says.into(), script: Box::new(script) }
    }

    /// A row that must not differ.
    fn api(
        section: u8,
        id: impl Into<String>,
        says: impl Into<String>,
        script: impl Fn(&mut Stage) -> Step<String> + 'static,
    ) -> Row {
        Row::new(Tag::Api, section, id, says, script)
    }

    /// A row about what is not simulated.
    fn kernel(
        section: u8,
        id: impl Into<String>,
        says: impl Into<String>,
        script: impl Fn(&mut Stage) -> Step<String> + 'static,
    ) -> Row {
        Row::new(Tag::Kernel, section, id, says, script)
    }

    fn run(&self, stage: &mut Stage) -> RowResult {
        stage.begin_row();
        let start = Instant::now();
        let outcome = match (self.script)(stage) {
            Ok(outcome) => outcome,
            Err(end @ End::NotRun(_)) => end.to_string(),
            Err(End::Answered { request, status }) => format!("set-up failed: {request} answered {status}"),
            Err(end) => format!("set-up failed: {end}"),
        };
        let took_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        RowResult {
            id: self.id.clone(),
            section: self.section,
            tag: self.tag,
            says: self.says.clone(),
            outcome,
            took_ms,
        }
    }
}

/// Runs every row whose id contains `only`, calling `each` as results come in.
pub fn run(only: Option<&str>, mut each: impl FnMut(&RowResult)) -> anyhow::Result<Report> {
    let mut stage = Stage::new()?;
    let mut results = Vec::new();
    for row in rows::all().iter().filter(|row| only.is_none_or(|only| row.id.contains(only))) {
        let result = row.run(&mut stage);
        each(&result);
        results.push(result);
    }
    Ok(Report {
        machine: String::new(),
        driver_version: stage.version,
        devices: stage.devices,
        kernel: report::kernel_release(),
        results,
    })
}

/// The process that rows are played by: serves the socket on its standard input, or who connects first.
pub fn puppet(listen: Option<&Path>) -> anyhow::Result<()> {
    match listen {
        Some(path) => serve::serve(serve::first_at(path)?.as_fd()),
        None => serve::serve(std::io::stdin().as_fd()),
    }
}

/// A half of the self-test of legacy handles, talking through standard input and output.
pub fn self_test_half(exports: bool) -> anyhow::Result<()> {
    let driver = Driver::load()?;
    let device = driver.device_at(0)?;
    let (mut input, mut output) = (std::io::stdin(), std::io::stdout());
    if exports {
        self_test::export_half(driver, device, &mut output, &mut input)?;
    } else {
        println!("{}", self_test::import_half(driver, device, &mut input)?);
    }
    Ok(())
}

/// Ids, sections, tags and sentences of all rows.
pub fn list() -> Vec<(String, u8, Tag, String)> {
    rows::all().into_iter().map(|row| (row.id, row.section, row.tag, row.says)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_ids_are_stable_names() {
        let mut ids: Vec<_> = list().into_iter().map(|(id, ..)| id).collect();
        assert!(
            ids.iter().all(|id| id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        );
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "an id is used twice");
    }
}
