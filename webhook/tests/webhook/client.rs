//! A client as the API server is one: it trusts given authorities, and asks for a host by its name.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use gpu_handoff_webhook::names;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The namespace of the tests' webhooks.
pub(crate) const NAMESPACE: &str = "gpu-handoff";

/// A connection.
pub(crate) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// The certificate that the server showed.
    pub(crate) shown: CertificateDer<'static>,
    _driver: JoinSet<()>,
}

/// A TLS stream to the webhook, which must be vouched for by these authorities.
pub(crate) async fn encrypted(address: SocketAddr, authorities: &str) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = ServerName::try_from(names::host(NAMESPACE)).unwrap();
    TlsConnector::from(Arc::new(config)).connect(host, TcpStream::connect(address).await?).await
}

pub(crate) async fn connect(address: SocketAddr, authorities: &str) -> io::Result<Connection> {
    let stream = encrypted(address, authorities).await?;
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
    let (requests, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    Ok(Connection { requests, shown, _driver: driver })
}

impl Connection {
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> (StatusCode, String) {
        self.requests.ready().await.unwrap();
        let response = self.requests.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(crate) async fn get(&mut self, path: &str) -> (StatusCode, String) {
        self.send(request(Method::GET, path, "")).await
    }

    /// The response to a review.
    pub(crate) async fn inject(&mut self, review: &Value) -> Value {
        let (status, body) = self.send(request(Method::POST, names::INJECT_PATH, review.to_string())).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let review: Value = serde_json::from_str(&body).unwrap();
        review["response"].clone()
    }
}

pub(crate) fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    request.header("host", names::host(NAMESPACE)).body(Full::new(body.into())).unwrap()
}

/// The review of a new pod in the namespace `ml` that has these annotations.
pub(crate) fn review(annotations: Value) -> Value {
    let named = |kind: &str, name: &str| json!({ "group": "", "version": "v1", kind: name });
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1f0c0a5e-0b5e-4e57-9a5b-0e6a0a9b7d11",
            "kind": named("kind", "Pod"), "resource": named("resource", "pods"),
            "name": "web-0", "namespace": "ml", "operation": "CREATE", "userInfo": {}, "dryRun": false,
            "object": {
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web-0", "annotations": annotations },
                "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
            },
        },
    })
}

/// A pod that asks to take part.
pub(crate) fn asking() -> Value {
    review(json!({ "gpu-handoff.io/group": "llama" }))
}

/// The operations of a response's patch.
pub(crate) fn operations(response: &Value) -> Value {
    assert_eq!(response["allowed"], true, "{response}");
    let bytes: Vec<u8> = base64(response["patch"].as_str().unwrap());
    serde_json::from_slice(&bytes).unwrap()
}

/// Kubernetes writes bytes as base64.
pub(crate) fn base64(text: &str) -> Vec<u8> {
    let bytes: k8s_openapi::ByteString = serde_json::from_value(json!(text)).unwrap();
    bytes.0
}
