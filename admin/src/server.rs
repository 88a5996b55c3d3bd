//! The socket, and serving it.

use std::fs::Permissions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use futures_util::{Stream, stream};
use gpu_handoff_sys::peer;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;
use tonic::{Request, Response, Status, transport};
use tracing::warn;

use crate::connection::Connection;
use crate::crowd::Crowd;
use crate::door::Door;
use crate::limits;
use crate::proto::admin_server::{Admin, AdminServer};
use crate::proto::{StatusRequest, StatusResponse};
use crate::turned_away::TurnedAway;

/// The socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("make the admin socket {path}")]
pub struct BindError {
    /// Where it was to be.
    path: PathBuf,
    /// What the system answered.
    source: io::Error,
}

/// A socket that listens. Its file is removed with it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    /// What tells its file from another of that name.
    mark: Mark,
    door: Door,
}

/// A file's device and number.
type Mark = (u64, u64);

impl Server {
    /// Makes the socket, in the place of one that is there: whoever calls this owns the folder.
    ///
    /// # Errors
    /// What the system refuses, such as a group that the daemon may not give files to.
    pub fn bind(path: &Path, door: Door) -> Result<Self, BindError> {
        let failed = |source| BindError { path: path.to_path_buf(), source };
        let (listener, mark) = make(path, door).map_err(failed)?;
        Ok(Self { path: path.to_path_buf(), listener, mark, door })
    }

    /// Answers with what `status` says at that moment, for ever.
    ///
    /// # Errors
    /// What the transport said when it broke off.
    pub async fn serve(
        self,
        status: impl Fn() -> StatusResponse + Send + Sync + 'static,
    ) -> Result<(), transport::Error> {
        let service = AdminServer::new(Answers(status)).max_decoding_message_size(limits::REQUEST_BYTES);
        transport::Server::builder()
            .timeout(limits::CONNECTION_TIME)
            .max_concurrent_streams(limits::CALLS_PER_CONNECTION)
            .http2_max_header_list_size(limits::HEADER_BYTES)
            .add_service(service)
            .serve_with_incoming(self.connections())
            .await
    }

    /// The connections of those who may ask.
    fn connections(self) -> impl Stream<Item = io::Result<Connection>> {
        let begin = (self, Crowd::new(), TurnedAway::default());
        stream::unfold(begin, |(server, mut crowd, mut turned_away)| async move {
            let connection = server.next(&mut crowd, &mut turned_away).await;
            Some((Ok(connection), (server, crowd, turned_away)))
        })
    }

    async fn next(&self, crowd: &mut Crowd, turned_away: &mut TurnedAway) -> Connection {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match self.let_in(stream, crowd) {
                    Ok(connection) => return connection,
                    Err(why) => {
                        if let Some(times) = turned_away.one_more(Instant::now()) {
                            warn!(
                                why,
                                turned_away = times,
                                "turned away at the admin socket; the last one for this"
                            );
                        }
                    }
                },
                Err(error) => {
                    warn!(%error, "cannot accept at the admin socket");
                    sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The connection of somebody who may ask and has room; another one is closed, for what comes back.
    fn let_in(&self, stream: UnixStream, crowd: &mut Crowd) -> Result<Connection, String> {
        let who = peer::credentials_of(stream.as_fd())
            .map_err(|error| format!("it cannot be told who it is: {error}"))?;
        self.door.admit(&who).map_err(|stranger| stranger.to_string())?;
        let seat = crowd.enter(who.uid);
        let seat = seat.ok_or_else(|| format!("too many connections, in all or of user {}", who.uid))?;
        Ok(Connection::new(stream, seat))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The next daemon may have put its own there.
        if mark(&self.path).is_ok_and(|found| found == self.mark) {
            // Whoever removed it meanwhile has done our work.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// The socket gets its name when its mode and its group are right.
fn make(path: &Path, door: Door) -> io::Result<(UnixListener, Mark)> {
    let hidden = path.with_file_name(format!(".{}", crate::SOCKET));
    match std::fs::remove_file(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&hidden)?;
    std::fs::set_permissions(&hidden, Permissions::from_mode(0o600))?;
    if let Some(group) = door.group {
        std::os::unix::fs::chown(&hidden, None, Some(group))?;
    }
    std::fs::set_permissions(&hidden, Permissions::from_mode(door.mode()))?;
    let mark = mark(&hidden)?;
    std::fs::rename(&hidden, path)?;
    Ok((listener, mark))
}

fn mark(path: &Path) -> io::Result<Mark> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// What the daemon says of itself.
struct Answers<F>(F);

#[tonic::async_trait]
impl<F: Fn() -> StatusResponse + Send + Sync + 'static> Admin for Answers<F> {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new((self.0)()))
    }
}
