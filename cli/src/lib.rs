//! The `gpu-handoff` command: what a pod sees of its buffers, and what a refusal means.
//!
//! Exit codes: 0 well, 1 refused or findings, 2 usage, 3 daemon not reachable. No command loads CUDA.

mod args;
mod connect;
mod explain;
mod failure;
mod limits;
mod list;
mod output;
mod watch;
mod whoami;

use std::io::Write;

pub use args::{Args, Command, Format};
pub use failure::Failure;

/// Runs one command and writes its result to `out`.
///
/// # Errors
/// A [`Failure`]: its text is for standard error, its code is the process's.
pub fn run(args: Args, out: &mut dyn Write) -> Result<(), Failure> {
    let Args { socket, output, command } = args;
    let outcome = match command {
        Command::List => list::run(&connect::once(socket)?, output, out),
        Command::Watch => watch::run(&connect::for_long(socket)?, output, out),
        Command::Whoami => whoami::run(&connect::once(socket)?, output, out),
        Command::Explain { code } => explain::run(code.as_deref(), output, out),
    };
    match outcome {
        // Whoever read our output has read enough.
        Err(Failure::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
