//! Starting the worker process when it is needed, and replacing it when it fails, hangs or dies.
//!
//! Nothing here waits without limit: a worker that is stuck in the kernel is left to end aside.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use gpu_handoff_logs::chain;
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::inspector::{Asker, Inspector, Link, Need, NotReady};
use super::starter::{Starter, Worker};
use super::told::Told;
use super::{Verdict, Word};
use crate::limits;

/// Most needs that wait for the supervisor.
const NEEDS: usize = 256;

/// Looks after the worker process.
#[derive(Debug)]
pub struct Supervisor {
    starter: Starter,
    needs: mpsc::Receiver<Need>,
    current: Arc<Mutex<Option<Arc<Link>>>>,
    started: u64,
    /// Workers that were killed, until they have ended.
    ending: JoinSet<()>,
    /// The last start, if it failed.
    failed: Option<(Instant, NotReady)>,
    told: Told,
}

/// Why a worker has to go.
struct End {
    why: &'static str,
    /// Whether what else it was asked has surely no part in that, and may be asked of the next one.
    others_may_ask_again: bool,
}

impl End {
    const fn because(why: &'static str) -> Self {
        Self { why, others_may_ask_again: false }
    }
}

impl Supervisor {
    /// A supervisor of workers, and the inspector that uses them.
    #[must_use]
    pub fn new(starter: Starter) -> (Self, Inspector) {
        let (sender, needs) = mpsc::channel(NEEDS);
        let current = Arc::new(Mutex::new(None));
        let inspector = Inspector::new(sender, Arc::clone(&current));
        let (ending, failed, told) = (JoinSet::new(), None, Told::default());
        (Self { starter, needs, current, started: 0, ending, failed, told }, inspector)
    }

    /// Serves until told to stop.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let need = tokio::select! {
                need = self.needs.recv() => need,
                _ = stop.wait_for(|stopping| *stopping) => None,
                Some(_) = self.ending.join_next() => continue,
            };
            match need {
                Some(Need::Link(asker)) => self.serve(asker, &mut stop).await,
                Some(Need::Replacement(_)) => {} // That worker is gone already.
                None => break,
            }
        }
        let ended = async { while self.ending.join_next().await.is_some() {} };
        if timeout(limits::WORKER_END_TIME, ended).await.is_err() {
            warn!(waited = ?limits::WORKER_END_TIME, "a gpu worker was killed and has not ended");
        }
    }

    /// Starts a worker and stays with it until it has to go.
    async fn serve(&mut self, first: Asker, stop: &mut watch::Receiver<bool>) {
        let mut askers = vec![first];
        match self.start(&mut askers, stop).await {
            Ok((link, worker)) => {
                info!(pid = worker.pid, "gpu worker started");
                self.failed = None;
                self.publish(Some(Arc::clone(&link)));
                answer(askers, &Ok(Arc::clone(&link)));
                let end = self.attend(&link, stop).await;
                self.publish(None);
                // From here on nothing more is sent to it, so nobody begins to wait after those that are told.
                link.socket.end();
                self.end(worker, link, end);
            }
            Err(not_ready) => answer(askers, &Err(not_ready)),
        }
    }

    /// A worker that is ready. Whoever asks meanwhile joins the askers.
    async fn start(
        &mut self,
        askers: &mut Vec<Asker>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(Arc<Link>, Worker), NotReady> {
        if let Some((at, not_ready)) = &self.failed
            && at.elapsed() < limits::WORKER_PAUSE
        {
            return Err(not_ready.clone());
        }
        let outcome = self.try_start(askers, stop).await;
        if let Err(not_ready) = &outcome {
            let NotReady { wanted, found } = not_ready;
            if self.told.is_news(found) {
                warn!(%wanted, %found, "the gpu worker could not be started");
            }
            self.failed = Some((Instant::now(), not_ready.clone()));
        }
        outcome
    }

    async fn try_start(
        &mut self,
        askers: &mut Vec<Asker>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(Arc<Link>, Worker), NotReady> {
        if self.ending.len() >= limits::WORKERS_ENDING {
            let wanted = format!("fewer than {} killed ones that have not ended", limits::WORKERS_ENDING);
            return Err(NotReady { wanted, found: self.ending.len().to_string() });
        }
        self.started += 1;
        let (link, worker) =
            self.spawn().await.map_err(|found| NotReady { wanted: "started".to_owned(), found })?;
        let wanted = format!("ready within {:?}", limits::WORKER_START_TIME);
        match timeout(limits::WORKER_START_TIME, self.first_word(&link, askers, stop)).await {
            Ok(Ok(())) => Ok((link, worker)),
            Ok(Err(found)) => {
                self.end(worker, link, End::because("it is not ready"));
                Err(NotReady { wanted, found })
            }
            Err(_elapsed) => {
                self.end(worker, link, End::because("it was not ready in time"));
                Err(NotReady { wanted, found: "still loading the GPU driver".to_owned() })
            }
        }
    }

    async fn spawn(&self) -> Result<(Arc<Link>, Worker), String> {
        let (worker, socket) = self.starter.start().await.map_err(|e| e.to_string())?;
        let socket = AsyncSeqPacket::new(socket).map_err(|e| chain(&e))?;
        Ok((Arc::new(Link::new(self.started, socket)), worker))
    }

    /// Waits for the worker's first word; where it is not that it is ready, says what came instead.
    async fn first_word(
        &mut self,
        link: &Link,
        askers: &mut Vec<Asker>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), String> {
        let mut buffer = RecvBuffer::new();
        loop {
            tokio::select! {
                word = hear(link, &mut buffer) => return match word {
                    Ok(Word::Ready) => Ok(()),
                    Ok(Word::NoDriver { why }) => Err(why),
                    Ok(Word::Answer(_)) => Err("an answer before it was asked".to_owned()),
                    Err(why) => Err(why.to_owned()),
                },
                need = self.needs.recv() => match need {
                    Some(Need::Link(asker)) => askers.push(asker),
                    Some(Need::Replacement(_)) => {} // Of an earlier one.
                    None => return Err("nobody needs it".to_owned()),
                },
                _ = stop.wait_for(|stopping| *stopping) => return Err("the daemon stops".to_owned()),
                Some(_) = self.ending.join_next() => {}
            }
        }
    }

    /// Hands answers out until the worker has to go; says why.
    async fn attend(&mut self, link: &Arc<Link>, stop: &mut watch::Receiver<bool>) -> End {
        let mut buffer = RecvBuffer::new();
        loop {
            tokio::select! {
                word = hear(link, &mut buffer) => match word {
                    Ok(Word::Answer(reply)) => {
                        let failure = match &reply.verdict {
                            Verdict::Failed { why } => Some(why.clone()),
                            _ => None,
                        };
                        link.deliver(reply.id, reply.verdict);
                        if let Some(why) = failure {
                            if self.told.is_news(&why) {
                                warn!(why, "the gpu worker could not inspect a descriptor");
                            }
                            // Many of a driver's errors stay with the process.
                            return End { why: "it failed", others_may_ask_again: true };
                        }
                    }
                    Ok(Word::Ready | Word::NoDriver { .. }) => return End::because("it answered what is no answer"),
                    Err(why) => return End::because(why),
                },
                need = self.needs.recv() => match need {
                    // The asker may have gone; the next one finds the worker.
                    Some(Need::Link(asker)) => answer(vec![asker], &Ok(Arc::clone(link))),
                    Some(Need::Replacement(generation)) if generation == link.generation => {
                        return End::because("it did not answer in time");
                    }
                    Some(Need::Replacement(_)) => {}
                    None => return End::because("nobody needs it"),
                },
                _ = stop.wait_for(|stopping| *stopping) => return End::because("the daemon stops"),
                Some(_) = self.ending.join_next() => {}
            }
        }
    }

    /// Has a worker killed and reaped, aside: one that is stuck in the kernel ends only when that lets it go. Whoever waits
    /// for it learns of its end then, when it has no descriptor any more.
    fn end(&mut self, worker: Worker, link: Arc<Link>, end: End) {
        let (pid, End { why, others_may_ask_again }) = (worker.pid, end);
        self.ending.spawn(async move {
            match worker.end().await {
                Ok(status) => info!(pid, why, status, "gpu worker gone"),
                Err(e) => warn!(pid, why, error = %e, "the gpu worker could not be ended"),
            }
            link.abandon(others_may_ask_again);
        });
    }

    fn publish(&self, link: Option<Arc<Link>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }
}

/// The worker's next word, or why there is none.
async fn hear(link: &Link, buffer: &mut RecvBuffer) -> Result<Word, &'static str> {
    match link.socket.recv(buffer).await {
        Ok(Some(frame)) => serde_json::from_slice(&frame.bytes).map_err(|_| "it answered what is no answer"),
        Ok(None) | Err(_) => Err("it died"),
    }
}

fn answer(askers: Vec<Asker>, outcome: &Result<Arc<Link>, NotReady>) {
    for asker in askers {
        // Whoever asked may have gone.
        let _ = asker.send(outcome.clone());
    }
}
