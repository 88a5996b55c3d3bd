//! The pods of this node, from one stream: of the kubelet where it has the Pods API (Kubernetes 1.37), else of the API server.
//!
//! [`open`] follows them for ever. A source that is away is asked again and again, and what is known stays known meanwhile; when it
//! is back it names all pods there are, and those that it does not name any more are told as [`PodEvent::Deleted`]. So no
//! deletion is lost, whoever restarts.
//!
//! What differs between the sources:
//! - the kubelet tells of a pod's end when its containers are gone and its volumes unmounted, also where the object stays (a finished
//!   Job's pod); the API server when the object is gone. Told as deleted once, a pod never comes back.
//! - the kubelet tells nothing new while it starts and the API server is away; known pods stay known.
//! - static pods come from the kubelet alone. The API server has mirrors of them, with UIDs that no process's cgroup names
//!   and with annotations that anybody could write: they are left out.
//! - a static pod that is made again from the same manifest has its old UID, and stays deleted.
//! - the kubelet tells of changed labels and annotations only together with a changed status.

mod facts;
mod from_kube;
mod known;
mod kube_watch;
mod pods_api;
#[cfg(test)]
mod recorded;
mod stream;

use std::path::Path;

use tonic::transport::{Channel, Endpoint, Error};

pub use self::facts::{ContainerFacts, ContainerKind, Phase, PodFacts, Qos};
pub use self::known::{PodEvent, PodGone};
pub use self::stream::{OpenError, Pods, Settings, Source, open};
use crate::limits;

/// Where the kubelet serves its pods, below its root.
pub const SOCKET: &str = "pods-api/pods-api.sock";

/// Connects to a service of the kubelet.
pub(crate) async fn connect(socket: &Path) -> Result<Channel, Error> {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
    endpoint.connect_timeout(limits::CONNECT_TIME).connect().await
}
