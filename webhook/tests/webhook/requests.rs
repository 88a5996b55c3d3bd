//! Good and bad requests, changes of settings, and the end.

use gpu_handoff_webhook::limits;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use crate::client::{self, Connection, asking, operations, request, review};
use crate::files::Pair;
use crate::running::{Running, soon, until};

async fn started() -> (Running, Pair) {
    let pair = Pair::new();
    (Running::start(pair.tls()).await, pair)
}

async fn connected(running: &Running, pair: &Pair) -> Connection {
    client::connect(running.address, &pair.authority).await.unwrap()
}

#[tokio::test]
async fn pods_are_injected_left_alone_and_denied() {
    let (running, pair) = started().await;
    let mut connection = connected(&running, &pair).await;
    let injected = connection.inject(&asking()).await;
    let operations = operations(&injected);
    assert!(operations.as_array().unwrap().iter().all(|operation| operation["op"] == "add"));
    assert!(operations.to_string().contains("\"sidecar:1\""));
    let alone = connection.inject(&review(Value::Null)).await;
    assert_eq!((&alone["allowed"], &alone["patch"]), (&json!(true), &Value::Null));
    let denied = connection.inject(&review(json!({ "gpu-handoff.io/gruop": "llama" }))).await;
    assert_eq!(denied["allowed"], false);
    let message = denied["status"]["message"].as_str().unwrap();
    assert!(message.contains("UNKNOWN_ANNOTATION") && message.contains("remedy: "), "{message}");
}

#[tokio::test]
async fn a_bad_request_is_told_what_is_wrong_and_the_connection_or_another_goes_on() {
    let (running, pair) = started().await;
    let table: Vec<(Request<Full<Bytes>>, u16, &str)> = vec![
        (request(Method::GET, "/healthz", ""), 200, "ok"),
        (request(Method::GET, "/readyz", ""), 200, "ok"),
        (request(Method::GET, "/", ""), 404, "wanted /inject, /healthz or /readyz"),
        (request(Method::POST, "/inject/", "{}"), 404, "no such path"),
        (request(Method::POST, "/validate", "{}"), 404, "no such path"),
        (request(Method::GET, "/inject", ""), 405, "wanted POST"),
        (request(Method::PUT, "/inject", "{}"), 405, "wanted POST"),
        (request(Method::DELETE, "/healthz", ""), 405, "wanted GET"),
        (request(Method::POST, "/inject", ""), 400, "EOF while parsing"),
        (request(Method::POST, "/inject", "{"), 400, "EOF while parsing"),
        (request(Method::POST, "/inject", vec![0xff; 1_000]), 400, "expected value"),
        (
            request(Method::POST, "/inject", "{}"),
            400,
            "wanted kind AdmissionReview of admission.k8s.io/v1, found",
        ),
        (request(Method::POST, "/inject", "[".repeat(1_000_000)), 400, "wanted at most 65536 values"),
        (request(Method::POST, "/inject", "[".repeat(1_000)), 400, "recursion limit"),
        (request(Method::POST, "/inject", " ".repeat(limits::REVIEW_BYTES)), 400, "EOF while parsing"),
        (
            request(Method::POST, "/inject", " ".repeat(limits::REVIEW_BYTES + 1)),
            413,
            "wanted at most 3145728 bytes, found 3145729",
        ),
    ];
    for (request, status, text) in table {
        let shown = format!("{} {}", request.method(), request.uri());
        let mut connection = connected(&running, &pair).await;
        let (found, body) = connection.send(request).await;
        assert_eq!(found.as_u16(), status, "{shown}: {body}");
        assert!(body.contains(text), "{shown}: {body}");
    }
    let mut beta = asking();
    beta["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut plain = request(Method::POST, "/inject", asking().to_string());
    plain.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    let mut connection = connected(&running, &pair).await;
    let (status, body) = connection.send(request(Method::POST, "/inject", beta.to_string())).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body.contains("found kind \"AdmissionReview\" of \"admission.k8s.io/v1beta1\""), "{body}");
    let (status, _) = connected(&running, &pair).await.send(plain).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(connection.inject(&asking()).await["allowed"], true);
}

/// Writes bytes, and reads all that comes until the server ends the connection.
async fn raw(running: &Running, pair: &Pair, bytes: &[u8]) -> String {
    let mut stream = client::encrypted(running.address, &pair.authority).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // Whether it says goodbye or just goes.
    drop(soon("the end of the connection", stream.read_to_end(&mut answer)).await);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn what_is_not_http_or_too_much_of_it_ends_its_connection_alone() {
    let (running, pair) = started().await;
    let mut other = connected(&running, &pair).await;
    let head = "POST /inject HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let chunked =
        format!("{head}connection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n");
    assert!(raw(&running, &pair, chunked.as_bytes()).await.starts_with("HTTP/1.1 411 "));
    let large = format!("{head}x: {}\r\n\r\n", "y".repeat(limits::HEADER_BYTES));
    assert!(raw(&running, &pair, large.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    let huge = format!("{head}content-length: 99999999999999999999999\r\n\r\n");
    assert!(raw(&running, &pair, huge.as_bytes()).await.starts_with("HTTP/1.1 400 "));
    assert!(raw(&running, &pair, b"\x16\x03 garbage\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    // No TLS at all.
    let mut plain = TcpStream::connect(running.address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    drop(soon("the end", plain.read_to_end(&mut answer)).await);
    assert!(!answer.starts_with(b"HTTP"));
    assert_eq!(other.inject(&asking()).await["allowed"], true);
}

#[tokio::test]
async fn who_is_slow_is_let_go_of() {
    let (running, pair) = started().await;
    let head = "POST /inject HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let body = format!("{head}content-length: 10\r\n\r\n{{");
    let silent = async {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        soon("the end of a handshake that never began", stream.read_to_end(&mut Vec::new())).await.unwrap()
    };
    let (silent, nothing_asked, half_a_head, half_a_body) = tokio::join!(
        silent,
        raw(&running, &pair, b""),
        raw(&running, &pair, head.as_bytes()),
        raw(&running, &pair, body.as_bytes()),
    );
    assert_eq!((silent, nothing_asked.as_str(), half_a_head.as_str()), (0, "", ""));
    assert!(half_a_body.starts_with("HTTP/1.1 408 "), "{half_a_body}");
}

#[tokio::test]
async fn a_next_request_that_has_begun_has_as_little_time_as_a_first_one() {
    let (running, pair) = started().await;
    let mut stream = client::encrypted(running.address, &pair.authority).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok\n") {
        assert_ne!(soon("an answer", stream.read_buf(&mut answer)).await.unwrap(), 0);
    }
    stream.write_all(b"G").await.unwrap();
    drop(soon("the end of a request that was never whole", stream.read_to_end(&mut answer)).await);
    assert!(answer.ends_with(b"\r\n\r\nok\n"));
}

#[tokio::test]
async fn who_never_reads_answers_is_let_go_of_and_no_end_waits_for_it() {
    let (mut running, pair) = started().await;
    let mut stream = client::encrypted(running.address, &pair.authority).await.unwrap();
    let mut large = review(Value::Null);
    large["request"]["uid"] = json!("u".repeat(limits::ANSWER_BYTES - 1_024));
    let large = large.to_string();
    let head = "POST /inject HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{large}", large.len());
    // Each is read once the answer before it has gone: when one is read no more, all buffers are full.
    let moment = Duration::from_secs(1);
    while let Ok(written) = timeout(moment, stream.write_all(request.as_bytes())).await {
        written.unwrap();
    }
    running.stop();
    let begin = Instant::now();
    let gone = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
    soon("the end of a connection whose answers are not read", gone).await;
    assert!(begin.elapsed() < limits::REQUEST_TIME);
    running.ended().await.unwrap();
    assert!(begin.elapsed() < limits::LEAVE_TIME + limits::DRAIN_TIME);
}

#[tokio::test]
async fn two_addresses_do_not_keep_others_out() {
    let (running, pair) = started().await;
    let mut held = Vec::new();
    for last in [2, 3] {
        for _ in 0..limits::CONNECTIONS_PER_ADDRESS {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
            held.push(socket.connect(running.address).await.unwrap());
        }
    }
    assert_eq!(connected(&running, &pair).await.inject(&asking()).await["allowed"], true);
    drop(held);
}

async fn image(connection: &mut Connection) -> String {
    let operations = operations(&connection.inject(&asking()).await);
    let text = operations.to_string();
    let (_, rest) = text.split_once("\"image\":\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn settings_are_read_again_when_they_change() {
    let (running, pair) = started().await;
    let mut connection = connected(&running, &pair).await;
    assert_eq!(image(&mut connection).await, "sidecar:1");
    // As a mounted ConfigMap changes: by a rename.
    let new = running.settings.with_extension("new");
    fs::write(&new, "image: sidecar:2\n").unwrap();
    fs::rename(&new, &running.settings).unwrap();
    until("the new settings are in force", || async {
        (image(&mut connected(&running, &pair).await).await == "sidecar:2").then_some(())
    })
    .await;
    assert_eq!(image(&mut connection).await, "sidecar:2");
}

#[tokio::test]
async fn a_policy_that_lets_guests_in_is_heard_of_and_one_that_is_none_changes_nothing() {
    let (running, pair) = started().await;
    let guest = review(json!({ "gpu-handoff.io/group": "data/llama" }));
    let is_let_in = async || connected(&running, &pair).await.inject(&guest).await["allowed"] == true;
    assert!(!is_let_in().await);
    let replace = |text: &str| {
        let new = running.policy.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &running.policy).unwrap();
    };
    let rule = "version: gpu-handoff.io/v1\nexchange:\n- {name: guests, publish: [{namespaces: [data], groups: [llama]}], \
                acquire: [{namespaces: [ml], groups: [data/llama]}]}\n";
    replace(rule);
    until("guests are let in", || async { is_let_in().await.then_some(()) }).await;
    replace("version: gpu-handoff.io/v1\nexchnge: []\n");
    // What is read after it shows that it was read.
    fs::write(&running.settings, "image: sidecar:3\n").unwrap();
    until("the new settings are in force", || async {
        (image(&mut connected(&running, &pair).await).await == "sidecar:3").then_some(())
    })
    .await;
    assert!(is_let_in().await);
    replace("version: gpu-handoff.io/v1\n");
    until("guests are let in no longer", || async { (!is_let_in().await).then_some(()) }).await;
}

#[tokio::test]
async fn a_namespace_that_may_take_no_part_is_denied_with_the_nodes_reason() {
    let (running, pair) = started().await;
    assert_eq!(connected(&running, &pair).await.inject(&asking()).await["allowed"], true);
    fs::write(&running.policy, "version: gpu-handoff.io/v1\nnamespaces: {ml: {profiles: []}}\n").unwrap();
    let denied = until("the policy is in force", || async {
        let response = connected(&running, &pair).await.inject(&asking()).await;
        (response["allowed"] == false).then_some(response)
    })
    .await;
    let message = denied["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("denied: NOT_GRANTED (profile: wanted none, found client)"), "{message}");
    assert!(message.contains("`namespaces.ml.profiles`"), "{message}");
    // A pod that asks for nothing is let in.
    assert_eq!(connected(&running, &pair).await.inject(&review(Value::Null)).await["allowed"], true);
}

#[tokio::test]
async fn it_says_that_it_is_leaving_answers_meanwhile_and_ends() {
    let (mut running, pair) = started().await;
    let mut connection = connected(&running, &pair).await;
    assert_eq!(connection.get("/readyz").await.0, StatusCode::OK);
    running.stop();
    let said = until("it is not ready", || async {
        let (status, text) = connected(&running, &pair).await.get("/readyz").await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(text)
    })
    .await;
    assert_eq!(said, "stopping\n");
    assert_eq!(connection.inject(&asking()).await["allowed"], true);
    assert_eq!(connected(&running, &pair).await.inject(&asking()).await["allowed"], true);
    until("nobody is accepted any more", || async {
        client::connect(running.address, &pair.authority).await.is_err().then_some(())
    })
    .await;
    running.ended().await.unwrap();
}

#[tokio::test]
async fn many_at_once_are_all_answered() {
    let (running, pair) = started().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (address, authority) = (running.address, pair.authority.clone());
        tasks.spawn(async move {
            let mut connection = client::connect(address, &authority).await.unwrap();
            for _ in 0..8 {
                assert_eq!(connection.inject(&asking()).await["allowed"], true);
            }
        });
    }
    assert_eq!(soon("all answers", tasks.join_all()).await.len(), 64);
}
