//! The API server's half: one Secret and one MutatingWebhookConfiguration, with resource versions, conflicts and watches.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use gpu_handoff_webhook::names::{CONFIGURATION, FIELD_MANAGER, SECRET};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{Barrier, watch};
use tower::service_fn;

const SECRETS: &str = "secrets";
const CONFIGURATIONS: &str = "mutatingwebhookconfigurations";

/// Clones are the same API server.
#[derive(Clone)]
pub(crate) struct ApiServer {
    state: Arc<Mutex<State>>,
    /// The last resource version.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// By resource: there is one of each at most.
    objects: BTreeMap<&'static str, Value>,
    /// Resource, version, what happened, and the object afterwards.
    events: Vec<(&'static str, u64, &'static str, Value)>,
    /// What was asked, and how it was answered.
    asked: Vec<(String, u16)>,
    /// The first reads of the Secret wait for each other.
    together: Option<(Arc<Barrier>, usize)>,
    /// So many requests are answered with this error first.
    failing: Option<(u16, usize)>,
    /// Secrets may not be made.
    create_forbidden: bool,
    /// Somebody else always writes first.
    always_conflicts: bool,
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        Self { state: Arc::default(), changed: watch::channel(1).0 }
    }

    /// One that has the configuration of manifests/webhook.yaml, which trusts nobody yet.
    pub(crate) fn with_configuration() -> Self {
        let server = Self::new();
        server.put_configuration();
        server
    }

    pub(crate) fn put_configuration(&self) {
        self.put(CONFIGURATIONS, configuration());
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    pub(crate) fn reads_together(&self, readers: usize) {
        self.state.lock().unwrap().together = Some((Arc::new(Barrier::new(readers)), readers));
    }

    pub(crate) fn fails(&self, code: u16, times: usize) {
        self.state.lock().unwrap().failing = Some((code, times));
    }

    pub(crate) fn forbids_creation(&self) {
        self.state.lock().unwrap().create_forbidden = true;
    }

    pub(crate) fn always_conflicts(&self) {
        self.state.lock().unwrap().always_conflicts = true;
    }

    pub(crate) fn secret(&self) -> Option<Value> {
        self.state.lock().unwrap().objects.get(SECRETS).cloned()
    }

    pub(crate) fn put_secret(&self, data: Value) {
        self.put(
            SECRETS,
            json!({ "metadata": { "name": SECRET, "labels": { "kept": "yes" } }, "data": data }),
        );
    }

    pub(crate) fn configuration(&self) -> Value {
        self.state.lock().unwrap().objects[CONFIGURATIONS].clone()
    }

    pub(crate) fn trusted(&self) -> Value {
        self.configuration()["webhooks"][0]["clientConfig"]["caBundle"].clone()
    }

    /// As somebody else who edits the configuration.
    pub(crate) fn set_trusted(&self, bundle: Value) {
        let mut configuration = self.configuration();
        configuration["webhooks"][0]["clientConfig"]["caBundle"] = bundle;
        self.put(CONFIGURATIONS, configuration);
    }

    /// How often something was asked that was answered so.
    pub(crate) fn asked(&self, what: &str, answered: u16) -> usize {
        let state = self.state.lock().unwrap();
        state.asked.iter().filter(|(asked, code)| asked.starts_with(what) && *code == answered).count()
    }

    fn put(&self, resource: &'static str, object: Value) -> Value {
        self.state.lock().unwrap().put(resource, object, &self.changed)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
        let resource = if path.contains(SECRETS) { SECRETS } else { CONFIGURATIONS };
        let (code, text) = if query.contains("watch=true") {
            (200, self.watch(resource, &query).await)
        } else {
            if head.method == Method::GET && path.ends_with(SECRET) {
                self.wait_for_each_other().await;
            }
            let named = path.ends_with(SECRET) || path.ends_with(CONFIGURATION);
            let asked = Asked { method: head.method, resource, named, query, body: body.to_vec() };
            let mut state = self.state.lock().unwrap();
            let (code, answer) = state.answer(&asked, &self.changed);
            state.asked.push((format!("{} {resource}", asked.method), code));
            (code, answer.to_string())
        };
        Response::builder().status(code).body(Body::from(text.into_bytes())).unwrap()
    }

    async fn wait_for_each_other(&self) {
        let barrier = {
            let mut state = self.state.lock().unwrap();
            state.together.as_mut().filter(|(_, left)| *left > 0).map(|(barrier, left)| {
                *left -= 1;
                Arc::clone(barrier)
            })
        };
        if let Some(barrier) = barrier {
            barrier.wait().await;
        }
    }

    /// What happened since; waits until something has.
    async fn watch(&self, resource: &str, query: &str) -> String {
        let since: u64 = parameter(query, "resourceVersion").parse().unwrap();
        let mut changed = self.changed.subscribe();
        loop {
            let lines: String = {
                let state = self.state.lock().unwrap();
                let new = state.events.iter().filter(|(of, version, ..)| *of == resource && *version > since);
                new.map(|(.., kind, object)| format!("{}\n", json!({ "type": kind, "object": object })))
                    .collect()
            };
            if !lines.is_empty() {
                return lines;
            }
            changed.changed().await.unwrap();
        }
    }
}

/// A request that is no watch.
struct Asked {
    method: Method,
    resource: &'static str,
    /// Whether it names the object.
    named: bool,
    query: String,
    body: Vec<u8>,
}

impl State {
    fn answer(&mut self, asked: &Asked, changed: &watch::Sender<u64>) -> (u16, Value) {
        let Asked { method, resource, named, query, body } = asked;
        if let Some((code, left)) = &mut self.failing
            && *left > 0
        {
            *left -= 1;
            return failure(*code, "InternalError");
        }
        let there = self.objects.get(resource).cloned();
        let sent = || serde_json::from_slice::<Value>(body).unwrap();
        match (method, *named, there) {
            (&Method::GET, true, Some(object)) => (200, object),
            (&Method::GET, false, there) => {
                let version = changed.borrow().to_string();
                let items: Vec<_> = there.into_iter().collect();
                (200, json!({ "metadata": { "resourceVersion": version }, "items": items }))
            }
            (&Method::POST, ..) if self.create_forbidden => failure(403, "Forbidden"),
            (&Method::POST, _, Some(_)) => failure(409, "AlreadyExists"),
            (&Method::POST, _, None) => (201, self.put(resource, sent(), changed)),
            (&Method::PUT, true, Some(there)) => {
                let sent = sent();
                let is_current = sent["metadata"]["resourceVersion"] == there["metadata"]["resourceVersion"];
                if !is_current || self.always_conflicts {
                    return failure(409, "Conflict");
                }
                (200, self.put(resource, sent, changed))
            }
            (&Method::PATCH, true, Some(mut there)) => {
                assert!(
                    query.contains(&format!("fieldManager={FIELD_MANAGER}")) && query.contains("force=true")
                );
                let applied = sent();
                let webhooks = applied["webhooks"].as_array().unwrap();
                assert_eq!(webhooks.len(), 1);
                assert_eq!(
                    webhooks[0].as_object().unwrap().keys().collect::<Vec<_>>(),
                    ["clientConfig", "name"]
                );
                assert_eq!(webhooks[0]["name"], there["webhooks"][0]["name"]);
                let config = webhooks[0]["clientConfig"].as_object().unwrap();
                assert_eq!(config.keys().collect::<Vec<_>>(), ["caBundle"]);
                there["webhooks"][0]["clientConfig"]["caBundle"] = config["caBundle"].clone();
                (200, self.put(resource, there, changed))
            }
            (_, _, None) => failure(404, "NotFound"),
            (method, ..) => panic!("nobody should {method} {resource}"),
        }
    }

    fn put(&mut self, resource: &'static str, mut object: Value, changed: &watch::Sender<u64>) -> Value {
        let version = *changed.borrow() + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let before = self.objects.insert(resource, object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.events.push((resource, version, kind, object.clone()));
        changed.send_replace(version);
        object
    }
}

fn configuration() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": CONFIGURATION },
        "webhooks": [{
            "name": CONFIGURATION, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": { "name": "gpu-handoff-webhook", "namespace": "gpu-handoff" } },
        }],
    })
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status =
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code });
    (code, status)
}

fn parameter<'a>(query: &'a str, name: &str) -> &'a str {
    query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name)).unwrap().1
}
