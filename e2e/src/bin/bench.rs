//! The benchmark; see `gpu_handoff_e2e::bench`.

use std::process::ExitCode;

use clap::Parser;

/// Measures hand-offs between two pods, beside the raw driver.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    options: gpu_handoff_e2e::bench::Options,
}

fn main() -> ExitCode {
    match gpu_handoff_e2e::bench::run(&Args::parse().options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
