//! One GPU's worker: started when it is needed, replaced when it fails, hangs or dies.
//!
//! Nothing here waits without limit: a worker that is stuck in the kernel is left to end aside.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_logs::chain;
use gpu_handoff_protocol::codec::Frame;
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{Code, DeviceUuid};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::look::Look;
use super::road::{Fate, Link};
use super::starter::{Process, Started, Starter};
use super::told::Told;
use super::wire::{Begun, Word};
use super::workers::{Asker, Current, Gpus, NotReady, WorkerNeed};
use crate::limits;
use crate::node::client::AskError;
use crate::node::words::Ending;

/// Looks after the worker of one GPU.
#[derive(Debug)]
pub(super) struct Supervisor {
    pub(super) gpu: DeviceUuid,
    gpus: Gpus,
    pub(super) starter: Starter,
    pub(super) needs: mpsc::Receiver<WorkerNeed>,
    pub(super) current: Arc<Current>,
    pub(super) stop: watch::Receiver<bool>,
    history: History,
}

/// What has been so far.
#[derive(Debug, Default)]
struct History {
    started: u64,
    /// Workers that had to go, until they have ended.
    ending: JoinSet<()>,
    /// The last start, if it failed.
    failed: Option<(Instant, NotReady)>,
    told: Told,
}

/// A worker whose first word was that it is ready.
struct Ready {
    link: Arc<Link>,
    process: Process,
}

/// Why a worker that was started is of no use.
struct Unfit {
    why: String,
    /// The driver works, and does not show it its GPU.
    sees_no_gpu: bool,
}

impl From<String> for Unfit {
    fn from(why: String) -> Self {
        Self { why, sees_no_gpu: false }
    }
}

/// Why a worker has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It ended.
    Itself,
    /// It said that it ends.
    LastWord(&'static str),
    /// It was at this for too long.
    Hung(Begun),
    /// A lane has found it gone, or lost its way to it.
    Replaced,
    /// It is not needed any more, or says what it should not.
    Unwanted(&'static str),
}

impl Supervisor {
    pub(super) fn new(
        gpu: DeviceUuid,
        gpus: Gpus,
        starter: Starter,
        needs: mpsc::Receiver<WorkerNeed>,
        current: Arc<Current>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self { gpu, gpus, starter, needs, current, stop, history: History::default() }
    }

    /// Serves until told to stop.
    pub(super) async fn run(mut self) {
        loop {
            let need = tokio::select! {
                need = self.needs.recv() => need,
                _ = self.stop.wait_for(|stopping| *stopping) => None,
                Some(_) = self.history.ending.join_next() => continue,
            };
            match need {
                Some(WorkerNeed::Link(asker)) => self.serve(asker).await,
                Some(WorkerNeed::Stuck(_) | WorkerNeed::Replacement(_)) => {} // That worker is gone already.
                None => break,
            }
        }
        let ended = async { while self.history.ending.join_next().await.is_some() {} };
        if timeout(limits::WORKER_END_TIME, ended).await.is_err() {
            warn!(gpu = %self.gpu, waited = ?limits::WORKER_END_TIME, "a gpu worker was killed and has not ended");
        }
    }

    /// Starts a worker and stays with it until it has to go.
    async fn serve(&mut self, first: Asker) {
        let mut askers = vec![first];
        match self.start(&mut askers).await {
            Ok(Ready { link, process }) => {
                info!(pid = process.pid, gpu = %self.gpu, "gpu worker started");
                self.history.failed = None;
                self.current.set(self.gpu, Some(Arc::clone(&link)));
                answer(askers, &Ok(Arc::clone(&link)));
                let end = self.attend(&link).await;
                self.current.set(self.gpu, None);
                // From here on nothing more is sent to it, so nobody begins to wait after those that are told.
                link.requests.end();
                self.end(link, process, end);
            }
            Err(not_ready) => answer(askers, &Err(not_ready)),
        }
    }

    /// A worker that is ready. Whoever asks meanwhile joins the askers.
    async fn start(&mut self, askers: &mut Vec<Asker>) -> Result<Ready, NotReady> {
        if let Some((at, not_ready)) = &self.history.failed
            && at.elapsed() < not_ready.pause()
        {
            return Err(not_ready.clone());
        }
        let outcome = self.try_start(askers).await;
        if let Err(not_ready) = &outcome {
            let NotReady { wanted, found, .. } = not_ready;
            if self.history.told.is_news(found) {
                warn!(gpu = %self.gpu, %wanted, %found, "the gpu worker could not be started");
            }
            self.history.failed = Some((Instant::now(), not_ready.clone()));
        }
        outcome
    }

    async fn try_start(&mut self, askers: &mut Vec<Asker>) -> Result<Ready, NotReady> {
        if self.history.ending.len() >= limits::WORKERS_ENDING {
            let wanted = format!("fewer than {} killed ones that have not ended", limits::WORKERS_ENDING);
            return Err(NotReady::failed(wanted, self.history.ending.len().to_string()));
        }
        self.history.started += 1;
        let started = self.starter.start(Some(self.gpu)).await;
        let Started { socket, process } = started.map_err(|e| not_started(&e))?;
        let socket = AsyncSeqPacket::new(socket).map_err(|e| not_started(&e))?;
        let first = timeout(limits::WORKER_START_TIME, self.first_word(&socket, askers)).await;
        let outcome = first.unwrap_or_else(|_| Err("still loading the GPU driver".to_owned()));
        match outcome.map_err(Unfit::from).and_then(|frame| self.ready(frame)) {
            Ok((look, notes)) => {
                let link = Arc::new(Link::new(self.gpu, self.history.started, socket, look, notes));
                Ok(Ready { link, process })
            }
            Err(Unfit { why, sees_no_gpu }) => {
                socket.end();
                self.history.ending.spawn(reap(process, "it is not ready"));
                Err(self.not_ready(why, sees_no_gpu))
            }
        }
    }

    /// A GPU that the driver does not show, and that a configuration alone names, is not there.
    fn not_ready(&self, why: String, sees_no_gpu: bool) -> NotReady {
        if !sees_no_gpu {
            return NotReady::not_in_time(why);
        }
        let (found, code) = if self.gpus.is_given_alone(self.gpu) {
            let found = format!("named in the configuration, and the driver does not show it ({why})");
            (found, Code::DeviceMismatch)
        } else {
            (format!("not shown by the driver ({why})"), Code::GpuLost)
        };
        NotReady { wanted: self.gpu.to_string(), found, code }
    }

    async fn first_word(
        &mut self,
        socket: &AsyncSeqPacket,
        askers: &mut Vec<Asker>,
    ) -> Result<Frame, String> {
        let mut buffer = RecvBuffer::new();
        loop {
            tokio::select! {
                frame = socket.recv(&mut buffer) => {
                    return frame.ok().flatten().ok_or_else(|| "it died".to_owned());
                }
                need = self.needs.recv() => match need {
                    Some(WorkerNeed::Link(asker)) => askers.push(asker),
                    Some(WorkerNeed::Stuck(_) | WorkerNeed::Replacement(_)) => {} // Of an earlier one.
                    None => return Err("nobody needs it".to_owned()),
                },
                _ = self.stop.wait_for(|stopping| *stopping) => return Err("the daemon stops".to_owned()),
                Some(_) = self.history.ending.join_next() => {}
            }
        }
    }

    /// Takes the first word apart: what memory looks like, and where the worker notes what it begins.
    fn ready(&mut self, frame: Frame) -> Result<(Option<Look>, OwnedFd), Unfit> {
        let strange = || "it said what is no first word".to_owned();
        match Word::read(&frame.bytes).ok_or_else(strange)? {
            Word::Ready { devices, no_sample } => {
                if !devices.contains(&self.gpu) {
                    let why = "it shows others".to_owned();
                    return Err(Unfit { why, sees_no_gpu: true });
                }
                if let Some(why) = no_sample
                    && self.history.told.is_news(&why)
                {
                    warn!(gpu = %self.gpu, why, "the gpu worker has no memory of its own: descriptors go to it unseen");
                }
                let mut descriptors = frame.descriptors.into_iter();
                let notes = descriptors.next().ok_or_else(strange)?;
                let look = |sample: OwnedFd| Look::at(std::os::fd::AsFd::as_fd(&sample));
                let look = descriptors.next().map(look).transpose().map_err(|e| e.to_string())?;
                Ok((look, notes))
            }
            Word::NoDriver { why, no_device } => Err(Unfit { why, sees_no_gpu: no_device }),
            Word::Failed { .. } | Word::Idle => Err(strange().into()),
        }
    }

    /// Stays with the worker until it has to go.
    async fn attend(&mut self, link: &Arc<Link>) -> End {
        let mut buffer = RecvBuffer::new();
        loop {
            tokio::select! {
                frame = link.requests.recv(&mut buffer) => {
                    let Ok(Some(frame)) = frame else { return End::Itself };
                    match Word::read(&frame.bytes) {
                        Some(Word::Failed { why }) => {
                            if self.history.told.is_news(&why) {
                                warn!(gpu = %self.gpu, why, "the gpu worker could not inspect a descriptor");
                            }
                            return End::LastWord("it failed");
                        }
                        Some(Word::Idle) => return End::LastWord("nobody asked it anything for long"),
                        _ => return End::Unwanted("it said what it should not"),
                    }
                }
                need = self.needs.recv() => match need {
                    // The asker may have gone; the next one finds the worker.
                    Some(WorkerNeed::Link(asker)) => answer(vec![asker], &Ok(Arc::clone(link))),
                    Some(WorkerNeed::Stuck(generation)) if generation == link.generation => {
                        let note = link.noted();
                        // It may have gone on meanwhile.
                        if note.age() >= limits::INSPECTION_TIME {
                            return End::Hung(note.begun);
                        }
                    }
                    Some(WorkerNeed::Replacement(generation)) if generation == link.generation => {
                        return End::Replaced;
                    }
                    Some(WorkerNeed::Stuck(_) | WorkerNeed::Replacement(_)) => {}
                    None => return End::Unwanted("nobody needs it"),
                },
                _ = self.stop.wait_for(|stopping| *stopping) => return End::Unwanted("the daemon stops"),
                Some(_) = self.history.ending.join_next() => {}
            }
        }
    }

    /// Sees a worker off, aside, and tells those that wait for it what became of it.
    fn end(&mut self, link: Arc<Link>, process: Process, end: End) {
        self.history.ending.spawn(async move {
            let why = match end {
                End::Itself => "it ended",
                End::LastWord(why) | End::Unwanted(why) => why,
                End::Hung(_) => "it did not answer in time",
                End::Replaced => "a lane could not reach it",
            };
            let pid = process.pid;
            let mut ended = std::pin::pin!(process.end());
            let known = timeout(limits::WORKER_END_TIME, &mut ended).await.ok();
            let culprit = link.noted().begun;
            // Whoever closes its sockets by itself is on its way out: how it ends is not changed by a kill any more.
            link.tell(match (end, &known) {
                // One that went on before the kill reached it did not hang.
                (End::Hung(at), _) if at == culprit => Fate::Hung(culprit),
                (End::Itself | End::Replaced, Some(Ok((Ending::Crash, _)))) => Fate::Crashed(culprit),
                (End::Itself, Some(Ok((Ending::InOrder, _)))) => Fate::Over,
                (End::Itself, _) => Fate::Died(culprit),
                (End::Hung(_) | End::Replaced | End::LastWord(_) | End::Unwanted(_), _) => Fate::Over,
            });
            let ended = match known {
                Some(ended) => ended,
                None => ended.await,
            };
            log_end(pid, why, ended);
        });
    }
}

/// Ends a worker that was asked nothing.
pub(super) async fn reap(process: Process, why: &'static str) {
    let pid = process.pid;
    log_end(pid, why, process.end().await);
}

fn log_end(pid: u32, why: &str, ended: Result<(Ending, String), AskError>) {
    match ended {
        Ok((Ending::Crash, status)) => warn!(pid, why, status, "gpu worker crashed"),
        Ok((Ending::InOrder | Ending::Killed, status)) => info!(pid, why, status, "gpu worker gone"),
        Err(e) => warn!(pid, why, error = %e, "the gpu worker could not be ended"),
    }
}

pub(super) fn not_started(error: &dyn std::error::Error) -> NotReady {
    NotReady::failed("started", chain(error))
}

fn answer(askers: Vec<Asker>, outcome: &Result<Arc<Link>, NotReady>) {
    for asker in askers {
        // Whoever asked may have gone.
        let _ = asker.send(outcome.clone());
    }
}
