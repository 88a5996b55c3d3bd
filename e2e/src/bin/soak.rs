//! The soak; see `gpu_handoff_e2e::soak`.

use std::process::ExitCode;

use clap::Parser;

/// Kills everybody in turn, many times, under load, and checks that nothing is lost and nothing is left.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    options: gpu_handoff_e2e::soak::Options,
}

fn main() -> ExitCode {
    match gpu_handoff_e2e::soak::run(&Args::parse().options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}
