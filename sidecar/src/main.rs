//! The `gpu-handoff-sidecar` program. See the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match gpu_handoff_sidecar::cli::Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-handoff-sidecar: {error:#}");
            ExitCode::FAILURE
        }
    }
}
