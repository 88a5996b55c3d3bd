//! Starting the worker process when it is needed, and replacing it when it hangs or dies.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use super::inspector::{Inspector, Link, Need};
use super::{Reply, chain};

type Asker = oneshot::Sender<Result<Arc<Link>, String>>;

/// Most needs that wait for the supervisor.
const NEEDS: usize = 256;

/// Looks after the worker process.
#[derive(Debug)]
pub struct Supervisor {
    program: PathBuf,
    needs: mpsc::Receiver<Need>,
    current: Arc<Mutex<Option<Arc<Link>>>>,
    started: u64,
}

impl Supervisor {
    /// A supervisor that starts `program gpu-worker`, and the inspector that uses it.
    #[must_use]
    pub fn new(program: PathBuf) -> (Self, Inspector) {
        let (sender, needs) = mpsc::channel(NEEDS);
        let current = Arc::new(Mutex::new(None));
        let inspector = Inspector::new(sender, Arc::clone(&current));
        (Self { program, needs, current, started: 0 }, inspector)
    }

    /// Serves until told to stop.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let need = tokio::select! {
                need = self.needs.recv() => need,
                _ = stop.wait_for(|stopping| *stopping) => None,
            };
            match need {
                Some(Need::Link(asker)) => self.serve_worker(asker, &mut stop).await,
                Some(Need::Replacement(_)) => {} // That worker is gone already.
                None => return,
            }
        }
    }

    /// Starts a worker and stays with it until it has to go.
    async fn serve_worker(&mut self, first: Asker, stop: &mut watch::Receiver<bool>) {
        self.started += 1;
        let (link, mut child) = match self.start() {
            Ok(started) => started,
            Err(e) => {
                warn!(error = chain(&e), "the gpu worker could not be started");
                let _ = first.send(Err(chain(&e)));
                return;
            }
        };
        info!(pid = child.id(), "gpu worker started");
        self.publish(Some(Arc::clone(&link)));
        // The asker may have gone; the next one finds the worker.
        let _ = first.send(Ok(Arc::clone(&link)));
        let why = self.attend(&link, stop).await;
        self.publish(None);
        link.socket.end();
        link.abandon();
        match child.kill().await {
            Ok(()) => info!(why, "gpu worker gone"),
            Err(e) => warn!(why, error = %e, "the gpu worker could not be ended"),
        }
    }

    fn start(&self) -> std::io::Result<(Arc<Link>, Child)> {
        let (ours, theirs) = SeqPacket::pair()?;
        let child = Command::new(&self.program)
            .arg("gpu-worker")
            .stdin(Stdio::from(theirs.into_fd()))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok((Arc::new(Link::new(self.started, AsyncSeqPacket::new(ours)?)), child))
    }

    /// Hands answers out until the worker has to go; says why.
    async fn attend(&mut self, link: &Arc<Link>, stop: &mut watch::Receiver<bool>) -> &'static str {
        let mut buffer = RecvBuffer::new();
        loop {
            tokio::select! {
                received = link.socket.recv(&mut buffer) => match received {
                    Ok(Some(frame)) => match serde_json::from_slice::<Reply>(&frame.bytes) {
                        Ok(reply) => link.deliver(reply.id, reply.verdict),
                        Err(_) => return "it answered what is no answer",
                    },
                    Ok(None) | Err(_) => return "it died",
                },
                need = self.needs.recv() => match need {
                    Some(Need::Link(asker)) => { let _ = asker.send(Ok(Arc::clone(link))); }
                    Some(Need::Replacement(generation)) if generation == link.generation => {
                        return "it did not answer in time";
                    }
                    Some(Need::Replacement(_)) => {}
                    None => return "nobody needs it",
                },
                _ = stop.wait_for(|stopping| *stopping) => return "the daemon stops",
            }
        }
    }

    fn publish(&self, link: Option<Arc<Link>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }
}
