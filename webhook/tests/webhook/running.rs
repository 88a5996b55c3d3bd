//! A webhook that serves, until it is dropped.

use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gpu_handoff_webhook::{Config, Tls, WebhookError, serve};
use kube::Client;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

use crate::client::NAMESPACE;

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) settings: PathBuf,
    pub(crate) policy: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    task: JoinSet<Result<(), WebhookError>>,
    _folder: TempDir,
}

impl Running {
    pub(crate) async fn with_own(client: Client) -> Self {
        Self::start(Tls::Own { namespace: NAMESPACE.to_owned(), client: Some(client) }).await
    }

    pub(crate) async fn start(tls: Tls) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("injection.yaml");
        fs::write(&settings, "image: sidecar:1\n").unwrap();
        let policy = folder.path().join("policy.yaml");
        fs::write(&policy, "version: gpu-handoff.io/v1\n").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let config =
            Config { listen: address, settings: settings.clone(), policy: Some(policy.clone()), tls };
        let mut task = JoinSet::new();
        task.spawn(serve(config, listener, async { drop(stopped.await) }));
        Self { address, settings, policy, stop: Some(stop), task, _folder: folder }
    }

    /// Tells it to stop; what it says when it has.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn ended(&mut self) -> Result<(), WebhookError> {
        timeout(PATIENCE, self.task.join_next()).await.expect("it goes on").unwrap().unwrap()
    }
}

/// Asks again and again until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let begin = Instant::now();
    let mut looks = interval(Duration::from_millis(20));
    loop {
        looks.tick().await;
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "waited too long until {what}");
    }
}

/// It comes soon.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}
