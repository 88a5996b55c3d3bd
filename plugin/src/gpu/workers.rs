//! Which GPUs the node has, and a supervisor for each of which a worker was ever needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::road::Link;
use super::starter::{Started, Starter};
use super::supervisor::{Supervisor, not_started, reap};
use super::told::Told;
use super::wire::Word;
use crate::limits;

/// Most needs that wait for a supervisor.
const NEEDS: usize = 256;

/// Why there is no worker.
#[derive(Debug, Clone)]
pub(super) struct NotReady {
    pub(super) wanted: String,
    pub(super) found: String,
}

/// Who waits for the road to a worker.
pub(super) type Asker = oneshot::Sender<Result<Arc<Link>, NotReady>>;

/// What a supervisor is asked for.
#[derive(Debug)]
pub(super) enum WorkerNeed {
    /// The road to a worker that is ready.
    Link(Asker),
    /// Another worker than this one, which has begun nothing for too long while something waits for it.
    Stuck(u64),
    /// Another worker than this one, which is gone, or beyond this lane's reach.
    Replacement(u64),
}

/// What lanes ask for.
#[derive(Debug)]
pub(super) enum Need {
    /// Which GPUs there are.
    Gpus(oneshot::Sender<Result<(), NotReady>>),
    /// Something of the worker of one that there is.
    Worker(DeviceUuid, WorkerNeed),
}

/// The GPUs of this node. Clones are the same list.
#[derive(Debug, Clone)]
pub struct Gpus {
    /// Those that are known without the driver.
    told: Arc<[DeviceUuid]>,
    /// Those that the driver names when it is asked, for one that is not among the others.
    named: Arc<OnceLock<Vec<DeviceUuid>>>,
}

impl Gpus {
    /// Those that are known so far. The driver is asked when another one is needed, such as a MIG instance that nobody has
    /// named.
    #[must_use]
    pub fn new(told: impl IntoIterator<Item = DeviceUuid>) -> Self {
        let mut all = Vec::new();
        for gpu in told {
            if !all.contains(&gpu) {
                all.push(gpu);
            }
        }
        Self { told: all.into(), named: Arc::default() }
    }

    /// All that are known.
    pub(super) fn known(&self) -> impl Iterator<Item = &DeviceUuid> {
        let named = self.named.get().into_iter().flatten();
        self.told.iter().chain(named.filter(|gpu| !self.told.contains(gpu)))
    }

    pub(super) fn has(&self, gpu: DeviceUuid) -> bool {
        self.known().any(|known| *known == gpu)
    }

    /// Whether the driver has named its own.
    pub(super) fn are_all_known(&self) -> bool {
        self.named.get().is_some()
    }
}

/// The workers that are ready at the moment.
#[derive(Debug, Default)]
pub(super) struct Current(Mutex<HashMap<DeviceUuid, Arc<Link>>>);

impl Current {
    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<DeviceUuid, Arc<Link>>> {
        // The map is whole at every step, so a thread that panicked beside it leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, gpu: DeviceUuid, link: Option<Arc<Link>>) {
        match link {
            Some(link) => drop(self.map().insert(gpu, link)),
            None => drop(self.map().remove(&gpu)),
        }
    }

    pub(super) fn of(&self, gpu: DeviceUuid) -> Option<Arc<Link>> {
        self.map().get(&gpu).cloned()
    }
}

/// Where lanes reach the workers. Clones reach the same.
#[derive(Debug, Clone)]
pub struct Reach {
    pub(super) gpus: Gpus,
    pub(super) current: Arc<Current>,
    pub(super) needs: mpsc::Sender<Need>,
    /// Inspections of all lanes together.
    pub(super) at_a_time: Arc<Semaphore>,
}

/// The supervisors of the node's GPUs.
#[derive(Debug)]
pub struct Workers {
    starter: Starter,
    gpus: Gpus,
    current: Arc<Current>,
    needs: mpsc::Receiver<Need>,
    supervisors: HashMap<DeviceUuid, mpsc::Sender<WorkerNeed>>,
    tasks: JoinSet<()>,
    told: Told,
}

impl Workers {
    /// No worker yet, and where lanes will ask for them.
    #[must_use]
    pub fn new(starter: Starter, gpus: Gpus) -> (Self, Reach) {
        let (sender, needs) = mpsc::channel(NEEDS);
        let current = Arc::new(Current::default());
        let reach = Reach {
            gpus: gpus.clone(),
            current: Arc::clone(&current),
            needs: sender,
            at_a_time: Arc::new(Semaphore::new(limits::INSPECTIONS)),
        };
        let (supervisors, tasks, told) = (HashMap::new(), JoinSet::new(), Told::default());
        (Self { starter, gpus, current, needs, supervisors, tasks, told }, reach)
    }

    /// Serves until told to stop, then waits for the workers' end, but not for ever.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let need = tokio::select! {
                need = self.needs.recv() => need,
                _ = stop.wait_for(|stopping| *stopping) => None,
                Some(_) = self.tasks.join_next() => continue,
            };
            match need {
                Some(Need::Worker(gpu, need)) => self.pass_on(gpu, need, &stop),
                Some(Need::Gpus(asker)) => {
                    let outcome = self.learn(&mut stop).await;
                    // Whoever asked may have gone.
                    let _ = asker.send(outcome);
                }
                None => break,
            }
        }
        self.supervisors.clear();
        while self.tasks.join_next().await.is_some() {}
    }

    fn pass_on(&mut self, gpu: DeviceUuid, need: WorkerNeed, stop: &watch::Receiver<bool>) {
        if !self.gpus.has(gpu) {
            return; // Lanes ask for none that there is not.
        }
        let supervisor = self.supervisors.entry(gpu).or_insert_with(|| {
            let (sender, needs) = mpsc::channel(NEEDS);
            let (starter, current) = (self.starter.clone(), Arc::clone(&self.current));
            self.tasks.spawn(Supervisor::new(gpu, starter, needs, current, stop.clone()).run());
            sender
        });
        // A supervisor always listens; where so many wait already, one more learns by the end of its channel.
        let _ = supervisor.try_send(need);
    }

    /// Asks the driver which GPUs there are, by a worker that sees all and is asked nothing else.
    async fn learn(&mut self, stop: &mut watch::Receiver<bool>) -> Result<(), NotReady> {
        if self.gpus.are_all_known() {
            return Ok(());
        }
        let Started { socket, process } = self.starter.start(None).await.map_err(|e| not_started(&e))?;
        let socket = AsyncSeqPacket::new(socket).map_err(|e| not_started(&e))?;
        let mut buffer = RecvBuffer::new();
        let word = tokio::select! {
            word = timeout(limits::WORKER_START_TIME, socket.recv(&mut buffer)) => word.map_err(|_| "still loading the GPU driver"),
            _ = stop.wait_for(|stopping| *stopping) => Err("the daemon stops"),
        };
        socket.end();
        self.tasks.spawn(reap(process, "it named the GPUs"));
        let found = match word.map(|word| word.ok().flatten().and_then(|frame| Word::read(&frame.bytes))) {
            Ok(Some(Word::Ready { devices, .. })) => {
                info!(gpus = ?devices, "the driver has named its GPUs");
                let _ = self.gpus.named.set(devices);
                return Ok(());
            }
            Ok(Some(Word::NoDriver { why })) => why,
            Ok(_) => "it died".to_owned(),
            Err(why) => why.to_owned(),
        };
        let wanted = format!("ready within {:?}", limits::WORKER_START_TIME);
        if self.told.is_news(&found) {
            warn!(%wanted, %found, "the gpu worker could not be started");
        }
        Err(NotReady { wanted, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_asked_only_for_what_nobody_has_told() {
        let gpu = |n| DeviceUuid::from_bytes([n; 16]);
        let gpus = Gpus::new([gpu(2), gpu(1), gpu(2)]);
        assert!(gpus.has(gpu(1)) && gpus.has(gpu(2)) && !gpus.has(gpu(3)) && !gpus.are_all_known());
        gpus.named.set(vec![gpu(2), gpu(3)]).unwrap();
        assert_eq!(gpus.known().copied().collect::<Vec<_>>(), [2, 1, 3].map(gpu));
        assert!(gpus.has(gpu(3)) && gpus.are_all_known());
    }
}
