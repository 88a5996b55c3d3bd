//! Wiring: what there is to be kept up to date, the server, and an orderly stop.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;
use tokio_rustls::rustls;
use tracing::info;

use crate::files::{PairError, PairFiles};
use crate::http::Handler;
use crate::listen::listen;
use crate::ready::Ready;
use crate::secret::{self, Store};
use crate::serving::{self, Serving};
use crate::settings::{RulesFiles, SettingsError};
use crate::{ca_bundle, limits, server};

/// How the webhook is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The file of the injection's settings.
    pub settings: PathBuf,
    /// The file of the nodes' policy.
    pub policy: Option<PathBuf>,
    /// Where its certificate is from.
    pub tls: Tls,
}

/// Where the certificate is from.
#[derive(Clone)]
pub enum Tls {
    /// It makes one itself, and tells the API server to trust it.
    Own {
        /// The namespace of its Service and Secret.
        namespace: String,
        /// Who reaches the API server; nobody: as each pod does.
        client: Option<Client>,
    },
    /// Somebody else makes one.
    Files {
        /// The certificate.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own { namespace, .. } => {
                f.debug_struct("Own").field("namespace", namespace).finish_non_exhaustive()
            }
            Self::Files { certificate, key } => {
                f.debug_struct("Files").field("certificate", certificate).field("key", key).finish()
            }
        }
    }
}

/// The webhook could not begin, or broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// What the system said.
    #[error("{doing}")]
    Io {
        /// What was to be done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The settings cannot be used.
    #[error("begin with the settings")]
    Settings(#[from] SettingsError),
    /// The certificate cannot be used.
    #[error("begin with the certificate")]
    Pair(#[from] PairError),
    /// The API server is not configured.
    #[error("find the API server; elsewhere than in a pod, --tls-cert and --tls-key do without")]
    Kube(#[from] kube::Error),
    /// Encryption could not be set up.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    /// What keeps settings or certificates up to date has ended.
    #[error("keep settings and certificates up to date")]
    Broken(#[from] JoinError),
    /// As above, without a reason.
    #[error("what keeps settings and certificates up to date has ended")]
    Ended,
}

/// Serves until it is told to stop by a signal; a second signal ends it at once.
///
/// # Errors
/// What kept it from starting, or from going on.
pub fn run(config: Config) -> Result<(), WebhookError> {
    let io = |doing| move |source| WebhookError::Io { doing, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io("start the runtime"))?;
    runtime.block_on(async {
        let signals = || Ok([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]);
        let mut signals = signals().map_err(io("wait for signals"))?;
        let (stop, stopped) = watch::channel(false);
        let listener = listen(config.listen).await.map_err(io("listen"))?;
        let serving = serve(config, listener, told(stopped));
        let signalled = async {
            next(&mut signals).await;
            info!("stopping");
            stop.send_replace(true);
            next(&mut signals).await;
        };
        tokio::select! { ended = serving => ended, () = signalled => Ok(()) }
    })
}

async fn next([terminate, interrupt]: &mut [Signal; 2]) {
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
}

async fn told(mut stopped: watch::Receiver<bool>) {
    // An error would mean that nobody can tell any more.
    let _told = stopped.wait_for(|stopped| *stopped).await;
}

/// Serves on a socket until it is told to stop. Before there is a certificate, connections wait.
///
/// # Errors
/// What kept it from starting, or from going on.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<(), WebhookError> {
    let mut stop = std::pin::pin!(stop);
    let rules = RulesFiles::open(&config.settings, config.policy.as_deref())?;
    let told = rules.subscribe();
    let mut upkeep = JoinSet::new();
    upkeep.spawn(rules.keep());
    let serving = tokio::select! {
        serving = certificate(config.tls, &mut upkeep) => serving?,
        () = &mut stop => return Ok(()),
    };
    let ready = Ready::new(serving.clone());
    let handler = Arc::new(Handler::new(told, ready.clone()));
    let tls = Arc::new(serving::config(serving)?);
    let address = listener.local_addr().map_err(|source| WebhookError::Io { doing: "listen", source })?;
    info!(%address, "serving");
    let leave = async {
        stop.await;
        // Others are asked instead as soon as everybody has heard; who has not, is still answered.
        ready.leave();
        sleep(limits::LEAVE_TIME).await;
    };
    tokio::select! {
        () = server::serve(listener, tls, handler, leave) => Ok(()),
        ended = upkeep.join_next() => Err(match ended {
            Some(Err(error)) => WebhookError::Broken(error),
            _ => WebhookError::Ended,
        }),
    }
}

/// The certificate, as it is and as it will be.
async fn certificate(
    tls: Tls,
    upkeep: &mut JoinSet<()>,
) -> Result<watch::Receiver<Arc<Serving>>, WebhookError> {
    match tls {
        Tls::Files { certificate, key } => {
            let files = PairFiles::open(&certificate, &key)?;
            let serving = files.subscribe();
            upkeep.spawn(files.keep());
            Ok(serving)
        }
        Tls::Own { namespace, client } => {
            let client = match client {
                Some(client) => client,
                None => Client::try_default().await?,
            };
            let store = Store::new(client.clone(), &namespace);
            let held = Arc::new(secret::first(&store).await);
            let serving = held.serving.subscribe();
            upkeep.spawn(ca_bundle::keep(client, held.certificates.subscribe()));
            upkeep.spawn(secret::keep(store, held));
            Ok(serving)
        }
    }
}
