//! Connects to the runtime, for ever.
//!
//! A runtime that starts anew makes a new socket: that is noticed by its file, so that containers are not made without
//! us for longer than it takes.

use std::error::Error;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use crate::handler::Handler;
use crate::limits;
use crate::session;
use crate::state::{Link, State};

/// Whom to connect to, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    socket: PathBuf,
    name: String,
    index: String,
}

/// A setting cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The kernel's addresses have no room for it.
    #[error(
        "the path of the socket {path} has {} bytes, more than the kernel takes ({})",
        path.as_os_str().len(),
        limits::SOCKET_PATH_BYTES
    )]
    Socket {
        /// What was given.
        path: PathBuf,
    },
    /// A runtime takes no such name.
    #[error(
        "the plugin's name {name:?} is not 1 to {} of the characters A-Z, a-z, 0-9, _ . + -",
        limits::PLUGIN_NAME_BYTES
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// A runtime takes no such index.
    #[error("the plugin's index {index} is not 0 to 99")]
    Index {
        /// What was given.
        index: u8,
    },
}

impl Settings {
    /// Checks what was given.
    ///
    /// # Errors
    /// When a runtime would not take it.
    pub fn new(socket: &Path, name: &str, index: u8) -> Result<Self, SettingsError> {
        if socket.as_os_str().len() > limits::SOCKET_PATH_BYTES {
            return Err(SettingsError::Socket { path: socket.to_owned() });
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
        if name.is_empty() || name.len() > limits::PLUGIN_NAME_BYTES || !name.bytes().all(allowed) {
            return Err(SettingsError::Name { name: name.to_owned() });
        }
        if index > 99 {
            return Err(SettingsError::Index { index });
        }
        Ok(Self { socket: socket.to_owned(), name: name.to_owned(), index: format!("{index:02}") })
    }

    /// Where the runtime listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn index(&self) -> &str {
        &self.index
    }
}

/// Answers the runtime at the socket until it is told to stop, whichever runtime that is and however often it starts
/// anew.
///
/// `state` says how things stand. To stop is to close the connection: there is no other way to leave.
pub async fn serve(
    settings: Settings,
    mut handler: impl Handler,
    state: watch::Sender<State>,
    stop: impl Future<Output = ()>,
) {
    tokio::select! {
        () = stop => {}
        () = reconnect(&settings, &mut handler, &state) => {}
    }
}

async fn reconnect(settings: &Settings, handler: &mut impl Handler, state: &watch::Sender<State>) {
    let socket = settings.socket.as_path();
    let mut next = None;
    let mut pause = limits::FIRST_PAUSE;
    loop {
        let mark = mark(socket);
        let stream = match next.take() {
            Some(stream) => Ok(stream),
            None => connect(socket).await,
        };
        let (began, served) = (Instant::now(), state.borrow().connections);
        let failed: Box<dyn Error + Send + Sync> = match stream {
            Ok(stream) => tokio::select! {
                ended = session::run(stream, settings, handler, state) => Box::new(ended),
                another = replaced(socket, mark) => {
                    info!(socket = %socket.display(), "there is a new socket of the runtime");
                    next = Some(another);
                    continue;
                }
            },
            Err(error) => Box::new(error),
        };
        away(state, &*failed);
        // One that does not take us, however long it takes for that, is not asked more often.
        if state.borrow().connections != served && began.elapsed() >= limits::LONGEST_PAUSE {
            pause = limits::FIRST_PAUSE;
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(limits::LONGEST_PAUSE),
            () = changed(socket, mark) => {}
        }
    }
}

/// The runtime cannot be connected to.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("connect to {}", path.display())]
    Refused { path: PathBuf, source: std::io::Error },
    #[error("connecting to {} took longer than {} s", path.display(), limits::CONNECT_TIME.as_secs())]
    Late { path: PathBuf },
}

async fn connect(socket: &Path) -> Result<UnixStream, ConnectError> {
    let path = socket.to_owned();
    match timeout(limits::CONNECT_TIME, UnixStream::connect(socket)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(ConnectError::Refused { path, source }),
        Err(_) => Err(ConnectError::Late { path }),
    }
}

/// Says why there is no connection: in the log once, as long as it stays the same.
fn away(state: &watch::Sender<State>, failed: &(dyn Error + 'static)) {
    let mut why = failed.to_string();
    let mut source = failed.source();
    while let Some(cause) = source {
        why = format!("{why}: {cause}");
        source = cause.source();
    }
    let new = Link::Away { why };
    if state.borrow().link == new {
        debug!(error = failed, "still no connection to the runtime");
    } else {
        info!(error = failed, "no connection to the runtime");
        state.send_modify(|state| state.set(new));
    }
}

/// What tells one file from another that has its name.
type Mark = Option<(u64, u64)>;

fn mark(path: &Path) -> Mark {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Waits until there is another file.
async fn changed(socket: &Path, before: Mark) {
    loop {
        sleep(limits::PAUSE_LOOK).await;
        let now = mark(socket);
        if now.is_some() && now != before {
            return;
        }
    }
}

/// Waits until another socket is there that somebody listens at. A file that vanishes, or that nobody listens at,
/// changes nothing: the connection goes on.
async fn replaced(socket: &Path, before: Mark) -> UnixStream {
    loop {
        sleep(limits::SOCKET_LOOK).await;
        let now = mark(socket);
        if now.is_some()
            && now != before
            && let Ok(stream) = connect(socket).await
        {
            return stream;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_a_runtime_would_not_take_are_named() {
        let path = Path::new("/run/nri/nri.sock");
        let new = |name: &str, index| Settings::new(path, name, index);
        assert_eq!(new("gpu-handoff", 5).unwrap().index(), "05");
        assert_eq!(new("a", 99).unwrap().name(), "a");
        for name in ["", "a b", "a/b", "é", &"x".repeat(64)] {
            assert_eq!(new(name, 1), Err(SettingsError::Name { name: name.into() }));
        }
        assert_eq!(new("a", 100), Err(SettingsError::Index { index: 100 }));
        let long = PathBuf::from(format!("/{}", "x".repeat(107)));
        assert_eq!(Settings::new(&long, "a", 1), Err(SettingsError::Socket { path: long.clone() }));
    }
}
