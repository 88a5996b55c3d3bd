//! HTTP: which paths there are, and how much and how long may be read.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use gpu_handoff_logs::chain;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout_at;
use tracing::{debug, info};

use crate::crowd::{Place, Room};
use crate::limits;
use crate::names::{HEALTH_PATH, INJECT_PATH, READY_PATH};
use crate::pulse::Pulse;
use crate::ready::Ready;
use crate::review::{self, ReviewError, Told};
use crate::settings::Rules;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Answers requests.
#[derive(Debug)]
pub(crate) struct Handler {
    rules: watch::Receiver<Arc<Rules>>,
    ready: Ready,
}

/// A request that is not answered with a review.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("no such path: wanted {INJECT_PATH}, {HEALTH_PATH} or {READY_PATH}")]
    Path,
    #[error("wanted {0}")]
    Method(&'static str),
    #[error("wanted a review as {JSON}")]
    ContentType,
    #[error("wanted a Content-Length")]
    NoLength,
    #[error("wanted at most {} bytes, found {found}", limits::REVIEW_BYTES)]
    TooLarge { found: u64 },
    #[error("the review took longer than {} s to arrive", limits::READING_TIME.as_secs())]
    Slow,
    #[error("too much is being read and written: try again")]
    Busy,
    #[error("read the review to its end")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Review(#[from] ReviewError),
}

impl Refused {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Path => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NoLength => StatusCode::LENGTH_REQUIRED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
            Self::Review(
                ReviewError::Patch(_) | ReviewError::Write(_) | ReviewError::AnswerTooLarge { .. },
            ) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Review(_) => StatusCode::BAD_REQUEST,
        }
    }

    fn response(&self) -> Response<Full<Bytes>> {
        let mut response = text(self.status(), format!("{}\n", chain(self)));
        if let Self::Method(allowed) = self {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}

impl Handler {
    pub(crate) const fn new(rules: watch::Receiver<Arc<Rules>>, ready: Ready) -> Self {
        Self { rules, ready }
    }

    /// The answer to a request that came on the connection of that place: always one.
    pub(crate) async fn answer(&self, request: Request<Incoming>, place: &Place) -> Response<Reply> {
        // One that came together with the one before it begins here.
        place.pulse().begin();
        let response = self.respond(request, place).await;
        response.map(|body| Reply { body, pulse: Arc::clone(place.pulse()) })
    }

    async fn respond(&self, request: Request<Incoming>, place: &Place) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let answered = match (request.method(), path) {
            (&Method::GET, HEALTH_PATH) => Ok(text(StatusCode::OK, "ok\n")),
            (&Method::GET, READY_PATH) => Ok(self.readiness()),
            (&Method::POST, INJECT_PATH) => self.inject(request, place).await,
            (_, HEALTH_PATH | READY_PATH) => Err(Refused::Method("GET")),
            (_, INJECT_PATH) => Err(Refused::Method("POST")),
            _ => Err(Refused::Path),
        };
        answered.unwrap_or_else(|refused| {
            // Who asked is told; anybody in the cluster may ask, and shall not fill the log.
            debug!(
                status = refused.status().as_u16(),
                refused = chain(&refused),
                "a request was not answered with a review"
            );
            refused.response()
        })
    }

    fn readiness(&self) -> Response<Full<Bytes>> {
        match self.ready.state() {
            Ok(()) => text(StatusCode::OK, "ok\n"),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    }

    async fn inject(
        &self,
        request: Request<Incoming>,
        place: &Place,
    ) -> Result<Response<Full<Bytes>>, Refused> {
        let kind =
            request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(JSON)) {
            return Err(Refused::ContentType);
        }
        let reading = timeout_at(place.pulse().arrives_until(), read(request.into_body(), place));
        let (review, room) = reading.await.map_err(|_| Refused::Slow)??;
        let rules = Arc::clone(&self.rules.borrow());
        let answer = review::answer(&review, &rules)?;
        drop(review);
        place.pulse().keep(for_answer(room, answer.review.len(), place)?);
        tell(&answer.told);
        Ok(with_type(StatusCode::OK, JSON, answer.review))
    }
}

/// Reads a review once there is room for it.
async fn read(body: Incoming, place: &Place) -> Result<(Bytes, Room), Refused> {
    let found = body.size_hint().exact().ok_or(Refused::NoLength)?;
    let Some(bytes) = usize::try_from(found).ok().filter(|bytes| *bytes <= limits::REVIEW_BYTES) else {
        return Err(Refused::TooLarge { found });
    };
    let room = place.room(bytes).await.map_err(|_| Refused::Slow)?;
    let read = Limited::new(body, limits::REVIEW_BYTES).collect().await;
    read.map(|read| (read.to_bytes(), room)).map_err(Refused::Broken)
}

/// Room for an answer instead of that for its review.
fn for_answer(mut room: Room, bytes: usize, place: &Place) -> Result<Room, Refused> {
    if room.shrink(bytes) {
        return Ok(room);
    }
    drop(room);
    place.room_now(bytes).map_err(|_| Refused::Busy)
}

/// An answer's body. The pulse hears when the connection has taken all of it, or wants none of it.
#[derive(Debug)]
pub(crate) struct Reply {
    body: Full<Bytes>,
    pulse: Arc<Pulse>,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.pulse.answered();
    }
}

fn tell(told: &Told) {
    let Told { pod, denied, additions } = told;
    match denied.as_slice() {
        [] if *additions == 0 => debug!(pod, "nothing to add"),
        [] => info!(pod, additions, "injected"),
        codes => info!(pod, codes = codes.join(", "), "denied"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    with_type(status, TEXT, body)
}

fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
