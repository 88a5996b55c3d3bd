//! Makes the driver known to the kubelet, whose plugin watcher asks whoever has a socket in its folder.
//!
//! The kubelet takes the driver while the socket's file is there, finds it again when it starts, and forgets the driver when
//! the file goes. Each instance has a file of its own name, by a hash of its own, as a path has little room: one that ends
//! late must not take its successor's away. The kubelet refuses a second instance for as long as it knows the first, so files
//! of instances that are dead go before ours comes.
//!
//! **Why there is an @ in the file's name.** The plugin watcher's HTTP/2 requests have the socket's path, percent-encoded, as
//! their authority, which is none (`%` may not be in a host), and the HTTP/2 library here refuses them. What comes before an @
//! is not the host, and may have percent signs: `%2Fvar%2F…%2Fgpu-handoff.io@HASH-reg.sock` is an authority. (So since
//! Kubernetes 1.29; before, the path came as it is, which no name helps.)

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::serving::{self, ServeError};
pub use crate::socket::SocketError;
use crate::socket::{self, Place};
use crate::{DRIVER, limits};

/// The version of CSI that drivers name to the kubelet: it tells 1.x from older ones.
const VERSION: &str = "1.0.0";
/// What the names of our registration sockets begin and end with; between is the instance's hash.
const PREFIX: &str = "gpu-handoff.io@";
const SUFFIX: &str = "-reg.sock";

/// Where and as whom to register.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder that the kubelet watches: see [`folder_in`].
    pub folder: PathBuf,
    /// What tells this instance from all others: the UID of the plugin's pod, say.
    pub instance: String,
    /// The socket of the driver's services ([`crate::csi`]), as the kubelet sees it.
    pub endpoint: PathBuf,
}

impl Settings {
    /// The registration socket of this instance.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_of(&self.folder, &self.instance)
    }
}

/// The folder that the kubelet watches, in its root.
#[must_use]
pub fn folder_in(root: &Path) -> PathBuf {
    root.join("plugins_registry")
}

/// Whether this folder of the kubelet's leaves room for the paths of our sockets, of which none is longer than this one's.
///
/// # Errors
/// It does not.
pub fn fits_in(root: &Path) -> Result<(), SocketError> {
    // All instances' are of one length.
    socket::fits(&socket_of(&folder_in(root), ""))
}

fn socket_of(folder: &Path, instance: &str) -> PathBuf {
    let hash = blake3::hash(instance.as_bytes());
    let bytes = &hash.as_bytes()[..limits::INSTANCE_HASH_BYTES];
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("{PREFIX}{digits}{SUFFIX}"))
}

/// How far the registration is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The kubelet has not come yet, or not again since it started.
    #[default]
    Waiting,
    /// The kubelet has asked who this is.
    Asked,
    /// The kubelet has taken the driver.
    Registered,
    /// The kubelet has not; it tries again by itself.
    Refused(String),
}

/// Registers until it is told to stop, and tells how far that is. The services must be there before.
///
/// # Errors
/// The socket could not be made, or the server broke.
pub async fn serve(
    settings: Settings,
    state: watch::Sender<State>,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    if settings.instance.is_empty() {
        return Err(ServeError::Instance);
    }
    remove_dead(&settings.folder);
    let path = settings.socket();
    let place = Place::take(&path)?;
    let service = RegistrationServer::new(Registrar { endpoint: settings.endpoint, state })
        .max_decoding_message_size(limits::REQUEST_BYTES);
    serving::serve(&path, place, serving::builder().add_service(service), pin!(stop)).await
}

/// Removes registration sockets of ours that nobody listens at: of instances that were killed.
fn remove_dead(folder: &Path) {
    let ours = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
    let Ok(entries) = std::fs::read_dir(folder) else {
        return; // Not there yet: it is made with our socket.
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_name().to_str().is_some_and(ours) || !socket::is_dead_socket(&path) {
            continue;
        }
        match std::fs::remove_file(&path) {
            Ok(()) => info!(path = %path.display(), "removed the registration of an instance that is dead"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                warn!(path = %path.display(), %error, "cannot remove a dead instance's registration")
            }
        }
    }
}

struct Registrar {
    endpoint: PathBuf,
    state: watch::Sender<State>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let endpoint = self.endpoint.to_str();
        let endpoint =
            endpoint.ok_or_else(|| Status::internal("the endpoint's path is not UTF-8"))?.to_owned();
        self.state.send_replace(State::Asked);
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint,
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        told: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let told = told.into_inner();
        self.state.send_replace(if told.plugin_registered {
            info!("the kubelet has taken the driver");
            State::Registered
        } else {
            let why = serving::cut(told.error, limits::TOLD_BYTES);
            warn!(why, "the kubelet has not taken the driver");
            State::Refused(why)
        });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
