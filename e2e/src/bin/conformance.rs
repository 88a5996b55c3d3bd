//! `conformance`: lays the simulated driver and a real one side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use gpu_handoff_e2e::conformance::{self, report::Report, report::compare};

/// Asks the libcuda.so.1 that the loader finds what gpu-handoff relies on, one row a question.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every row and print a table.
    Run {
        /// Write the results here as JSON.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Only rows whose id contains this.
        #[arg(long)]
        only: Option<String>,
        /// Whose answers these are, for the comparison: GPU, driver version, day.
        #[arg(long, default_value = "")]
        machine: String,
    },
    /// Print two runs side by side; exit 1 if a row differs that must not.
    Compare {
        /// Results of the simulated driver.
        simulated: PathBuf,
        /// Results of a real driver.
        real: PathBuf,
    },
    /// List the rows without running them.
    List,
    /// A child process of a run.
    #[command(hide = true)]
    Puppet {
        /// Serve whoever connects here first, instead of the socket on standard input.
        #[arg(long)]
        listen: Option<PathBuf>,
    },
    /// A child process of a run.
    #[command(hide = true)]
    SelfTestExport,
    /// A child process of a run.
    #[command(hide = true)]
    SelfTestImport,
}

fn main() -> ExitCode {
    match act(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("conformance: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run { json, only, machine } => run(json, only.as_deref(), machine),
        Command::Compare { simulated, real } => {
            let (table, differ) = compare(&read(&simulated)?, &read(&real)?);
            print!("{table}");
            Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::List => {
            for (id, section, tag, says) in conformance::list() {
                println!("{id:<34} {section} {tag:<6} {says}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Puppet { listen } => conformance::puppet(listen.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::SelfTestExport => conformance::self_test_half(true).map(|()| ExitCode::SUCCESS),
        Command::SelfTestImport => conformance::self_test_half(false).map(|()| ExitCode::SUCCESS),
    }
}

fn run(json: Option<PathBuf>, only: Option<&str>, machine: String) -> anyhow::Result<ExitCode> {
    let mut report = conformance::run(only, |row| {
        println!("{:<34} {} {:<6} {:>6} ms  {}", row.id, row.section, row.tag, row.took_ms, row.outcome);
    })?;
    report.machine = machine;
    let count = |what: fn(&conformance::report::Result) -> bool| {
        report.results.iter().filter(|row| what(row)).count()
    };
    println!(
        "{} rows, {} not run, {} whose set-up failed; {:.1} s; driver {}, {} GPU(s)",
        report.results.len(),
        count(conformance::report::Result::not_run),
        count(conformance::report::Result::set_up_failed),
        std::time::Duration::from_millis(report.results.iter().map(|row| row.took_ms).sum()).as_secs_f64(),
        report.driver_version,
        report.devices,
    );
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &PathBuf) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("understand {}", path.display()))
}
