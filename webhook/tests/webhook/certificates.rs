//! Certificates that the webhook makes for itself: replicas that share them, renewals, and what the API server is told.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use gpu_handoff_webhook::certificates::Certificates;
use gpu_handoff_webhook::{SecretError, Store, limits, names};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::client::{self, NAMESPACE, asking, base64};
use crate::running::{Running, soon, until};

/// What the API server would trust, once it was told.
async fn trusted(server: &ApiServer) -> String {
    until("the API server is told whom to trust", || async {
        server.trusted().as_str().map(|text| String::from_utf8(base64(text)).unwrap())
    })
    .await
}

fn data(certificates: &Certificates) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    certificates.put_into(&mut data);
    data
}

fn held(server: &ApiServer) -> Option<Certificates> {
    let data = server.secret()?["data"].clone();
    Certificates::from_data(&serde_json::from_value(data).unwrap())
}

fn make(now: SystemTime) -> Certificates {
    Certificates::make(&names::host(NAMESPACE), now).unwrap()
}

/// Two replicas that begin at once, the Secret being there as it is.
async fn two_begin(server: &ApiServer) {
    server.reads_together(2);
    let (first, second) =
        tokio::join!(Running::with_own(server.client()), Running::with_own(server.client()));
    let authority = trusted(server).await;
    let mut shown = Vec::new();
    for replica in [&first, &second] {
        let mut connection = until("it serves with what the API server trusts", || async {
            client::connect(replica.address, &authority).await.ok()
        })
        .await;
        assert_eq!(connection.inject(&asking()).await["allowed"], true);
        assert_eq!(connection.get("/readyz").await.1, "ok\n");
        shown.push(connection.shown.clone());
    }
    assert_eq!(shown[0], shown[1], "both serve the same certificate");
    assert_eq!(held(server).unwrap().authorities(), authority);
}

#[tokio::test]
async fn two_replicas_that_begin_at_once_agree_where_there_is_no_secret() {
    let server = ApiServer::with_configuration();
    two_begin(&server).await;
    assert_eq!((server.asked("POST secrets", 201), server.asked("POST secrets", 409)), (1, 1));
}

#[tokio::test]
async fn two_replicas_that_begin_at_once_agree_where_the_secret_is_empty() {
    let server = ApiServer::with_configuration();
    server.put_secret(json!(null));
    server.forbids_creation();
    two_begin(&server).await;
    assert_eq!((server.asked("PUT secrets", 200), server.asked("PUT secrets", 409)), (1, 1));
    assert_eq!(server.secret().unwrap()["metadata"]["labels"], json!({ "kept": "yes" }));
}

#[tokio::test]
async fn two_replicas_that_begin_at_once_agree_on_a_renewal() {
    let server = ApiServer::with_configuration();
    let old = make(SystemTime::now() - (limits::SERVING_LIFE - limits::SERVING_RENEWAL));
    server.put_secret(json!(data(&old)));
    two_begin(&server).await;
    assert_eq!((server.asked("PUT secrets", 200), server.asked("PUT secrets", 409)), (1, 1));
    let renewed = held(&server).unwrap();
    assert_eq!(renewed.authorities(), old.authorities());
    assert!(renewed.serving().unwrap().until() > old.serving().unwrap().until() + Duration::from_secs(3_600));
}

#[tokio::test]
async fn what_another_replica_renews_is_served_and_told_without_a_restart() {
    let server = ApiServer::with_configuration();
    let running = Running::with_own(server.client()).await;
    let before = trusted(&server).await;
    let first = until("it serves", || async { client::connect(running.address, &before).await.ok() }).await;
    server.put_secret(json!(data(&make(SystemTime::now()))));
    let told = until("the API server is told", || async {
        let now = trusted(&server).await;
        (now != before).then_some(now)
    })
    .await;
    let second = until("it is served", || async { client::connect(running.address, &told).await.ok() }).await;
    assert_ne!(first.shown, second.shown);
}

#[tokio::test]
async fn what_breaks_the_secret_is_repaired() {
    let server = ApiServer::with_configuration();
    let running = Running::with_own(server.client()).await;
    let first = trusted(&server).await;
    let mut broken = data(&held(&server).unwrap());
    broken.insert("tls.key".to_owned(), ByteString(b"garbage".to_vec()));
    for data in [json!(broken), json!({})] {
        server.put_secret(data);
        let told = until("new certificates are made and told", || async {
            let now = trusted(&server).await;
            (now != first && held(&server).is_some_and(|held| held.authorities() == now)).then_some(now)
        })
        .await;
        until("they are served", || async { client::connect(running.address, &told).await.ok() }).await;
    }
}

#[tokio::test]
async fn the_api_server_is_told_again_when_somebody_removes_or_changes_it() {
    let server = ApiServer::with_configuration();
    let _running = Running::with_own(server.client()).await;
    let authority = trusted(&server).await;
    let mut untouched = server.configuration();
    for bundle in [Value::Null, json!(""), json!("Z2FyYmFnZQ==")] {
        server.set_trusted(bundle);
        until("it is told again", || async {
            let trusted = server.trusted();
            let text = trusted.as_str().map(base64).unwrap_or_default();
            (text == authority.as_bytes()).then_some(())
        })
        .await;
    }
    let mut found = server.configuration();
    for configuration in [&mut untouched, &mut found] {
        configuration["metadata"]["resourceVersion"].take();
    }
    assert_eq!(found, untouched, "nothing else is changed");
    assert_eq!(server.asked("PATCH", 200), 4);
}

#[tokio::test]
async fn without_a_configuration_it_serves_and_waits_for_one() {
    let server = ApiServer::new();
    let running = Running::with_own(server.client()).await;
    let authority = until("there are certificates", || async { held(&server) }).await;
    let authority = authority.authorities().to_owned();
    let mut connection =
        until("it serves", || async { client::connect(running.address, &authority).await.ok() }).await;
    assert_eq!(connection.inject(&asking()).await["allowed"], true);
    assert_eq!(server.asked("PATCH", 404), 0);
    server.put_configuration();
    assert_eq!(trusted(&server).await, authority);
}

#[tokio::test]
async fn an_api_server_that_is_away_is_waited_for() {
    let server = ApiServer::with_configuration();
    server.fails(500, 2);
    let running = Running::with_own(server.client()).await;
    let authority = trusted(&server).await;
    until("it serves", || async { client::connect(running.address, &authority).await.ok() }).await;
    assert!(server.asked("GET secrets", 500) + server.asked("GET mutating", 500) == 2);
}

#[tokio::test]
async fn it_can_be_stopped_before_there_is_a_certificate() {
    let server = ApiServer::new();
    server.fails(500, usize::MAX);
    let mut running = Running::with_own(server.client()).await;
    until("it has asked", || async { (server.asked("GET secrets", 500) > 0).then_some(()) }).await;
    running.stop();
    running.ended().await.unwrap();
}

#[tokio::test]
async fn a_secret_that_cannot_be_had_is_told_of() {
    let store = |server: &ApiServer| Store::new(server.client(), NAMESPACE);
    let ensure = async |server: &ApiServer| soon("an answer", store(server).ensure(SystemTime::now())).await;
    let server = ApiServer::new();
    server.forbids_creation();
    let missing = ensure(&server).await.unwrap_err();
    assert!(matches!(missing, SecretError::Missing), "{missing}");
    assert!(missing.to_string().contains("manifests/webhook.yaml"));
    server.put_secret(json!({}));
    server.always_conflicts();
    let busy = ensure(&server).await.unwrap_err();
    assert!(matches!(busy, SecretError::Busy), "{busy}");
    assert_eq!(server.asked("PUT secrets", 409), limits::SECRET_TRIES);
    server.fails(403, 1);
    let forbidden = ensure(&server).await.unwrap_err();
    assert!(matches!(forbidden, SecretError::Api { doing: "read", .. }), "{forbidden}");
}

#[tokio::test]
async fn a_renewal_with_the_time_given() {
    let server = ApiServer::new();
    let store = Store::new(server.client(), NAMESPACE);
    let now = SystemTime::now();
    let first = store.ensure(now).await.unwrap();
    assert_eq!(store.ensure(now).await.unwrap(), first);
    let due = now + limits::SERVING_LIFE - limits::SERVING_RENEWAL;
    let second = store.ensure(due).await.unwrap();
    assert_eq!(second.authorities(), first.authorities());
    assert_ne!(second, first);
    let late = now + limits::AUTHORITY_LIFE - limits::AUTHORITY_RENEWAL;
    let third = store.ensure(late).await.unwrap();
    assert!(third.authorities().ends_with(first.authorities()), "the new one comes before the old one");
    assert_eq!(held(&server), Some(third));
}
