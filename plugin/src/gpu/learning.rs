//! Asking the driver which GPUs there are, by a worker that sees all and is asked nothing else: aside, since that may take
//! its time, once for all who ask meanwhile, and not again soon where it failed.

use std::time::Instant;

use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::starter::{Process, Started, Starter};
use super::supervisor::not_started;
use super::told::Told;
use super::wire::Word;
use super::workers::{Gpus, NotReady};
use crate::limits;

/// Who waits for the driver to be asked.
pub(super) type Asker = oneshot::Sender<Result<(), NotReady>>;

/// What the driver said, and the worker that it was asked by, which is to be reaped.
#[derive(Debug)]
pub(super) struct Learned {
    outcome: Result<Vec<DeviceUuid>, NotReady>,
    process: Option<Process>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Learning {
    askers: Vec<Asker>,
    /// One at most.
    task: JoinSet<Learned>,
    /// The last time, if it failed.
    failed: Option<(Instant, NotReady)>,
    told: Told,
}

impl Learning {
    /// Has the driver asked, unless that is under way, was done, or failed just now.
    pub(super) fn ask(&mut self, asker: Asker, gpus: &Gpus, starter: &Starter, stop: &watch::Receiver<bool>) {
        let known = match &self.failed {
            _ if gpus.are_all_known() => Some(Ok(())),
            Some((at, why)) if at.elapsed() < limits::WORKER_PAUSE => Some(Err(why.clone())),
            _ if self.askers.len() >= limits::GPU_ASKERS => {
                let wanted = format!("fewer than {} that wait for the driver", limits::GPU_ASKERS);
                Some(Err(NotReady::failed(wanted, self.askers.len().to_string())))
            }
            _ => None,
        };
        if let Some(outcome) = known {
            // Whoever asked may have gone.
            let _ = asker.send(outcome);
            return;
        }
        self.askers.push(asker);
        if self.task.is_empty() {
            self.task.spawn(learn(starter.clone(), stop.clone()));
        }
    }

    /// Comes back when the driver has been asked; `None`: it is not being asked.
    pub(super) async fn done(&mut self) -> Option<Learned> {
        let broken_off = |_| Learned {
            outcome: Err(NotReady::failed("named by the driver", "broken off")),
            process: None,
        };
        self.task.join_next().await.map(|learned| learned.unwrap_or_else(broken_off))
    }

    /// Takes in what the driver said, and tells all who asked. Gives the worker back.
    pub(super) fn settle(&mut self, learned: Learned, gpus: &Gpus) -> Option<Process> {
        let Learned { outcome, process } = learned;
        let outcome = outcome.map(|devices| {
            info!(gpus = ?devices, "the driver has named its GPUs");
            gpus.name(devices);
        });
        self.failed = outcome.as_ref().err().map(|why| (Instant::now(), why.clone()));
        if let Err(NotReady { wanted, found, .. }) = &outcome
            && self.told.is_news(found)
        {
            warn!(%wanted, %found, "the gpu worker could not be started");
        }
        for asker in self.askers.drain(..) {
            // Whoever asked may have gone.
            let _ = asker.send(outcome.clone());
        }
        process
    }
}

async fn learn(starter: Starter, stop: watch::Receiver<bool>) -> Learned {
    match starter.start(None).await {
        Ok(Started { socket, process }) => {
            let outcome = match AsyncSeqPacket::new(socket) {
                Ok(socket) => first_word(&socket, stop).await,
                Err(e) => Err(not_started(&e)),
            };
            Learned { outcome, process: Some(process) }
        }
        Err(e) => Learned { outcome: Err(not_started(&e)), process: None },
    }
}

async fn first_word(
    socket: &AsyncSeqPacket,
    mut stop: watch::Receiver<bool>,
) -> Result<Vec<DeviceUuid>, NotReady> {
    let mut buffer = RecvBuffer::new();
    let word = tokio::select! {
        word = timeout(limits::WORKER_START_TIME, socket.recv(&mut buffer)) => word.map_err(|_| "still loading the GPU driver"),
        _ = stop.wait_for(|stopping| *stopping) => Err("the daemon stops"),
    };
    socket.end();
    let found = match word.map(|word| word.ok().flatten().and_then(|frame| Word::read(&frame.bytes))) {
        Ok(Some(Word::Ready { devices, .. })) => return Ok(devices),
        Ok(Some(Word::NoDriver { why, .. })) => why,
        Ok(_) => "it died".to_owned(),
        Err(why) => why.to_owned(),
    };
    Err(NotReady::not_in_time(found))
}
