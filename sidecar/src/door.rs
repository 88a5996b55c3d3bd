//! Accepting the pod's connections, holding them while the daemon is away, and handing them on.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage};
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::socket_tokio::AsyncSeqListener;
use gpu_handoff_protocol::{Code, Refusal, codec};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::cli::ServeArgs;
use crate::limits;
use crate::uplink::Uplink;

/// Serves until it is told to stop.
///
/// # Errors
/// What kept it from starting.
pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let listener = listen(&args.listen)?;
        info!(socket = %args.listen.display(), "listening");
        let mut door = Door { uplink: Uplink::new(args.slot.clone()), held: VecDeque::new() };
        tokio::select! {
            () = door.serve(&listener) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("stopping");
        door.refuse_all();
        drop(std::fs::remove_file(&args.listen));
        Ok(())
    })
}

/// Binds the pod's socket. Any process of the pod may connect: who it is, the daemon finds out.
fn listen(path: &Path) -> anyhow::Result<AsyncSeqListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("make the folder {}", folder.display()))?;
    }
    let listener = AsyncSeqListener::bind(path).with_context(|| format!("listen on {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
        .with_context(|| format!("open {} to the pod's users", path.display()))?;
    Ok(listener)
}

/// A connection that waits for the daemon.
struct Held {
    connection: OwnedFd,
    until: Instant,
}

struct Door {
    uplink: Uplink,
    held: VecDeque<Held>,
}

impl Door {
    async fn serve(&mut self, listener: &AsyncSeqListener) {
        let mut rest_until = Instant::now();
        loop {
            let due = self.held.front().map(|h| h.until);
            tokio::select! {
                accepted = accept(listener, rest_until) => match accepted {
                    Ok(connection) => self.hold(connection),
                    Err(e) => {
                        warn!(error = %e, "a connection could not be accepted");
                        rest_until = Instant::now() + limits::ACCEPT_PAUSE;
                    }
                },
                given_back = self.uplink.changed() => {
                    for connection in given_back {
                        self.hold(connection);
                    }
                }
                () = until(due) => self.expire(),
            }
            self.hand_on().await;
        }
    }

    fn hold(&mut self, connection: OwnedFd) {
        if self.held.len() >= limits::HELD_CONNECTIONS {
            let limit = format!("at most {}", limits::HELD_CONNECTIONS);
            refuse(
                connection,
                &Refusal::new(Code::TooManyConnections).compared_with("held connections", limit, "more"),
            );
            return;
        }
        self.held.push_back(Held { connection, until: Instant::now() + limits::HOLD_TIME });
    }

    async fn hand_on(&mut self) {
        while self.uplink.is_up() {
            let Some(Held { connection, until }) = self.held.pop_front() else { return };
            if let Err(connection) = self.uplink.hand_on(connection).await {
                self.held.push_front(Held { connection, until });
                return;
            }
        }
    }

    fn expire(&mut self) {
        while self.held.front().is_some_and(|h| h.until <= Instant::now()) {
            if let Some(held) = self.held.pop_front() {
                let waited = format!("none within {:?}", limits::HOLD_TIME);
                refuse(
                    held.connection,
                    &Refusal::new(Code::BrokerUnavailable).compared_with("daemon", "an answer", waited),
                );
            }
        }
    }

    fn refuse_all(&mut self) {
        for held in self.held.drain(..) {
            refuse(held.connection, &Refusal::new(Code::ShuttingDown));
        }
    }
}

/// Accepts, after the rest that a failure calls for: whoever could not be accepted is still there.
async fn accept(listener: &AsyncSeqListener, rest_until: Instant) -> std::io::Result<OwnedFd> {
    sleep_until(rest_until).await;
    listener.accept().await
}

/// Says no in the daemon's place.
fn refuse(connection: OwnedFd, refusal: &Refusal) {
    let socket = SeqPacket::from_own(connection);
    let message = BrokerMessage { request: 0, body: BrokerBody::Refused(refusal.clone()) };
    for packet in codec::encode_broker(&message) {
        // The refusal is a courtesy: a peer that cannot take it learns by the end of the connection.
        let _ = socket.try_send(&packet);
    }
    socket.end();
}

async fn until(due: Option<Instant>) {
    match due {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
