//! The way to the node's admin socket.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gpu_handoff_admin::client::{self, ClientError};
use gpu_handoff_admin::proto::StatusResponse;

/// Where the node's daemon is asked.
#[derive(Debug, Clone, clap::Args)]
pub struct AdminArgs {
    /// The node daemon's admin socket
    #[arg(
        long,
        env = "GPU_HANDOFF_ADMIN_SOCKET",
        value_name = "PATH",
        default_value = "/run/gpu-handoff/admin.sock"
    )]
    pub admin_socket: PathBuf,
}

/// Why the node was not asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminFailure {
    /// The daemon did not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Nothing can be asked from here.
    #[error("nothing can be asked from here")]
    System(#[source] io::Error),
}

/// What to do where the daemon does not answer.
const START: &str =
    "start the node daemon, or say where its run directory is: --admin-socket RUN-DIR/admin.sock";
/// What to do where it does not answer this user.
pub(crate) const MAY_NOT: &str =
    "ask as root, as the user that the daemon runs as, or as a member of its --admin-group";

impl AdminFailure {
    pub(crate) const fn number(&self) -> u8 {
        match self {
            Self::Client(ClientError::Unreachable { .. } | ClientError::Closed(_) | ClientError::Late) => 3,
            _ => 1,
        }
    }

    /// What, why, and what to do: a line each.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {self}")?;
        let mut cause = self.source();
        while let Some(error) = cause {
            writeln!(f, "  because: {error}")?;
            cause = error.source();
        }
        match self {
            Self::Client(error) => writeln!(f, "  remedy: {}", remedy(error)),
            Self::System(_) => Ok(()),
        }
    }
}

/// What to do about a daemon that did not answer.
pub(crate) const fn remedy(error: &ClientError) -> &'static str {
    match error {
        ClientError::Unreachable { .. } => START,
        ClientError::Forbidden { .. } => MAY_NOT,
        ClientError::Answer(_) => "use the command of the daemon's version",
        _ => "try again; the node daemon's log says more",
    }
}

/// How the daemon is.
pub(crate) async fn ask(socket: &Path) -> Result<StatusResponse, ClientError> {
    client::status(socket).await
}

/// Waits for something.
pub(crate) fn wait_for<T>(work: impl Future<Output = T>) -> Result<T, AdminFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(AdminFailure::System)?.block_on(work))
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
