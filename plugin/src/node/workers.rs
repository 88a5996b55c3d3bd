//! The GPU workers' processes: started and ended for the broker, reaped here.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::children::{Programs, spawn_with_socket};
use crate::limits;

/// The workers of one broker.
#[derive(Debug, Default)]
pub(super) struct Workers {
    last: u64,
    alive: HashMap<u64, Alive>,
    /// One for each process: until it has ended.
    watches: JoinSet<Ended>,
}

#[derive(Debug)]
struct Alive {
    /// Dropped to end it.
    kill: Option<oneshot::Sender<()>>,
    /// The commands that are answered when it has ended.
    asked: Vec<u64>,
}

/// A worker that was started.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) worker: u64,
    pub(super) pid: u32,
    pub(super) socket: OwnedFd,
}

/// A worker that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    worker: u64,
    pub(super) how: String,
}

impl Workers {
    /// Starts one, unless there are too many.
    pub(super) fn start(&mut self, programs: &Programs) -> Result<Started, String> {
        if self.alive.len() >= limits::NODE_WORKERS {
            return Err(format!("{} gpu workers have not ended, which is the limit", self.alive.len()));
        }
        let failed = |e: io::Error| format!("a gpu worker could not be started: {e}");
        let (mut child, socket) = spawn_with_socket(programs.child(&["gpu-worker"])).map_err(failed)?;
        let pid = child.id().ok_or("the gpu worker ended at once")?;
        self.last += 1;
        let (worker, (kill, killed)) = (self.last, oneshot::channel());
        self.alive.insert(worker, Alive { kill: Some(kill), asked: Vec::new() });
        self.watches.spawn(async move {
            let status = tokio::select! {
                status = child.wait() => status,
                // Its end of the channel is dropped to have it killed.
                _ = killed => {
                    if let Err(e) = child.start_kill() {
                        warn!(pid, error = %e, "a gpu worker could not be killed");
                    }
                    child.wait().await
                }
            };
            Ended {
                worker,
                how: status.map_or_else(|e| format!("it could not be reaped: {e}"), |s| s.to_string()),
            }
        });
        Ok(Started { worker, pid, socket: socket.into_fd() })
    }

    /// Ends one for the command `asked`, which is answered when it has ended; an error where there is none such.
    pub(super) fn end(&mut self, worker: u64, asked: u64) -> Result<(), String> {
        let alive = self.alive.get_mut(&worker).ok_or("no gpu worker of that number is alive")?;
        if alive.asked.len() >= limits::NODE_COMMANDS {
            return Err("its end was asked for too often".to_owned());
        }
        alive.asked.push(asked);
        drop(alive.kill.take());
        Ok(())
    }

    /// The next one that has ended, and the commands that waited for that. Never, where there is none. Safe to cancel.
    pub(super) async fn next(&mut self) -> (Ended, Vec<u64>) {
        loop {
            match self.watches.join_next().await {
                Some(Ok(ended)) => {
                    let asked = self.alive.remove(&ended.worker).map(|a| a.asked).unwrap_or_default();
                    return (ended, asked);
                }
                // A watch that broke off has dropped, and so killed, its process.
                Some(Err(e)) => warn!(error = %e, "the watch over a gpu worker broke off"),
                None => std::future::pending().await,
            }
        }
    }

    /// Ends all, and answers nobody any more. One that is stuck in the kernel ends when that lets it go.
    pub(super) fn abandon(&mut self) {
        for alive in self.alive.values_mut() {
            drop(alive.kill.take());
            alive.asked.clear();
        }
    }

    /// Whether all have ended within a while.
    pub(super) async fn all_have_ended(&mut self) -> bool {
        let ended = async {
            while !self.alive.is_empty() {
                drop(self.next().await);
            }
        };
        timeout(limits::WORKER_END_TIME, ended).await.is_ok()
    }
}
