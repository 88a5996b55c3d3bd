use std::sync::Mutex;
use std::time::Duration;

use gpu_handoff_kubelet::api::testing::{Answer, Asked};
use gpu_handoff_protocol::{Code, Refusal};
use serde_json::{Value, json};

use super::*;

/// What an API server is asked, and what it answers at present.
#[derive(Clone)]
struct Server {
    asked: mpsc::UnboundedSender<(String, Value)>,
    status: Arc<Mutex<u16>>,
    /// What it answers in one namespace.
    otherwise: Arc<Mutex<Option<(&'static str, u16)>>>,
}

/// Stands for the 403 of a namespace that is about to go.
const ENDING: u16 = 1403;

fn server() -> (ApiServer, Server, mpsc::UnboundedReceiver<(String, Value)>) {
    let (asked, told) = mpsc::unbounded_channel();
    let server = Server { asked, status: Arc::new(Mutex::new(201)), otherwise: Arc::default() };
    let answering = server.clone();
    (ApiServer::answering(move |asked| std::future::ready(answering.answer(asked))), server, told)
}

impl Server {
    fn answer(&self, asked: Asked) -> Answer {
        let what = format!("{} {}", asked.method, asked.path);
        self.asked.send((what.clone(), asked.body)).unwrap();
        let otherwise = *self.otherwise.lock().unwrap();
        let status = match otherwise {
            Some((namespace, status)) if what.contains(&format!("/{namespace}/")) => status,
            _ => *self.status.lock().unwrap(),
        };
        let (status, ends) = if status == ENDING { (403, true) } else { (status, false) };
        let causes =
            if ends { json!([{ "reason": "NamespaceTerminating", "message": "m" }]) } else { json!([]) };
        let body = if status < 300 {
            json!({ "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e" }, "eventTime": null })
        } else {
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "so", "reason": "R", "code": status, "details": { "causes": causes } })
        };
        Answer { status, body }
    }
}

fn notice(pod: &str) -> Notice {
    let about = About { namespace: "team".into(), name: pod.into(), uid: format!("uid-{pod}") };
    Notice::refused(about, &Refusal::new(Code::NotFound).compared_with("buffer", "w", "none"))
}

/// The pod that the next write is about.
async fn next(asked: &mut mpsc::UnboundedReceiver<(String, Value)>) -> String {
    let (_, event) = tokio::time::timeout(Duration::from_secs(600), asked.recv()).await.unwrap().unwrap();
    event["regarding"]["name"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn an_event_is_about_the_pod_and_its_repetitions_are_a_series() {
    let (client, _server, mut asked) = server();
    let (events, writer) = Events::new(Some(client), "node-1");
    let writing = tokio::spawn(writer.run());
    events.tell(notice("consumer"));
    let (what, event) = asked.recv().await.unwrap();
    assert_eq!(what, "POST /apis/events.k8s.io/v1/namespaces/team/events");
    let (regarding, name) = (&event["regarding"], event["metadata"]["name"].as_str().unwrap().to_owned());
    assert_eq!((regarding["kind"].as_str(), regarding["uid"].as_str()), (Some("Pod"), Some("uid-consumer")));
    assert_eq!((event["reason"].as_str(), event["type"].as_str()), (Some("NotFound"), Some("Warning")));
    assert!(event["note"].as_str().unwrap().contains("remedy: check the id or name"), "{event}");
    assert_eq!(event["reportingController"].as_str(), Some("gpu-handoff.io/plugin"));
    assert_eq!(event["reportingInstance"].as_str(), Some("node-1"));
    events.tell(notice("consumer").times(41));
    let (what, series) = asked.recv().await.unwrap();
    assert_eq!(what, format!("PATCH /apis/events.k8s.io/v1/namespaces/team/events/{name}"));
    assert_eq!(series["series"]["count"], 42);
    drop(events);
    writing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_delays_nobody_and_what_is_left_is_written_later() {
    let (client, server, mut asked) = server();
    let (events, writer) = Events::new(Some(client), "node-1");
    *server.status.lock().unwrap() = 503;
    let writing = tokio::spawn(writer.run());
    events.tell(notice("first"));
    let (_, first) = asked.recv().await.unwrap();
    for i in 0..limits::EVENT_QUEUE * 4 {
        events.tell(notice(&format!("p{i}")));
    }
    let (_, again) = asked.recv().await.unwrap();
    assert_eq!(again["metadata"]["name"], first["metadata"]["name"]);
    *server.status.lock().unwrap() = 201;
    let mut written = std::collections::BTreeSet::new();
    while let Ok(Some((_, event))) = tokio::time::timeout(Duration::from_secs(120), asked.recv()).await {
        written.insert(event["metadata"]["name"].to_string());
    }
    assert!(written.len() > limits::EVENT_BURST as usize / 2, "{} events", written.len());
    // One that is refused for good stands in nobody's way.
    *server.status.lock().unwrap() = 422;
    events.tell(notice("refused"));
    asked.recv().await.unwrap();
    *server.status.lock().unwrap() = 201;
    events.tell(notice("last"));
    assert_eq!(asked.recv().await.unwrap().1["regarding"]["name"], "last");
    drop(events);
    writing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_know_our_rights_yet_is_asked_again_and_one_that_says_no_is_believed() {
    for status in [401, 403] {
        let (client, server, mut asked) = server();
        let (events, writer) = Events::new(Some(client), "node-1");
        let writing = tokio::spawn(writer.run());
        // It was away for long, and pauses are long; then it answers.
        *server.status.lock().unwrap() = 503;
        events.tell(notice("early"));
        for _ in 0..10 {
            next(&mut asked).await;
        }
        *server.status.lock().unwrap() = status;
        next(&mut asked).await;
        let begin = tokio::time::Instant::now();
        for _ in 2..limits::EVENT_TIMES_FORBIDDEN {
            assert_eq!(next(&mut asked).await, "early");
        }
        *server.status.lock().unwrap() = 201;
        assert_eq!(next(&mut asked).await, "early");
        assert!(begin.elapsed() < limits::EVENT_LONGEST_PAUSE, "{:?}", begin.elapsed());
        // One that is forbidden for good is left out, and stands in nobody's way.
        *server.status.lock().unwrap() = status;
        events.tell(notice("forbidden"));
        for _ in 0..limits::EVENT_TIMES_FORBIDDEN {
            assert_eq!(next(&mut asked).await, "forbidden");
        }
        *server.status.lock().unwrap() = 201;
        events.tell(notice("last"));
        assert_eq!(next(&mut asked).await, "last");
        drop(events);
        writing.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_whose_events_are_not_taken_holds_up_nobody_elses() {
    for status in [429, 500] {
        let (client, server, mut asked) = server();
        *server.otherwise.lock().unwrap() = Some(("full", status));
        let (events, writer) = Events::new(Some(client), "node-1");
        let writing = tokio::spawn(writer.run());
        for i in 0..16 {
            let about = About { namespace: "full".into(), name: "p".into(), uid: "u".into() };
            events.tell(Notice::new(about, Kind::Normal, "R", &format!("n{i}")));
        }
        for i in 0..16 {
            events.tell(notice(&format!("p{i}")));
        }
        let begin = tokio::time::Instant::now();
        let (mut written, mut refused) = (0, 0);
        while written < 16 {
            match asked.recv().await.unwrap().0.contains("/full/") {
                true => refused += 1,
                false => written += 1,
            }
        }
        assert!(begin.elapsed() < limits::EVENT_PAUSE, "{:?}", begin.elapsed());
        assert_eq!(refused, 1, "{status}");
        // And its own come when they are taken, in their order.
        *server.otherwise.lock().unwrap() = None;
        for i in 0..16 {
            assert_eq!(asked.recv().await.unwrap().1["note"], format!("n{i}"));
        }
        drop(events);
        writing.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_api_server_there_are_lines_of_the_log_alone() {
    let (events, writer) = Events::new(None, "");
    for _ in 0..1_000 {
        events.tell(notice("p"));
    }
    drop(events);
    writer.run().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_takes_no_events_is_told_of_until_it_takes_one() {
    let (client, server, mut asked) = server();
    let (events, writer) = Events::new(Some(client), "node-1");
    let mut refused = writer.refused();
    let writing = tokio::spawn(writer.run());
    assert!(refused.borrow().is_none());
    *server.status.lock().unwrap() = 403;
    events.tell(notice("one"));
    refused.changed().await.unwrap();
    let first = refused.borrow_and_update().clone().unwrap();
    assert_eq!(first.why, "so");
    events.tell(notice("two"));
    refused.changed().await.unwrap();
    assert_eq!(refused.borrow_and_update().as_ref().map(|refused| refused.since), Some(first.since));
    *server.status.lock().unwrap() = 201;
    events.tell(notice("three"));
    refused.changed().await.unwrap();
    assert!(refused.borrow_and_update().is_none());
    while asked.try_recv().is_ok() {}
    // Nobody can write into a namespace that goes: that is no fault.
    *server.status.lock().unwrap() = ENDING;
    events.tell(notice("four"));
    asked.recv().await.unwrap();
    *server.status.lock().unwrap() = 201;
    events.tell(notice("five"));
    asked.recv().await.unwrap();
    drop(events);
    writing.await.unwrap();
    assert!(!refused.has_changed().unwrap_or_default());
}
