//! What the kubelet's side of these conversations needs: its services, and the clients that it uses of ours.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};

/// No test waits longer for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// The messages and services, from the same files as the crate's.
#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    reason = "generated code"
)]
pub(crate) mod wire {
    pub mod core {
        include!(concat!(env!("OUT_DIR"), "/core.rs"));
    }
    pub mod csi {
        include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    }
    pub mod pluginregistration {
        include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
    }
    pub mod podresources {
        include!(concat!(env!("OUT_DIR"), "/v1.rs"));
    }
    pub mod pods {
        include!(concat!(env!("OUT_DIR"), "/v1alpha1.rs"));
    }
}

/// A server of the kubelet's. When it ends, connections break and the socket's file stays, as when a kubelet is killed.
pub(crate) struct Served(JoinHandle<()>);

impl Served {
    pub(crate) fn at(path: &Path, router: Router) -> Self {
        drop(std::fs::remove_file(path));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        let incoming = stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let incoming = Box::pin(incoming);
        Self(tokio::spawn(async move {
            router.serve_with_incoming::<_, _, io::Error, _>(incoming).await.unwrap()
        }))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a future gives within the deadline.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("within the deadline")
}

/// Waits until it is so.
pub(crate) async fn until(mut is: impl FnMut() -> bool) {
    soon(async {
        while !is() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Connects to a server of ours as soon as it is there.
pub(crate) async fn connect(path: PathBuf) -> Channel {
    connect_as(path, "localhost").await
}

/// The same, with requests of this authority.
pub(crate) async fn connect_as(path: PathBuf, authority: &str) -> Channel {
    until(|| std::os::unix::net::UnixStream::connect(&path).is_ok()).await;
    let endpoint = Endpoint::try_from(format!("unix://{}", path.display())).unwrap();
    endpoint.origin(format!("http://{authority}").parse().unwrap()).connect().await.unwrap()
}
