//! Writing events on pods.

use std::fmt;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::json;
use tokio::time::timeout;

use super::ApiServer;
use crate::{DRIVER, limits};

/// What the daemon did when it had something to tell.
const ACTION: &str = "Serve";

/// The pod that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct About {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of all pods of that name it is.
    pub uid: String,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether somebody should do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All is well.
    Normal,
    /// Something is not.
    Warning,
}

impl Kind {
    /// As Kubernetes calls it.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Whom it is about.
    pub about: About,
    /// Whether somebody should do something about it.
    pub kind: Kind,
    /// A word in camel case.
    pub reason: String,
    /// What happened, and what to do about it.
    pub note: String,
    /// How often it happened.
    pub count: u32,
    /// The event's own name: written twice by the same, it is there once.
    pub name: String,
}

/// What the API server is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// An event.
    New(Box<NewEvent>),
    /// One that is there has happened so often by now.
    Again {
        /// Whom it is about.
        about: About,
        /// The event's name.
        name: String,
        /// How often it happened.
        count: u32,
    },
}

impl Write {
    /// The event's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::New(event) => &event.name,
            Self::Again { name, .. } => name,
        }
    }

    /// Whom it is about.
    #[must_use]
    pub fn about(&self) -> &About {
        match self {
            Self::New(event) => &event.about,
            Self::Again { about, .. } => about,
        }
    }
}

/// Why an event is not written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody answers.
    #[error("{0}")]
    Away(String),
    /// Who writes it may not, or not yet.
    #[error("{0}")]
    Forbidden(String),
    /// It is not there any more, or its namespace is about to go.
    #[error("it is not there any more")]
    Gone,
    /// It is not taken, however often it is tried.
    #[error("{0}")]
    Refused(String),
}

/// Who writes events: a node's daemon.
#[derive(Debug)]
pub struct Reporter {
    api_server: ApiServer,
    instance: String,
}

impl Reporter {
    /// The daemon of this node.
    #[must_use]
    pub fn new(api_server: ApiServer, node: &str) -> Self {
        let instance = node.chars().take(limits::EVENT_INSTANCE_CHARS).collect();
        Self { api_server, instance }
    }

    /// Writes one.
    ///
    /// # Errors
    /// It is not written, and why.
    pub async fn write(&self, write: &Write) -> Result<(), Failure> {
        let written = async {
            match write {
                Write::New(event) => {
                    let event = self.event(event);
                    self.of(event.metadata.namespace.as_deref()).create(&PostParams::default(), &event).await
                }
                Write::Again { about, name, count } => {
                    let series =
                        json!({ "series": { "count": count_of(*count), "lastObservedTime": now() } });
                    let how = PatchParams::default();
                    self.of(Some(&about.namespace)).patch(name, &how, &Patch::Merge(series)).await
                }
            }
        };
        match timeout(limits::EVENT_TIME, written).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => failure(error),
            Err(_elapsed) => Err(Failure::Away(format!("no answer within {:?}", limits::EVENT_TIME))),
        }
    }

    fn of(&self, namespace: Option<&str>) -> Api<Event> {
        Api::namespaced(self.api_server.client(), namespace.unwrap_or_default())
    }

    fn event(&self, event: &NewEvent) -> Event {
        let NewEvent { about, kind, reason, note, count, name } = event;
        let own = |text: &str| Some(text.to_owned());
        Event {
            action: own(ACTION),
            event_time: Some(now()),
            metadata: ObjectMeta {
                name: own(name),
                namespace: own(&about.namespace),
                ..ObjectMeta::default()
            },
            note: own(note),
            reason: own(reason),
            regarding: Some(ObjectReference {
                api_version: own("v1"),
                kind: own("Pod"),
                namespace: own(&about.namespace),
                name: own(&about.name),
                uid: own(&about.uid),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(format!("{DRIVER}/plugin")),
            reporting_instance: own(&self.instance),
            series: (*count > 1).then(|| EventSeries { count: count_of(*count), last_observed_time: now() }),
            type_: own(kind.as_str()),
            ..Event::default()
        }
    }
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

fn count_of(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// What an answer means.
fn failure(error: kube::Error) -> Result<(), Failure> {
    match error {
        // A repetition of a request whose answer was lost.
        kube::Error::Api(status) if status.code == 409 => Ok(()),
        kube::Error::Api(status) if status.code == 404 || is_ending(&status) => Err(Failure::Gone),
        kube::Error::Api(status) if status.code == 429 || status.code >= 500 => {
            Err(Failure::Away(status.message))
        }
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
            Err(Failure::Forbidden(status.message))
        }
        kube::Error::Api(status) => Err(Failure::Refused(status.message)),
        other => Err(Failure::Away(other.to_string())),
    }
}

/// Whether nothing is made in the namespace any more, which the API server answers with 403 as well.
fn is_ending(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}
