//! The API server is told which authorities to trust: the field `caBundle` of our webhook's configuration, and that alone.

use std::pin::pin;

use futures_util::StreamExt;
use gpu_handoff_logs::chain;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{DefaultBackoff, watch_object};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::certificates::Certificates;
use crate::limits;
use crate::names::{CONFIGURATION, FIELD_MANAGER};

/// The field could not be set.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error("set caBundle of the MutatingWebhookConfiguration {CONFIGURATION}")]
    Api(#[from] kube::Error),
    #[error("the API server took longer than {} s to set caBundle", limits::API_TIME.as_secs())]
    Slow,
}

/// What is known of the configuration.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    /// Nobody has told yet.
    Nothing,
    /// It is not there, or has no webhook of ours.
    Missing,
    /// It is there, and trusts this.
    Trusts(Option<ByteString>),
}

impl Seen {
    fn of(configuration: Option<MutatingWebhookConfiguration>) -> Self {
        let webhooks = configuration.and_then(|configuration| configuration.webhooks).unwrap_or_default();
        match webhooks.into_iter().find(|webhook| webhook.name == CONFIGURATION) {
            Some(webhook) => Self::Trusts(webhook.client_config.ca_bundle),
            None => Self::Missing,
        }
    }
}

/// Keeps the field as the certificates want it, whoever changes either, for ever. If somebody else keeps it otherwise, the
/// pauses between tries grow.
pub(crate) async fn keep(client: Client, mut certificates: watch::Receiver<Certificates>) {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client);
    let mut changes = pin!(watch_object(api.clone(), CONFIGURATION).default_backoff());
    // They begin anew after a while without.
    let mut pauses = DefaultBackoff::default();
    let mut next_try = Instant::now();
    let mut seen = Seen::Nothing;
    loop {
        let wanted = ByteString(certificates.borrow_and_update().authorities().as_bytes().to_vec());
        let is_due = matches!(&seen, Seen::Trusts(trusted) if trusted.as_ref() != Some(&wanted));
        tokio::select! {
            () = sleep_until(next_try), if is_due => {
                match apply(&api, &wanted).await {
                    Ok(()) => {
                        info!("the API server is told to trust this webhook");
                        seen = Seen::Trusts(Some(wanted));
                    }
                    Err(error) => warn!(error = chain(&error), "the API server does not trust this webhook"),
                }
                next_try = Instant::now() + pauses.next().unwrap_or(limits::API_TIME);
            }
            Ok(()) = certificates.changed() => {}
            Some(change) = changes.next() => match change {
                Ok(configuration) => {
                    let before = std::mem::replace(&mut seen, Seen::of(configuration));
                    if seen == Seen::Missing && before != Seen::Missing {
                        warn!("nobody asks this webhook: there is no MutatingWebhookConfiguration {CONFIGURATION}");
                    }
                }
                Err(error) => {
                    warn!(error = chain(&error), "the MutatingWebhookConfiguration {CONFIGURATION} cannot be watched");
                }
            },
        }
    }
}

async fn apply(api: &Api<MutatingWebhookConfiguration>, authorities: &ByteString) -> Result<(), ApplyError> {
    // By force: a wrong value would keep out every pod that asks to take part, whoever wrote it.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let field = field(authorities);
    let patch = Patch::Apply(&field);
    timeout(limits::API_TIME, api.patch(CONFIGURATION, &params, &patch))
        .await
        .map_err(|_| ApplyError::Slow)??;
    Ok(())
}

/// The configuration with nothing but the field.
fn field(authorities: &ByteString) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": CONFIGURATION },
        "webhooks": [{ "name": CONFIGURATION, "clientConfig": { "caBundle": authorities } }],
    })
}
