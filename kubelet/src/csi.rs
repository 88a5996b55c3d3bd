//! The driver's services: the kubelet asks for a pod's volume, and for its end.
//!
//! Requests are checked here, strictly, and handed on as [`Command`]s; whoever does them answers each. The kubelet repeats both
//! until they succeed, also after its own restart, so both must be idempotent.
//!
//! **Who a volume's pod is** comes from the kubelet: the CSIDriver object must say `podInfoOnMount: true`. Where it does not, the
//! volume's attributes are the pod author's own words. The UID is compared with the target path, which is the kubelet's own; name,
//! namespace and service account must be compared with the pod of that UID ([`crate::pods`]) before anything is decided by them.

mod request;
mod service;
mod words;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;

use tokio::sync::{mpsc, watch};

pub use self::request::Invalid;
pub use self::words::{Answer, Command, PodName, Publish, Refusal, Unpublish};
pub use crate::limits::ANSWER_TIME;
use crate::proto::csi::identity_server::IdentityServer;
use crate::proto::csi::node_server::NodeServer;
use crate::serving::{self, ServeError};
use crate::socket::Place;
use crate::{DRIVER, limits};

/// What the services say and check.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen: see [`socket_in`].
    pub socket: PathBuf,
    /// The kubelet's root folder, as the kubelet names it in target paths: mostly `/var/lib/kubelet`.
    pub kubelet_root: PathBuf,
    /// The node's name.
    pub node: String,
    /// This program's version.
    pub version: String,
    /// Volumes that this node takes. (The scheduler counts only volumes that are not inline: more are refused here.)
    pub max_volumes: u32,
    /// Whether commands are done at present; the answer to `Probe`.
    pub ready: watch::Receiver<bool>,
}

/// Where the services' socket lies in a folder of plugins (`plugins` in the kubelet's root).
#[must_use]
pub fn socket_in(plugins: &Path) -> PathBuf {
    plugins.join(DRIVER).join("csi.sock")
}

/// A queue for commands, of the length that it may have.
#[must_use]
pub fn queue() -> (mpsc::Sender<Command>, mpsc::Receiver<Command>) {
    mpsc::channel(limits::COMMANDS)
}

/// Serves until it is told to stop.
///
/// # Errors
/// The socket could not be made, or the server broke.
pub async fn serve(
    settings: Settings,
    commands: mpsc::Sender<Command>,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let path = settings.socket.clone();
    let place = Place::take(&path)?;
    let identity = IdentityServer::new(service::Identity::new(&settings))
        .max_decoding_message_size(limits::REQUEST_BYTES);
    let node = NodeServer::new(service::Node::new(settings, commands))
        .max_decoding_message_size(limits::REQUEST_BYTES);
    let router = serving::builder().add_service(identity).add_service(node);
    serving::serve(&path, place, router, pin!(stop)).await
}
