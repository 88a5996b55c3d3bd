//! The GPU workers' processes: started and ended for the broker, reaped here.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use gpu_handoff_protocol::DeviceUuid;
use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::children::{Programs, spawn_with_socket};
use super::words::{Answer, Ending};
use crate::limits;

/// What the vendor's driver takes the visible GPUs from.
const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";

/// The workers of one broker.
#[derive(Debug, Default)]
pub(super) struct Workers {
    last: u64,
    /// Whether they may poll for a moment instead of sleeping.
    stay_awake: bool,
    alive: HashMap<u64, Alive>,
    /// Those whose end nobody has asked for yet.
    ended: HashMap<u64, Ended>,
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
    ending: Ending,
    how: String,
}

impl Ended {
    /// What the broker is told of it.
    pub(super) fn answer(&self) -> Answer {
        Answer::Ended { ending: self.ending, how: self.how.clone() }
    }
}

impl Workers {
    /// None yet.
    pub(super) fn new(stay_awake: bool) -> Self {
        Self { stay_awake, ..Self::default() }
    }

    /// Starts one, unless there are too many; for one GPU, with what the driver's variable calls it.
    pub(super) fn start(
        &mut self,
        programs: &Programs,
        gpu: Option<(DeviceUuid, String)>,
    ) -> Result<Started, String> {
        let count = self.alive.len() + self.ended.len();
        if count >= limits::NODE_WORKERS {
            return Err(format!("{count} gpu workers have not been ended, which is the limit"));
        }
        let (uuid, visible) = gpu.map(|(uuid, visible)| (uuid.to_string(), visible)).unzip();
        let mut mode = vec!["gpu-worker"];
        mode.extend(uuid.iter().flat_map(|gpu| ["--gpu", gpu]));
        mode.extend(self.stay_awake.then_some("--stays-awake"));
        let mut command = programs.child(&mode);
        command.envs(visible.iter().map(|gpu| (VISIBLE_GPUS, gpu)));
        let failed = |e: io::Error| format!("a gpu worker could not be started: {e}");
        let (mut child, socket) = spawn_with_socket(command).map_err(failed)?;
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
            let ending = status.as_ref().map_or(Ending::Killed, |status| ending(*status));
            Ended {
                worker,
                ending,
                how: status.map_or_else(|e| format!("it could not be reaped: {e}"), |s| s.to_string()),
            }
        });
        Ok(Started { worker, pid, socket: socket.into_fd() })
    }

    /// Ends one for the command `asked`, which is answered when it has ended; one that has ended already comes back at
    /// once. An error where there is none such.
    pub(super) fn end(&mut self, worker: u64, asked: u64) -> Result<Option<Ended>, String> {
        if let Some(ended) = self.ended.remove(&worker) {
            return Ok(Some(ended));
        }
        let alive = self.alive.get_mut(&worker).ok_or("no gpu worker of that number is alive")?;
        if alive.asked.len() >= limits::NODE_COMMANDS {
            return Err("its end was asked for too often".to_owned());
        }
        alive.asked.push(asked);
        drop(alive.kill.take());
        Ok(None)
    }

    /// The next one that has ended, and the commands that waited for that. Never, where there is none. Safe to cancel.
    pub(super) async fn next(&mut self) -> (Ended, Vec<u64>) {
        loop {
            match self.watches.join_next().await {
                Some(Ok(ended)) => match self.alive.remove(&ended.worker) {
                    Some(alive) if alive.kill.is_some() => drop(self.ended.insert(ended.worker, ended)),
                    alive => return (ended, alive.map(|a| a.asked).unwrap_or_default()),
                },
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
        self.ended.clear();
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

/// What a status says of whose doing the end was.
fn ending(status: ExitStatus) -> Ending {
    const FAULTS: [Signal; 7] =
        [Signal::SEGV, Signal::BUS, Signal::ABORT, Signal::ILL, Signal::FPE, Signal::SYS, Signal::TRAP];
    match (status.success(), status.signal()) {
        (true, _) => Ending::InOrder,
        (false, Some(signal)) if !FAULTS.iter().any(|fault| fault.as_raw() == signal) => Ending::Killed,
        _ => Ending::Crash,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_told_from_a_kill() {
        let of = |raw| ending(ExitStatus::from_raw(raw));
        assert_eq!([of(0), of(1 << 8)], [Ending::InOrder, Ending::Crash]);
        assert_eq!([of(Signal::SEGV.as_raw()), of(Signal::ABORT.as_raw() | 0x80)], [Ending::Crash; 2]);
        assert_eq!([of(Signal::KILL.as_raw()), of(Signal::TERM.as_raw())], [Ending::Killed; 2]);
    }
}
