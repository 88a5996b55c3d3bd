//! Connections: accepted, encrypted, answered, and let go of. HTTP/1.1 alone: the API server speaks it, and a connection then
//! never holds more than one request.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tracing::{debug, error, warn};

use crate::crowd::{Crowd, Place};
use crate::http::Handler;
use crate::limits;
use crate::paced::Paced;

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

/// A connection from its first byte to its last, or as long as its pulse lets it.
async fn attend(stream: TcpStream, peer: SocketAddr, place: Place, shared: Shared) {
    tokio::select! {
        () = converse(stream, peer, &place, &shared) => {}
        why = place.pulse().over() => debug!(%peer, why, "a connection was let go of"),
    }
}

async fn converse(stream: TcpStream, peer: SocketAddr, place: &Place, shared: &Shared) {
    match shared.tls.accept(stream).await {
        Ok(stream) => {
            place.pulse().greeted();
            let stream = TokioIo::new(Paced::new(stream, Arc::clone(place.pulse())));
            if let Err(error) = answer(stream, place, shared).await {
                debug!(%peer, %error, "a connection ended");
            }
        }
        // Also how whoever does not trust our certificate says so; the API server tells whose pod it was.
        Err(error) => debug!(%peer, %error, "a TLS handshake failed"),
    }
}

async fn answer<S>(stream: TokioIo<S>, place: &Place, shared: &Shared) -> hyper::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let service =
        service_fn(async |request| Ok::<_, Infallible>(shared.handler.answer(request, place).await));
    // The pulse limits each wait of its own.
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(limits::HEADER_BYTES)
        .max_buf_size(limits::BUFFER_BYTES)
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    let mut closing = shared.closing.clone();
    tokio::select! {
        ended = connection.as_mut() => return ended,
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
