//! One stream of pods, whichever source it comes from at present.

use std::fmt;
use std::path::PathBuf;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::known::{Known, PodEvent};
use super::{kube_watch, pods_api};
use crate::api::ApiServer;
use crate::backoff::Backoff;
use crate::limits;

/// Where pods may be asked for. Where both are given, the kubelet is preferred.
#[derive(Clone)]
pub struct Settings {
    /// The socket of the kubelet's Pods API ([`super::SOCKET`]); used where it is there.
    pub socket: Option<PathBuf>,
    /// The API server, and the name of this node: it may list and watch pods.
    pub kube: Option<(ApiServer, String)>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.kube.as_ref().map(|(_, node)| node);
        out.debug_struct("Settings")
            .field("socket", &self.socket)
            .field("node", &node)
            .finish_non_exhaustive()
    }
}

/// There is nowhere to ask for pods.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither source is there.
    #[error(
        "pods cannot be asked for: the kubelet has no Pods API at {socket:?} (Kubernetes 1.37, feature gate PodsAPI), and the API server is not configured"
    )]
    NoSource {
        /// Where the kubelet's socket would be.
        socket: Option<PathBuf>,
    },
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The kubelet, through its Pods API.
    Kubelet,
    /// The API server, with the field selector of this node.
    ApiServer,
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Kubelet => "the kubelet's Pods API",
            Self::ApiServer => "the API server",
        })
    }
}

/// The pods of this node, for ever. What follows them ends when this is dropped.
#[derive(Debug)]
pub struct Pods {
    events: mpsc::Receiver<PodEvent>,
    // Aborted and forgotten with this.
    _task: JoinSet<()>,
}

impl Pods {
    /// The next event. None is never the end of the pods: it means that what follows them has broken. Cancel safe.
    pub async fn next(&mut self) -> Option<PodEvent> {
        self.events.recv().await
    }
}

/// Begins to follow the pods of this node. The first event says who is asked.
///
/// # Errors
/// There is nowhere to ask.
pub fn open(settings: Settings) -> Result<Pods, OpenError> {
    let Some(source) = settings.source_after(None) else {
        return Err(OpenError::NoSource { socket: settings.socket });
    };
    let (sender, events) = mpsc::channel(limits::POD_EVENTS);
    let mut task = JoinSet::new();
    let follower = Follower { known: Known::default(), events: sender, away: None, overfull_told: false };
    task.spawn(follow(settings, source, follower));
    Ok(Pods { events, _task: task })
}

impl Settings {
    /// Whom to ask after this one was away for long: the other, where it is there.
    fn source_after(&self, source: Option<Source>) -> Option<Source> {
        let kubelet = self.socket.as_ref().is_some_and(|socket| socket.exists());
        let kube = self.kube.is_some();
        match source {
            Some(Source::Kubelet) if kube => Some(Source::ApiServer),
            Some(Source::ApiServer) if kubelet => Some(Source::Kubelet),
            Some(_) => source,
            None if kubelet => Some(Source::Kubelet),
            None => kube.then_some(Source::ApiServer),
        }
    }
}

/// The reader is gone: nobody needs pods any more.
#[derive(Debug)]
pub(super) struct NoReader;

/// Why asking a source ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// Nobody reads.
    NoReader,
    /// To name all pods anew, as planned.
    Resync,
    /// The source is away.
    Away(String),
}

impl From<NoReader> for Ended {
    fn from(NoReader: NoReader) -> Self {
        Self::NoReader
    }
}

/// Tells the reader what the sources say.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) known: Known,
    events: mpsc::Sender<PodEvent>,
    /// Since when the source is away, and what was told of it.
    away: Option<(Instant, String)>,
    overfull_told: bool,
}

impl Follower {
    /// Waits for room.
    pub(super) async fn tell(&mut self, event: Option<PodEvent>) -> Result<(), NoReader> {
        if self.known.overfull && !self.overfull_told {
            self.overfull_told = true;
            warn!(limit = limits::PODS, "more pods than are followed: the others are left out");
        }
        match event {
            Some(event) => self.events.send(event).await.map_err(|_| NoReader),
            None => Ok(()),
        }
    }

    /// The source has named all pods.
    pub(super) async fn complete(&mut self) -> Result<(), NoReader> {
        for event in self.known.complete() {
            self.tell(Some(event)).await?;
        }
        if let Some((since, _)) = self.away.take() {
            info!(seconds = since.elapsed().as_secs(), "pods are told again");
        }
        self.tell(Some(PodEvent::Synced)).await
    }

    /// The source is away. Whether another should be asked.
    pub(super) async fn is_away(&mut self, why: String) -> Result<bool, NoReader> {
        let told = self.away.as_ref().is_some_and(|(_, told)| *told == why);
        let since = self.away.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        if !told {
            warn!(why, "no pods are told at present");
            self.away = Some((since, why.clone()));
            self.tell(Some(PodEvent::Away(why))).await?;
        }
        Ok(since.elapsed() >= limits::SOURCE_PATIENCE)
    }

    /// Another source has its own time to come.
    fn begin_anew(&mut self) {
        if let Some((since, _)) = &mut self.away {
            *since = Instant::now();
        }
    }
}

async fn follow(settings: Settings, first: Source, mut follower: Follower) {
    let mut source = first;
    // It ends with its reader.
    let NoReader = loop {
        info!(%source, "pods are asked for");
        if let Err(gone) = follower.tell(Some(PodEvent::Source(source))).await {
            break gone;
        }
        let ended = match (source, &settings) {
            (Source::Kubelet, Settings { socket: Some(socket), .. }) => {
                from_kubelet(socket, &settings, &mut follower).await
            }
            (Source::ApiServer, Settings { kube: Some((api_server, node)), .. }) => {
                kube_watch::follow(api_server.client(), node, &mut follower, || {
                    settings.source_after(Some(source))
                })
                .await
            }
            _ => return,
        };
        match ended {
            Ok(next) => source = next,
            Err(gone) => break gone,
        }
        follower.begin_anew();
    };
}

/// Asks the kubelet until it has been away for long and there is somebody else to ask: whom.
async fn from_kubelet(
    socket: &std::path::Path,
    settings: &Settings,
    follower: &mut Follower,
) -> Result<Source, NoReader> {
    let mut backoff = Backoff::new(limits::KUBELET_FIRST_PAUSE, limits::KUBELET_LONGEST_PAUSE);
    loop {
        match pods_api::follow(socket, follower, &mut backoff).await {
            Ended::NoReader => return Err(NoReader),
            Ended::Resync => {}
            Ended::Away(why) => {
                let long = follower.is_away(why).await?;
                if long
                    && let Some(next) = settings.source_after(Some(Source::Kubelet))
                    && next != Source::Kubelet
                {
                    return Ok(next);
                }
                sleep(backoff.pause()).await;
            }
        }
    }
}
