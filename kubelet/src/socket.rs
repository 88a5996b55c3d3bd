//! A listening socket in a folder of the kubelet's: it is there whole or not at all, made anew when it vanishes, and only
//! what is ours is removed.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use crate::limits;

/// A socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The kernel's addresses have no room for it.
    #[error("the path of the socket {path} has {} bytes, more than the kernel takes ({})", path.as_os_str().len(), limits::SOCKET_PATH_BYTES)]
    TooLong {
        /// Where it was to be, by the name that it has until it listens.
        path: PathBuf,
    },
    /// Another process listens there.
    #[error("another process listens at {path}")]
    Taken {
        /// Where it was to be.
        path: PathBuf,
    },
    /// The path has no folder or no name.
    #[error("{path} names no file in a folder")]
    NoFile {
        /// What was given.
        path: PathBuf,
    },
    /// What the kernel refused.
    #[error("make the socket {path}")]
    Make {
        /// Where it was to be.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What tells one file from another that has its name.
type Mark = (u64, u64);

/// A socket that listens. Its file is removed with it.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    listener: UnixListener,
    mark: Mark,
    look_at: Instant,
    /// The last attempt to make it anew failed: said once.
    failing: bool,
}

impl Place {
    /// Makes the folder, where it is not there, and the socket in it. A file that nobody listens at any more is replaced.
    pub(crate) fn take(path: &Path) -> Result<Self, SocketError> {
        let hidden = hidden_name(path)?;
        if answers(path) {
            return Err(SocketError::Taken { path: path.to_owned() });
        }
        let (listener, mark) =
            make(path, &hidden).map_err(|source| SocketError::Make { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), listener, mark, look_at: next_look(), failing: false })
    }

    /// The next connection. Meanwhile it is looked whether the socket's file is still there. Cancel safe.
    pub(crate) async fn accept(&mut self) -> UnixStream {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => return stream,
                    Err(error) => {
                        warn!(path = %self.path.display(), %error, "cannot accept");
                        sleep(limits::ACCEPT_PAUSE).await;
                    }
                },
                () = sleep_until(self.look_at) => self.look(),
            }
        }
    }

    /// Makes the socket anew where its file is gone, or another's lies there that nobody listens at.
    fn look(&mut self) {
        self.look_at = next_look();
        if mark(&self.path) == Some(self.mark) {
            return;
        }
        match Self::take(&self.path) {
            Ok(mut new) => {
                info!(path = %self.path.display(), "the socket's file had vanished: made anew");
                std::mem::swap(self, &mut new);
                // What it leaves has no file any more.
            }
            Err(error) if !self.failing => {
                self.failing = true;
                warn!(path = %self.path.display(), error = &error as &dyn std::error::Error, "the socket's file is gone");
            }
            Err(_) => {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if mark(&self.path) == Some(self.mark) {
            // Whoever removed it meanwhile has done our work.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn next_look() -> Instant {
    Instant::now() + limits::SOCKET_LOOK
}

fn mark(path: &Path) -> Option<Mark> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Whether a process listens there. Only a refusal says that none does.
pub(crate) fn answers(path: &Path) -> bool {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound),
    }
}

/// Whether it is a socket that nobody listens at.
pub(crate) fn is_dead_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) && !answers(path)
}

/// Whether a socket can be made there.
pub(crate) fn fits(path: &Path) -> Result<(), SocketError> {
    hidden_name(path).map(drop)
}

/// A name that the kubelet's watcher passes over.
fn hidden_name(path: &Path) -> Result<PathBuf, SocketError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(SocketError::NoFile { path: path.to_owned() });
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    let hidden = folder.join(hidden);
    if hidden.as_os_str().len() > limits::SOCKET_PATH_BYTES {
        return Err(SocketError::TooLong { path: hidden });
    }
    Ok(hidden)
}

/// The socket gets its name when it listens and belongs to root alone.
fn make(path: &Path, hidden: &Path) -> io::Result<(UnixListener, Mark)> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(hidden)?;
    std::fs::set_permissions(hidden, Permissions::from_mode(0o600))?;
    let file = std::fs::symlink_metadata(hidden)?;
    std::fs::rename(hidden, path)?;
    Ok((listener, (file.dev(), file.ino())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    async fn connects(path: &Path) {
        timeout(DEADLINE, async {
            while UnixStream::connect(path).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("somebody listens");
    }

    #[tokio::test]
    async fn it_is_made_anew_when_it_vanishes_even_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry/own.sock");
        let mut place = Place::take(&path).unwrap();
        for gone in [true, false] {
            if gone {
                std::fs::remove_file(&path).unwrap();
            } else {
                std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
            }
            let (_, ()) = tokio::join!(timeout(DEADLINE, place.accept()), connects(&path));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn it_removes_its_own_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.sock");
        drop(Place::take(&path).unwrap());
        assert!(!path.exists());

        let place = Place::take(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(place);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another's");
    }

    #[tokio::test]
    async fn who_listens_is_left_alone_and_a_dead_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.sock");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(Place::take(&path), Err(SocketError::Taken { .. })));
        drop(other);
        assert!(is_dead_socket(&path));
        let _place = Place::take(&path).unwrap();
        connects(&path).await;
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_named() {
        let error = Place::take(Path::new(&format!("/tmp/{}", "x".repeat(200)))).unwrap_err();
        assert!(error.to_string().contains("has 206 bytes"), "{error}");
    }
}
