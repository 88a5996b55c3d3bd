//! Pods from the API server: those of this node, by field selector.

use std::pin::pin;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::sleep;
use tracing::warn;

use super::facts::facts;
use super::from_kube::{is_mirror, pod as from_kube};
use super::pods_api::chain;
use super::stream::{Follower, NoReader, Source};
use crate::backoff::Backoff;
use crate::limits;

/// Asks the API server until it has been away for long and there is somebody else to ask: whom.
pub(super) async fn follow(
    client: Client,
    node: &str,
    follower: &mut Follower,
    other: impl Fn() -> Option<Source>,
) -> Result<Source, NoReader> {
    let config =
        watcher::Config::default().fields(&format!("spec.nodeName={node}")).page_size(limits::API_PAGE);
    let mut backoff = Backoff::new(limits::API_FIRST_PAUSE, limits::API_LONGEST_PAUSE);
    loop {
        // Anew after each error, whether the API server was away or has forgotten where this was (410 Gone): what goes on
        // by itself does not say that it does.
        let mut stream = pin!(watcher(Api::<Pod>::all(client.clone()), config.clone()));
        let error = loop {
            match stream.next().await {
                Some(Ok(event)) => {
                    // The first event of a stream says only that it is about to ask.
                    if !matches!(event, Event::Init) {
                        backoff.reset();
                    }
                    take(event, follower).await?;
                }
                Some(Err(error)) => break chain("ask the API server for this node's pods", &error),
                None => break "the API server's stream of pods has ended".to_owned(),
            }
        };
        let long = follower.is_away(error).await?;
        if long
            && let Some(next) = other()
            && next != Source::ApiServer
        {
            return Ok(next);
        }
        sleep(backoff.pause()).await;
    }
}

async fn take(event: Event<Pod>, follower: &mut Follower) -> Result<(), NoReader> {
    let told = match event {
        Event::Init => {
            follower.known.begin();
            None
        }
        Event::InitDone => return follower.complete().await,
        Event::Apply(pod) | Event::InitApply(pod) if is_mirror(&pod) => None,
        Event::Apply(pod) | Event::InitApply(pod) => match facts(from_kube(pod)) {
            Ok(facts) => follower.known.seen(facts),
            Err(error) => {
                warn!(%error, "the API server sent what is left out");
                None
            }
        },
        Event::Delete(pod) => pod.metadata.uid.and_then(|uid| follower.known.gone(&uid)),
    };
    follower.tell(told).await
}
