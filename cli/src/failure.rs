//! What goes wrong, for people and as an exit code.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use gpu_handoff_client::{ClientError, Code};

use crate::Format;

/// Why a command failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The node said no, or could not be asked.
    Client(ClientError),
    /// No code has this name; with one that looks much like it.
    UnknownCode {
        /// What was asked for.
        asked: String,
        /// The name that may have been meant.
        nearest: Option<&'static str>,
    },
    /// The command does not write its result in this format.
    Format {
        /// What was asked for.
        asked: Format,
        /// What it has.
        formats: [Format; 2],
    },
    /// The result could not be written.
    Write(io::Error),
    /// The node could not be asked how it is.
    #[cfg(feature = "admin")]
    Admin(crate::admin::AdminFailure),
    /// Something is wrong, or could not be looked at, as was said where the result goes.
    #[cfg(feature = "admin")]
    Findings(u8),
    /// Pods were denied, or could not be read.
    #[cfg(feature = "inject")]
    Inject(crate::inject::InjectFailure),
    /// The answer of a policy was no, or there was none.
    #[cfg(feature = "policy")]
    Policy(crate::policy::PolicyFailure),
}

impl Failure {
    /// The exit code that scripts decide by.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn number(&self) -> u8 {
        match self {
            Self::Client(
                ClientError::Connect { .. }
                | ClientError::ConnectionLost { .. }
                | ClientError::TimedOut { .. },
            ) => 3,
            Self::Client(error) if is_unreachable(error.code()) => 3,
            Self::Client(_) | Self::Write(_) => 1,
            Self::UnknownCode { .. } | Self::Format { .. } => 2,
            #[cfg(feature = "admin")]
            Self::Admin(failure) => failure.number(),
            #[cfg(feature = "admin")]
            Self::Findings(number) => *number,
            #[cfg(feature = "inject")]
            Self::Inject(failure) => failure.number(),
            #[cfg(feature = "policy")]
            Self::Policy(failure) => failure.number(),
        }
    }
}

/// The sidecar answers, and there is no daemon behind it.
fn is_unreachable(code: Option<Code>) -> bool {
    matches!(code, Some(Code::BrokerUnavailable | Code::ShuttingDown))
}

impl fmt::Display for Failure {
    /// What, why, and what to do: a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => write_client_error(f, error),
            Self::UnknownCode { asked, nearest } => {
                writeln!(f, "error: there is no refusal code {asked}")?;
                let meant = nearest.map(|code| format!("did you mean {code}? ")).unwrap_or_default();
                writeln!(f, "  remedy: {meant}`gpu-handoff explain` and docs/refusals.md list all codes")
            }
            Self::Format { asked, formats: [one, other] } => {
                let [asked, one, other] = [asked, one, other].map(|format| format.as_str());
                writeln!(f, "error: this command does not write {asked}, but {one} or {other}")
            }
            Self::Write(error) => writeln!(f, "error: write the result: {error}"),
            #[cfg(feature = "admin")]
            Self::Admin(failure) => failure.write(f),
            #[cfg(feature = "admin")]
            Self::Findings(_) => Ok(()),
            #[cfg(feature = "inject")]
            Self::Inject(failure) => failure.write(f),
            #[cfg(feature = "policy")]
            Self::Policy(failure) => failure.write(f),
        }
    }
}

fn write_client_error(f: &mut fmt::Formatter<'_>, error: &ClientError) -> fmt::Result {
    writeln!(f, "error: {error}")?;
    if let Some(refusal) = error.refusal() {
        for compared in refusal.compared() {
            writeln!(f, "  {}: wanted {}, found {}", compared.what, compared.wanted, compared.found)?;
        }
    } else {
        let mut cause = error.source();
        while let Some(error) = cause {
            writeln!(f, "  because: {error}")?;
            cause = error.source();
        }
    }
    if let Some(remedy) = error.remedy() {
        writeln!(f, "  remedy: {remedy}")?;
    }
    match error.code() {
        Some(code) => writeln!(f, "  more: gpu-handoff explain {code}"),
        None => Ok(()),
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Client(error) => Some(error),
            Self::Write(error) => Some(error),
            Self::UnknownCode { .. } | Self::Format { .. } => None,
            #[cfg(feature = "admin")]
            Self::Admin(error) => error.source(),
            #[cfg(feature = "admin")]
            Self::Findings(_) => None,
            #[cfg(feature = "inject")]
            Self::Inject(error) => error.source(),
            #[cfg(feature = "policy")]
            Self::Policy(error) => error.source(),
        }
    }
}

#[cfg(feature = "admin")]
impl From<crate::admin::AdminFailure> for Failure {
    fn from(failure: crate::admin::AdminFailure) -> Self {
        Self::Admin(failure)
    }
}

#[cfg(feature = "inject")]
impl From<crate::inject::InjectFailure> for Failure {
    fn from(failure: crate::inject::InjectFailure) -> Self {
        Self::Inject(failure)
    }
}

#[cfg(feature = "policy")]
impl From<crate::policy::PolicyFailure> for Failure {
    fn from(failure: crate::policy::PolicyFailure) -> Self {
        Self::Policy(failure)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Write(error.into())
    }
}

/// What is wrong, and why: a line each.
#[cfg(feature = "inject")]
pub(crate) fn write_causes(f: &mut fmt::Formatter<'_>, error: &dyn Error) -> fmt::Result {
    write_line(f, format_args!("error: {error}"))?;
    let mut cause = error.source();
    while let Some(error) = cause {
        write_line(f, format_args!("  because: {error}"))?;
        cause = error.source();
    }
    Ok(())
}

/// A line with text of files that somebody else may have written.
#[cfg(feature = "inject")]
pub(crate) fn write_line(f: &mut fmt::Formatter<'_>, line: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "{}", crate::output::one_line(&line.to_string()))
}
