//! A gRPC server on one of our sockets.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use futures_util::stream;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tracing::warn;

use crate::limits;
use crate::socket::{Place, SocketError};

/// A server ended other than it was told to, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its socket could not be made.
    #[error("begin to serve")]
    Socket(#[from] SocketError),
    /// The name of this instance is empty.
    #[error("this instance has no name, which tells it from others")]
    Instance,
    /// What the transport said.
    #[error("serve at {path}")]
    Transport {
        /// The socket.
        path: PathBuf,
        /// What the transport said.
        source: tonic::transport::Error,
    },
}

/// A server with the limits that all of ours have.
pub(crate) fn builder() -> Server {
    Server::builder()
        .timeout(limits::CALL_TIME)
        .max_concurrent_streams(limits::CALLS_PER_CONNECTION)
        .http2_max_header_list_size(limits::HEADER_BYTES)
}

/// Serves until it is told to stop. The socket's file is there from the first poll to the end.
pub(crate) async fn serve(
    path: &Path,
    place: Place,
    router: Router,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let incoming = stream::unfold(place, |mut place| async move {
        let connection = place.accept().await;
        Some((Ok::<_, io::Error>(connection), place))
    });
    let (stopping, stopped) = oneshot::channel::<()>();
    let server = router.serve_with_incoming_shutdown(incoming, async {
        stop.await;
        drop(stopping);
    });
    let patience = async {
        // Ends when the other half is dropped: there is nothing to be said.
        drop(stopped.await);
        sleep(limits::DRAIN_TIME).await;
    };
    tokio::select! {
        ended = server => ended.map_err(|source| ServeError::Transport { path: path.to_owned(), source }),
        () = patience => {
            warn!(path = %path.display(), "calls that did not end in time are cut off");
            Ok(())
        }
    }
}

/// No more of a text than so many bytes, whole characters.
pub(crate) fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}
