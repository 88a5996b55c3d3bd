//! Which GPUs a pod holds: what the kubelet says that its containers were given, by device plugins and by claims.
//!
//! The kubelet is asked when the pod's first container is there: by then all of the pod has been given what it gets. What it
//! does not say, or cannot be asked, is not guessed: then each process of the pod may use the GPUs whose device nodes it has.
//!
//! | concern | file |
//! |---|---|
//! | what the answers mean | [`held`] |
//! | whether there are any | [`answers`] |
//! | which GPU a device of a claim is | [`slices`] |
//! | where the pod's group mates are | [`mates`] |

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use gpu_handoff_kubelet::api::ApiServer;
use gpu_handoff_kubelet::pods::PodFacts;
use gpu_handoff_kubelet::resources::Resources;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::limits;
use crate::members::Holds;

pub(super) mod answers;
mod held;
mod mates;
mod slices;

pub(super) use mates::{Elsewhere, Place};

/// Why it is not known which GPUs a claim's devices are.
const NOBODY_TO_ASK: &str =
    "the pod has a ResourceClaim, and there is no API server to ask which GPU that is";

/// Asks the kubelet, and the API server where there is one.
#[derive(Clone)]
pub(super) struct Asker {
    /// The kubelet's PodResources API.
    socket: PathBuf,
    api_server: Option<ApiServer>,
    node: String,
    /// Of those who ask.
    turns: Arc<Semaphore>,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// What was found out of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The GPUs that it holds; `None`: it was not asked.
    pub(super) holds: Option<Result<Holds, Unknown>>,
    /// The pods of its group on other nodes.
    pub(super) elsewhere: Elsewhere,
}

/// Why it is not known what a pod holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unknown {
    /// It may be known later.
    Yet(String),
    /// However often it is asked, the answer is the same.
    ForGood(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Yet(why) | Self::ForGood(why)) = self;
        f.write_str(why)
    }
}

impl Asker {
    pub(super) fn new(socket: PathBuf, api_server: Option<ApiServer>, node: String) -> Self {
        let turns = Arc::new(Semaphore::new(limits::DEVICES_ASKED));
        Self { socket, api_server, node, turns }
    }

    /// Asks about a pod. Whoever asks looks afterwards whether the pod is still the one that it meant: the kubelet's answer
    /// is about a name.
    /// `holds`: what it holds is of interest; `group_hash`: where the pod's group is is.
    pub(super) async fn ask(self, pod: PodFacts, holds: bool, group_hash: Option<String>) -> Found {
        // It is never closed.
        let _turn = self.turns.acquire().await;
        let held = async { if holds { Some(self.holds(&pod).await) } else { None } };
        let (holds, elsewhere) = tokio::join!(held, self.elsewhere(&pod, group_hash.as_deref()));
        Found { holds, elsewhere }
    }

    async fn holds(&self, pod: &PodFacts) -> Result<Holds, Unknown> {
        let asked = async {
            let silent = |e| Unknown::Yet(chain(&e));
            let resources = Resources::open(self.socket.clone()).await.map_err(silent)?;
            let told = resources.of_pod(&pod.namespace, &pod.name).await.map_err(silent)?;
            let none = "the kubelet knows of no pod of that name that was given anything";
            let told = told.ok_or_else(|| Unknown::Yet(none.to_owned()))?;
            let known = match (held::claimed(&told).is_empty(), &self.api_server) {
                (true, _) => slices::Devices::default(),
                (false, Some(api_server)) => {
                    let published = api_server.published(&self.node).await;
                    slices::Devices::of(published.map_err(|e| Unknown::Yet(e.to_string()))?)
                }
                (false, None) => return Err(Unknown::ForGood(NOBODY_TO_ASK.to_owned())),
            };
            held::by(pod, &told, &known).map(Holds::These)
        };
        let asked = timeout(limits::DEVICES_TIME, asked).await;
        asked.unwrap_or_else(|_| Err(Unknown::Yet(format!("no answer within {:?}", limits::DEVICES_TIME))))
    }

    async fn elsewhere(&self, pod: &PodFacts, group_hash: Option<&str>) -> Elsewhere {
        let Some(group_hash) = group_hash else {
            return Elsewhere::Unknown("there are others of it on this node".to_owned());
        };
        let Some(api_server) = &self.api_server else {
            return Elsewhere::Unknown("there is no API server to ask".to_owned());
        };
        let asked = mates::ask(api_server, pod, group_hash, &self.node);
        match timeout(limits::DEVICES_TIME, asked).await {
            Ok(Ok(places)) => Elsewhere::Pods(places),
            Ok(Err(why)) => Elsewhere::Unknown(why),
            Err(_elapsed) => Elsewhere::Unknown(format!("no answer within {:?}", limits::DEVICES_TIME)),
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
