//! The `gpu-handoff-plugin` program. See the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match gpu_handoff_plugin::cli::Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-handoff-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
