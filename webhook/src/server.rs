//! Connections: accepted, encrypted, answered, and let go of. HTTP/1.1 alone: the API server speaks it, and a connection then
//! never holds more than one request.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tracing::{debug, error, warn};

use crate::crowd::{Crowd, Place};
use crate::http::Handler;
use crate::limits;

/// What all connections share.
#[derive(Clone)]
struct Shared {
    tls: TlsAcceptor,
    handler: Arc<Handler>,
    /// Changes when connections are to end.
    closing: watch::Receiver<bool>,
}

/// Serves until it is told to stop, and a little longer: what is being answered may end.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    handler: Arc<Handler>,
    stop: impl Future<Output = ()>,
) {
    let (close, closing) = watch::channel(false);
    let shared = Shared { tls: TlsAcceptor::from(tls), handler, closing };
    let mut connections = JoinSet::new();
    accept_until(listener, &shared, &mut connections, stop).await;
    close.send_replace(true);
    let all_end = async { while connections.join_next().await.map(note).is_some() {} };
    if timeout(limits::DRAIN_TIME, all_end).await.is_err() {
        warn!(connections = connections.len(), "requests that did not end in time are cut off");
    }
    connections.shutdown().await;
}

async fn accept_until(
    listener: TcpListener,
    shared: &Shared,
    connections: &mut JoinSet<()>,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    let crowd = Crowd::new();
    let mut crowded = Crowded::default();
    loop {
        tokio::select! {
            () = &mut stop => return,
            Some(ended) = connections.join_next() => note(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match crowd.enter(peer.ip()) {
                    Some(place) => drop(connections.spawn(attend(stream, peer, place, shared.clone()))),
                    None => crowded.turn_away(peer),
                },
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(limits::ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// A connection from its first byte to its last.
async fn attend(stream: TcpStream, peer: SocketAddr, place: Place, shared: Shared) {
    match timeout(limits::HANDSHAKE_TIME, shared.tls.accept(stream)).await {
        Ok(Ok(stream)) => {
            if let Err(error) = answer(TokioIo::new(stream), &place, &shared).await {
                debug!(%peer, %error, "a connection ended");
            }
        }
        // Also how whoever does not trust our certificate says so; the API server tells whose pod it was.
        Ok(Err(error)) => debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => debug!(%peer, "a TLS handshake took too long"),
    }
}

async fn answer<S>(stream: TokioIo<S>, place: &Place, shared: &Shared) -> hyper::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let asked = Arc::new(Notify::new());
    let service = service_fn(|request| {
        asked.notify_one();
        async move { Ok::<_, Infallible>(shared.handler.answer(request, place).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::NEXT_REQUEST_TIME)
        .max_header_size(limits::HEADER_BYTES)
        .max_buf_size(limits::BUFFER_BYTES)
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    let never_asked = async {
        if timeout(limits::FIRST_REQUEST_TIME, asked.notified()).await.is_ok() {
            pending::<()>().await;
        }
    };
    let mut closing = shared.closing.clone();
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = never_asked => return Ok(()),
        // An error would mean that the server is gone; then this is, too.
        _ = closing.wait_for(|closing| *closing) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

fn note(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a connection's task broke; the others go on");
    }
}

/// Connections that are turned away: told of now and then.
#[derive(Debug, Default)]
struct Crowded {
    since_told: usize,
    told: Option<Instant>,
}

impl Crowded {
    fn turn_away(&mut self, peer: SocketAddr) {
        self.since_told += 1;
        if self.told.is_none_or(|told| told.elapsed() >= limits::CROWDED_TOLD) {
            warn!(%peer, turned_away = self.since_told, "too many connections, in all or of one address");
            *self = Self { since_told: 0, told: Some(Instant::now()) };
        }
    }
}
