//! Writing events to the API server.

use gpu_handoff_kubelet::DRIVER;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::json;
use tokio::time::timeout;

use super::desk::{NewEvent, Write};
use crate::limits;

/// What the daemon did when it had something to tell.
const ACTION: &str = "Serve";

/// Why an event is not written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nobody answers.
    Away(String),
    /// Who writes it may not, or not yet.
    Forbidden(String),
    /// It is not there any more, or its namespace is about to go.
    Gone,
    /// It is not taken, however often it is tried.
    Refused(String),
}

/// The API server, and who this is to it.
#[derive(Debug)]
pub(super) struct Api {
    client: DebugClient,
    instance: String,
}

/// A client without anything to show of itself.
struct DebugClient(Client);

impl std::fmt::Debug for DebugClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Api {
    pub(super) fn new(client: Client, node: &str) -> Self {
        let instance = node.chars().take(limits::EVENT_INSTANCE_CHARS).collect();
        Self { client: DebugClient(client), instance }
    }

    /// Writes one.
    pub(super) async fn write(&self, write: &Write) -> Result<(), Failure> {
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

    fn of(&self, namespace: Option<&str>) -> kube::Api<Event> {
        kube::Api::namespaced(self.client.0.clone(), namespace.unwrap_or_default())
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
