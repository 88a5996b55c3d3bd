//! The Secret that all replicas have their certificates from. Whoever comes first makes them; whoever sees that they are due
//! renews them. Two at once: the API server takes one, and the other reads what that wrote.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::{Stream, StreamExt};
use gpu_handoff_logs::chain;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, watch_object};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::certificates::{CertificateError, Certificates, Due, What};
use crate::limits;
use crate::names::{SECRET, host};
use crate::serving::Serving;

/// There are no certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The API server did not do it.
    #[error("{doing} the Secret {SECRET}")]
    Api {
        /// What it was to do.
        doing: &'static str,
        /// What it said.
        source: kube::Error,
    },
    /// It is not there, and may not be made.
    #[error("there is no Secret {SECRET}, and none may be made here: manifests/webhook.yaml has it, empty")]
    Missing,
    /// Others wrote it each time.
    #[error("write the Secret {SECRET}: somebody else did so first, {} times", limits::SECRET_TRIES)]
    Busy,
    /// The API server was not heard of in time.
    #[error("the API server took longer than {} s over the Secret {SECRET}", limits::API_TIME.as_secs())]
    Slow,
    /// They could not be made.
    #[error("make the certificates")]
    Make(#[from] CertificateError),
}

/// The Secret of one namespace.
#[derive(Clone)]
pub struct Store {
    secrets: Api<Secret>,
    host: String,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Store {
    /// The Secret of the webhook of this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { secrets: Api::namespaced(client, namespace), host: host(namespace) }
    }

    /// The certificates: those that there are, made and renewed where they are due by now.
    ///
    /// # Errors
    /// There are none that could be used.
    pub async fn ensure(&self, now: SystemTime) -> Result<Certificates, SecretError> {
        let ensured = timeout(limits::API_TIME, self.read_or_write(now));
        ensured.await.map_err(|_| SecretError::Slow)?
    }

    async fn read_or_write(&self, now: SystemTime) -> Result<Certificates, SecretError> {
        // Read again after each writing, whoever wrote: what is returned is what all replicas have.
        for _ in 0..limits::SECRET_TRIES {
            let found = self.secrets.get_opt(SECRET).await;
            let found = found.map_err(|source| SecretError::Api { doing: "read", source })?;
            let held = found.as_ref().and_then(|secret| Certificates::from_data(secret.data.as_ref()?));
            let renewed = match held {
                Some(held) => match held.due(&self.host, now) {
                    None => return Ok(held),
                    Some(Due { what, why }) => {
                        info!(?what, why, "certificates are made anew");
                        held.renewed(what, &self.host, now)?
                    }
                },
                None => {
                    info!(what = ?What::All, "there are no certificates yet");
                    Certificates::make(&self.host, now)?
                }
            };
            self.write(found, &renewed).await?;
        }
        Err(SecretError::Busy)
    }

    /// Writes the Secret, unless somebody else did since it was read: then nothing happens.
    async fn write(&self, found: Option<Secret>, certificates: &Certificates) -> Result<(), SecretError> {
        let is_there = found.is_some();
        let mut secret = found.unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            ..Secret::default()
        });
        certificates.put_into(secret.data.get_or_insert_default());
        let params = PostParams::default();
        // The resource version that was read goes along, so the API server can tell.
        let written = if is_there {
            self.secrets.replace(SECRET, &params, &secret).await
        } else {
            self.secrets.create(&params, &secret).await
        };
        match written {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(()),
            // It was deleted meanwhile.
            Err(kube::Error::Api(status)) if is_there && status.is_not_found() => Ok(()),
            Err(kube::Error::Api(status)) if !is_there && status.is_forbidden() => Err(SecretError::Missing),
            Err(source) => Err(SecretError::Api { doing: "write", source }),
        }
    }
}

/// Certificates as they are now: those of the Secret, and the serving certificate read.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) certificates: watch::Sender<Certificates>,
    pub(crate) serving: watch::Sender<Arc<Serving>>,
}

impl Held {
    fn of(certificates: Certificates) -> Result<Self, SecretError> {
        let serving = Arc::new(certificates.serving().map_err(CertificateError::from)?);
        Ok(Self { certificates: watch::channel(certificates).0, serving: watch::channel(serving).0 })
    }

    fn take(&self, certificates: Certificates) -> Result<(), SecretError> {
        if *self.certificates.borrow() == certificates {
            return Ok(());
        }
        let serving = certificates.serving().map_err(CertificateError::from)?;
        info!(until = serving.ends(), "new certificates");
        // First what is trusted: whoever is told by it is told before anything else is served.
        self.certificates.send_replace(certificates);
        self.serving.send_replace(Arc::new(serving));
        Ok(())
    }
}

/// The first certificates, as soon as there are some.
pub(crate) async fn first(store: &Store) -> Held {
    let mut pauses = DefaultBackoff::default();
    loop {
        match store.ensure(SystemTime::now()).await.and_then(Held::of) {
            Ok(held) => return held,
            Err(error) => {
                warn!(error = chain(&error), "there are no certificates, and nobody is served yet");
                sleep(pauses.next().unwrap_or(limits::API_TIME)).await;
            }
        }
    }
}

/// Keeps certificates as the Secret has them, and has it renewed when it is time, for ever.
pub(crate) async fn keep(store: Store, held: Arc<Held>) {
    let mut changes = pin!(watch_object(store.secrets.clone(), SECRET).default_backoff());
    let mut pauses = DefaultBackoff::default();
    loop {
        let pause = match store.ensure(SystemTime::now()).await.and_then(|found| held.take(found)) {
            Ok(()) => {
                pauses.reset();
                limits::RENEWAL_LOOK
            }
            Err(error) => {
                warn!(error = chain(&error), "the certificates stay as they are");
                pauses.next().unwrap_or(limits::API_TIME)
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = changed(changes.as_mut(), &held) => {}
        }
    }
}

/// Waits until the Secret holds something else than what is held.
async fn changed(
    mut changes: Pin<&mut impl Stream<Item = Result<Option<Secret>, watcher::Error>>>,
    held: &Held,
) {
    while let Some(change) = changes.next().await {
        match change {
            Ok(secret) => {
                let there = secret.and_then(|secret| Certificates::from_data(&secret.data?));
                if there.as_ref() != Some(&*held.certificates.borrow()) {
                    return;
                }
            }
            // It goes on by itself; what is missed meanwhile is seen when it is looked after anyway.
            Err(error) => warn!(error = chain(&error), "the Secret {SECRET} cannot be watched"),
        }
    }
}
