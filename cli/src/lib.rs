//! The `gpu-handoff` command: what a pod sees of its buffers, what a refusal means, and, outside of pods, what pods need
//! to take part, what a policy lets them do, and how a node is.
//!
//! Exit codes: 0 well, 1 refused or findings, 2 usage or not everything could be checked, 3 daemon not reachable. No command loads CUDA.

#[cfg(feature = "admin")]
mod admin;
mod args;
mod connect;
#[cfg(feature = "admin")]
mod doctor;
mod explain;
mod failure;
#[cfg(feature = "inject")]
mod files;
#[cfg(feature = "inject")]
mod inject;
mod limits;
mod list;
mod output;
#[cfg(feature = "policy")]
mod policy;
#[cfg(feature = "admin")]
mod status;
mod watch;
mod whoami;

use std::io::Write;

#[cfg(feature = "admin")]
pub use admin::{AdminArgs, AdminFailure};
pub use args::{Args, Command, Format};
#[cfg(feature = "admin")]
pub use doctor::DoctorArgs;
pub use failure::Failure;
#[cfg(feature = "inject")]
pub use files::FileError;
#[cfg(feature = "inject")]
pub use inject::{DocumentError, InjectArgs, InjectFailure, NamespaceError};
#[cfg(feature = "policy")]
pub use policy::{PolicyCommand, PolicyFailure};

/// Runs one command and writes its result to `out`.
///
/// # Errors
/// A [`Failure`]: its text is for standard error, its code is the process's.
pub fn run(args: Args, out: &mut dyn Write) -> Result<(), Failure> {
    let Args { socket, output, command } = args;
    let formats = match command {
        #[cfg(feature = "inject")]
        Command::Inject(_) => [Format::Yaml, Format::Json],
        _ => [Format::Text, Format::Json],
    };
    let output = one_of(output, formats)?;
    let outcome = match command {
        Command::List => list::run(&connect::once(socket)?, output, out),
        Command::Watch => watch::run(&connect::for_long(socket)?, output, out),
        Command::Whoami => whoami::run(&connect::once(socket)?, output, out),
        Command::Explain { code } => explain::run(code.as_deref(), output, out),
        #[cfg(feature = "admin")]
        Command::Status(args) => status::run(&args, output, out),
        #[cfg(feature = "admin")]
        Command::Doctor(args) => doctor::run(&args, output, out),
        #[cfg(feature = "inject")]
        Command::Inject(args) => inject::run(args, output, out, &mut std::io::stderr()),
        #[cfg(feature = "policy")]
        Command::Policy { command } => policy::run(command, output, out),
    };
    match outcome {
        // Whoever read our output has read enough.
        Err(Failure::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// The format that was asked for, if the command has it; the first where none was.
fn one_of(asked: Option<Format>, formats: [Format; 2]) -> Result<Format, Failure> {
    match asked {
        None => Ok(formats[0]),
        Some(asked) if formats.contains(&asked) => Ok(asked),
        Some(asked) => Err(Failure::Format { asked, formats }),
    }
}
