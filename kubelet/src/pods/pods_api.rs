//! Pods from the kubelet's Pods API.

use std::path::Path;

use prost::Message;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Request, Status, Streaming};
use tracing::warn;

use super::facts::{facts, identity};
use super::stream::{Ended, Follower};
use crate::backoff::Backoff;
use crate::limits;
use crate::proto::core;
use crate::proto::pods::pods_client::PodsClient;
use crate::proto::pods::{EventType, WatchPodsEvent, WatchPodsRequest};

/// Asks once, and tells what comes until the kubelet ends it, or it is time to have all pods named anew.
pub(super) async fn follow(socket: &Path, follower: &mut Follower, backoff: &mut Backoff) -> Ended {
    match watch(socket, follower, backoff).await {
        Ok(never) => never,
        Err(ended) => ended,
    }
}

async fn watch(socket: &Path, follower: &mut Follower, backoff: &mut Backoff) -> Result<Ended, Ended> {
    let sync_by = Instant::now() + limits::SYNC_TIME;
    let opened = timeout_at(sync_by, open(socket)).await;
    let mut stream = opened.map_err(|_| late())??;
    follower.known.begin();
    while let Some(event) = timeout_at(sync_by, next(&mut stream)).await.map_err(|_| late())?? {
        take(event, follower).await?;
    }
    follower.complete().await?;
    backoff.reset();
    let resync = Instant::now() + limits::RESYNC_PERIOD;
    while let Ok(event) = timeout_at(resync, next(&mut stream)).await {
        match event? {
            Some(event) => take(event, follower).await?,
            None => return Err(Ended::Away("the kubelet named all pods twice".to_owned())),
        }
    }
    Ok(Ended::Resync)
}

async fn open(socket: &Path) -> Result<Streaming<WatchPodsEvent>, Ended> {
    let connected = timeout(limits::CONNECT_TIME, super::connect(socket)).await;
    let connected =
        connected.map_err(|_| Ended::Away("the kubelet does not take a connection in time".to_owned()))?;
    let channel =
        connected.map_err(|error| Ended::Away(chain("connect to the kubelet's Pods API", &error)))?;
    let mut client = PodsClient::new(channel).max_decoding_message_size(limits::POD_BYTES);
    let stream = client.watch_pods(Request::new(WatchPodsRequest {})).await;
    Ok(stream.map_err(|status| said(&status))?.into_inner())
}

/// The next event; none says that all pods have been named.
async fn next(stream: &mut Streaming<WatchPodsEvent>) -> Result<Option<WatchPodsEvent>, Ended> {
    let event = stream.message().await.map_err(|status| said(&status))?;
    let event = event.ok_or_else(|| Ended::Away("the kubelet has ended the stream of pods".to_owned()))?;
    Ok((event.r#type() != EventType::InitialSyncComplete).then_some(event))
}

async fn take(event: WatchPodsEvent, follower: &mut Follower) -> Result<(), Ended> {
    let pod = match core::Pod::decode(event.pod.as_slice()) {
        Ok(pod) => pod,
        Err(error) => {
            // Of this pod nothing is known, then; the others go on.
            warn!(%error, "the kubelet sent a pod that cannot be read");
            return Ok(());
        }
    };
    let told = match event.r#type() {
        EventType::Added | EventType::Modified => facts(pod).map(|facts| follower.known.seen(facts)),
        EventType::Deleted => identity(&pod).map(|(_, _, uid)| follower.known.gone(&uid)),
        EventType::Unspecified | EventType::InitialSyncComplete => Ok(None),
    };
    match told {
        Ok(event) => Ok(follower.tell(event).await?),
        Err(error) => {
            warn!(%error, "the kubelet sent what is left out");
            Ok(())
        }
    }
}

fn late() -> Ended {
    Ended::Away(format!("the kubelet did not name all pods within {} s", limits::SYNC_TIME.as_secs()))
}

fn said(status: &Status) -> Ended {
    let code = status.code();
    let text = crate::serving::cut(status.message().to_owned(), limits::TOLD_BYTES);
    Ended::Away(format!("the kubelet's Pods API says {code:?}: {text}"))
}

/// An error with what it comes from, in one line.
pub(super) fn chain(what: &str, error: &dyn std::error::Error) -> String {
    let mut text = format!("{what}: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        // Many of these libraries' errors say what their source says.
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = error.source();
    }
    crate::serving::cut(text, limits::TOLD_BYTES)
}
