//! An API server that answers what a test says. In no build of the product.

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::ApiServer;

/// What it is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// `POST`, for one.
    pub method: String,
    /// The path.
    pub path: String,
    /// What comes with it; null: nothing.
    pub body: Value,
}

/// What it answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// As HTTP has it.
    pub status: u16,
    /// The object, or the failure.
    pub body: Value,
}

impl Answer {
    /// What it says of a deed alone, in these words: done, or why not.
    #[must_use]
    pub fn status(code: u16, message: &str) -> Self {
        let status = if code < 300 { "Success" } else { "Failure" };
        let body = json!({"kind": "Status", "apiVersion": "v1", "code": code, "message": message,
            "status": status, "reason": "x", "metadata": {}});
        Self { status: code, body }
    }
}

impl ApiServer {
    /// One that answers so.
    pub fn answering<F, A>(answer: F) -> Self
    where
        F: Fn(Asked) -> A + Clone + Send + 'static,
        A: Future<Output = Answer> + Send,
    {
        let service = service_fn(move |request: Request<Body>| {
            let answer = answer.clone();
            async move {
                let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
                let body = request.into_body().collect_bytes().await?;
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let Answer { status, body } = answer(Asked { method, path, body }).await;
                let answer = Response::builder().status(status);
                answer.body(Body::from(body.to_string().into_bytes())).map_err(kube::Error::HttpError)
            }
        });
        Client::new(service, "default").into()
    }
}
