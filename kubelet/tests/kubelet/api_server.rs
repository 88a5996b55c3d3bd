//! The API server's half: what it answers to lists and watches of pods, one after the other.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use gpu_handoff_kubelet::pods::{Settings, open};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use crate::fake::until;
use crate::pods::hears;

/// What is answered, and what was asked.
#[derive(Clone, Default)]
pub(crate) struct ApiServer {
    lists: Arc<Mutex<VecDeque<Answer>>>,
    watches: Arc<Mutex<VecDeque<Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

type Answer = (u16, String);

/// A client, and the API server that it talks with.
pub(crate) fn client() -> (Client, ApiServer) {
    let server = ApiServer::default();
    let answering = server.clone();
    let service = service_fn(move |request: Request<Body>| {
        let server = answering.clone();
        async move { Ok::<_, Infallible>(server.answer(&request.uri().to_string()).await) }
    });
    (Client::new(service, "default"), server)
}

impl ApiServer {
    async fn answer(&self, uri: &str) -> Response<Body> {
        self.asked.lock().unwrap().push(uri.to_owned());
        let answers = if uri.contains("watch=true") { &self.watches } else { &self.lists };
        let answer = answers.lock().unwrap().pop_front();
        let Some((status, body)) = answer else {
            // Nothing happens any more.
            return std::future::pending().await;
        };
        Response::builder().status(status).body(Body::from(body.into_bytes())).unwrap()
    }

    /// The next list has these pods.
    pub(crate) fn lists(&self, uids: &[&str], version: &str) {
        let items: Vec<_> = uids.iter().map(|uid| pod(uid)).collect();
        let list = json!({
            "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items,
        });
        self.lists.lock().unwrap().push_back((200, list.to_string()));
    }

    /// The next watch has these events, and ends.
    fn watch_has(&self, events: &[(&str, Value)]) {
        let lines =
            events.iter().map(|(kind, object)| format!("{}\n", json!({"type": kind, "object": object})));
        self.watches.lock().unwrap().push_back((200, lines.collect()));
    }
}

fn pod(uid: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "web-0", "namespace": "default", "uid": uid, "resourceVersion": "7"},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"phase": "Running"},
    })
}

fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code})
}

fn settings(client: Client) -> Settings {
    Settings { socket: None, kube: Some((client.into(), "node-1".to_owned())) }
}

#[tokio::test]
async fn pods_come_change_and_go() {
    let (client, server) = client();
    server.lists(&["a"], "1");
    let mut failed = pod("a");
    failed["status"]["phase"] = "Failed".into();
    server.watch_has(&[("ADDED", pod("b")), ("MODIFIED", failed), ("DELETED", pod("a"))]);
    let mut pods = open(settings(client)).unwrap();
    let expected = ["source ApiServer", "added a", "synced", "added b", "changed a Failed", "deleted a"];
    hears(&mut pods, &expected).await;
    let asked = server.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|uri| uri.contains("fieldSelector=spec.nodeName%3Dnode-1")), "{asked:?}");
}

#[tokio::test]
async fn what_the_api_server_has_forgotten_is_asked_anew() {
    let (client, server) = client();
    server.lists(&["a", "b"], "1");
    server.watch_has(&[("ERROR", failure(410, "Expired"))]);
    // Meanwhile one went, and another came that has its name.
    server.lists(&["b", "c"], "9");
    let mut pods = open(settings(client)).unwrap();
    hears(&mut pods, &["source ApiServer", "added a", "added b", "synced"]).await;
    let mut events = Vec::new();
    while events.last().is_none_or(|last| last != "synced") {
        events.push(crate::pods::short(&crate::fake::soon(pods.next()).await.unwrap()));
    }
    events.retain(|event| !event.starts_with("away"));
    assert_eq!(events, ["added c", "deleted a", "synced"]);
}

#[tokio::test]
async fn an_api_server_that_is_away_is_waited_for() {
    let (client, server) = client();
    server.lists.lock().unwrap().push_back((500, failure(500, "InternalError").to_string()));
    server.lists.lock().unwrap().push_back((403, failure(403, "Forbidden").to_string()));
    server.lists(&["a"], "1");
    let mut pods = open(settings(client)).unwrap();
    let expected =
        ["source ApiServer", "away: ask the API server", "away: ask the API server", "added a", "synced"];
    hears(&mut pods, &expected).await;
    until(|| server.asked.lock().unwrap().len() == 4).await;
}

#[tokio::test]
async fn mirrors_of_static_pods_are_left_out() {
    let (client, server) = client();
    let mut mirror = pod("a");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "b"});
    server.lists(&[], "1");
    server.watch_has(&[("ADDED", mirror), ("ADDED", pod("c"))]);
    let mut pods = open(settings(client)).unwrap();
    hears(&mut pods, &["source ApiServer", "synced", "added c"]).await;
}
