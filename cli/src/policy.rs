//! `gpu-handoff policy`: whether a file is a policy, and what a policy says of two pods; needs no daemon.

use std::fmt;
use std::io::Write;
use std::path::Path;

use clap::Subcommand;
use gpu_handoff_inject::Denial;
use gpu_handoff_policy::{Policy, PolicyError};

use crate::args::Format;
use crate::failure::{Failure, write_causes};
use crate::files::{self, FileError};
use crate::inject::{DocumentError, NamespaceError};

mod can_share;
mod check;
mod pods;

/// Where a node's policy is.
const POLICY: &str = "/etc/gpu-handoff/policy.yaml";

/// What to do with a policy.
#[derive(Debug, Clone, Subcommand)]
pub enum PolicyCommand {
    /// Say whether a file is a policy, and if not, where and why; exit code 1 if not
    Check(check::CheckArgs),
    /// Say whether the second of two pods may acquire what the first publishes, and why; exit code 1 if not
    CanShare(can_share::CanShareArgs),
}

/// Why nothing could be said, or that the answer was no.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFailure {
    /// It was said already, where the result goes.
    #[error("no")]
    No,
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The policy is none.
    #[error("{0} is no policy")]
    Policy(String, #[source] PolicyError),
    /// A document is not what it should be.
    #[error("{0} cannot be read")]
    Document(String, #[source] DocumentError),
    /// Not two pods.
    #[error(
        "wanted two pods, found {0}: name each as NAMESPACE/GROUP[/SERVICE-ACCOUNT], or give manifests by --filename"
    )]
    NotTwo(usize),
    /// What an object says its namespace is, is none.
    #[error("{0} can be in no namespace of that name")]
    Namespace(String, #[source] NamespaceError),
    /// The group depends on the namespace.
    #[error("{0} does not say its namespace; --namespace NAME gives it")]
    NoNamespace(String),
    /// A pod could not take part at all.
    #[error("{0} is denied")]
    Denied(String, #[source] Box<Denial>),
}

impl PolicyFailure {
    pub(crate) const fn number(&self) -> u8 {
        if matches!(self, Self::No) { 1 } else { 2 }
    }

    /// What, and why: a line each.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self, Self::No) {
            return Ok(());
        }
        write_causes(f, self)
    }
}

pub(crate) fn run(command: PolicyCommand, output: Format, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        PolicyCommand::Check(args) => check::run(&args, output, out),
        PolicyCommand::CanShare(args) => can_share::run(args, output, out),
    }
}

fn read_policy(path: &Path) -> Result<Policy, PolicyFailure> {
    Policy::read(&files::read_policy(path)?).map_err(|e| PolicyFailure::Policy(files::shown(path), e))
}
