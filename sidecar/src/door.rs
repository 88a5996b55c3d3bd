//! Accepting the pod's connections, holding them while the daemon is away, and handing them on.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::socket_tokio::AsyncSeqListener;
use gpu_handoff_protocol::{Code, Refusal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cli::ServeArgs;
use crate::descriptors;
use crate::keeper::Keeper;
use crate::limits;
use crate::uplink::{Held, Uplink, until};

/// Serves until it is told to stop.
///
/// # Errors
/// What kept it from starting.
pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let room = descriptors::raise().context("raise the limit of descriptors")?;
    info!(room, "as many buffers of this pod can be kept for a daemon that comes anew");
    let keeper = Keeper::new(room).context("start a thread")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let listener = listen(&args.listen)?;
        info!(socket = %args.listen.display(), "listening");
        let mut door = Door { uplink: Uplink::new(args.slot.clone(), keeper), held: VecDeque::new() };
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

struct Door {
    uplink: Uplink,
    held: VecDeque<Held>,
}

impl Door {
    async fn serve(&mut self, listener: &AsyncSeqListener) {
        let mut rest_until = Instant::now();
        loop {
            let due = [self.held.front().map(|h| h.until), self.uplink.due()].into_iter().flatten().min();
            tokio::select! {
                accepted = listener.accept_from(rest_until) => match accepted {
                    Ok(connection) => self.hold(connection),
                    Err(e) => {
                        warn!(error = %e, "a connection could not be accepted");
                        rest_until = Instant::now() + limits::ACCEPT_PAUSE;
                    }
                },
                given_back = self.uplink.changed() => {
                    // They came before those that are held.
                    for held in given_back.into_iter().rev() {
                        self.held.push_front(held);
                    }
                }
                () = until(due) => self.expire(),
            }
            self.hand_on();
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

    fn hand_on(&mut self) {
        while self.uplink.takes_more() {
            let Some(held) = self.held.pop_front() else { return };
            if let Err(held) = self.uplink.hand_on(held) {
                self.held.push_front(held);
                return;
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while self.held.front().is_some_and(|h| h.until <= now) {
            if let Some(held) = self.held.pop_front() {
                let waited = format!("not within {:?}", limits::HOLD_TIME);
                let refusal = self.uplink.displaced().cloned();
                refuse(held.connection, &refusal.unwrap_or_else(|| unavailable("there", waited)));
            }
        }
        for held in self.uplink.overdue(now) {
            warn!("the daemon did not answer for a connection in time");
            let waited = format!("none within {:?}", limits::ANSWER_TIME);
            refuse(held.connection, &unavailable("an answer for the connection", waited));
        }
    }

    fn refuse_all(&mut self) {
        for held in self.held.drain(..) {
            let refusal = Refusal::new(Code::ShuttingDown).compared_with("sidecar", "serving", "stopping");
            refuse(held.connection, &refusal);
        }
    }
}

fn unavailable(wanted: &str, found: String) -> Refusal {
    Refusal::new(Code::BrokerUnavailable).compared_with("daemon", wanted, found)
}

/// Says no in the daemon's place.
fn refuse(connection: OwnedFd, refusal: &Refusal) {
    SeqPacket::from_own(connection).refuse(refusal);
}
