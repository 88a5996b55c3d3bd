//! The `gpu-handoff` command. Everything is in the library.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use gpu_handoff_cli::{Args, run};

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    match run(Args::parse(), &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Standard error may be closed; the exit code still tells.
            let _ = write!(std::io::stderr(), "{failure}");
            failure.exit_code()
        }
    }
}
