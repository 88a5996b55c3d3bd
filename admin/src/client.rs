//! Asking the daemon.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::limits;
use crate::proto::admin_client::AdminClient;
use crate::proto::{StatusRequest, StatusResponse};

/// Why the daemon did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Whoever asks may not, by the socket's mode.
    #[error("the admin socket {} is not for this user", path.display())]
    Forbidden {
        /// The socket.
        path: PathBuf,
    },
    /// Nobody listens there.
    #[error("nobody answers at the admin socket {}", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The connection was closed before there was an answer: by a daemon that ends, that has too many of them, or that knows
    /// this user as none that may ask.
    #[error("the daemon closed the connection without an answer")]
    Closed(#[source] Box<dyn Error + Send + Sync>),
    /// There was no answer in time.
    #[error("the daemon did not answer within {} s", limits::CLIENT_TIME.as_secs())]
    Late,
    /// It answered something else.
    #[error("the daemon's answer is none that this program knows ({:?}: {})", .0.code(), .0.message())]
    Answer(Box<Status>),
}

/// How the daemon is.
///
/// # Errors
/// Why there is no answer.
pub async fn status(socket: &Path) -> Result<StatusResponse, ClientError> {
    timeout(limits::CLIENT_TIME, ask(socket)).await.map_err(|_| ClientError::Late)?
}

async fn ask(socket: &Path) -> Result<StatusResponse, ClientError> {
    let stream = UnixStream::connect(socket).await.map_err(|source| {
        let path = socket.to_path_buf();
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Forbidden { path },
            _ => ClientError::Unreachable { path, source },
        }
    })?;
    let mut client = AdminClient::new(over(stream).await.map_err(|e| ClientError::Closed(e.into()))?)
        .max_decoding_message_size(limits::ANSWER_BYTES);
    match client.status(StatusRequest {}).await {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) if is_of_the_transport(&status) => Err(ClientError::Closed(status.into())),
        Err(status) => Err(ClientError::Answer(Box::new(status))),
    }
}

/// Whether nobody said that, but the connection broke.
fn is_of_the_transport(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unavailable
}

/// A channel over one connection, which is there already.
async fn over(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let mut stream = Some(TokioIo::new(stream));
    // The address names nobody: the connection is what is used, once.
    let endpoint = Endpoint::from_static("http://admin.invalid");
    let connect = move |_| {
        let stream = stream.take().ok_or(io::ErrorKind::NotConnected);
        std::future::ready(stream.map_err(io::Error::from))
    };
    endpoint.connect_with_connector(tower::service_fn(connect)).await
}
