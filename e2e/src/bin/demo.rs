//! The demo; see `gpu_handoff_e2e::demo`.

use std::process::ExitCode;

use clap::Parser;

/// Hands a GPU buffer from one pod to another through the real plugin and sidecars, and checks every step.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    options: gpu_handoff_e2e::demo::Options,
}

fn main() -> ExitCode {
    match gpu_handoff_e2e::demo::run(&Args::parse().options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
