//! Which GPUs the node has, and a supervisor for each of which a worker was ever needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use gpu_handoff_protocol::{Code, DeviceUuid};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::learning::{self, Learned, Learning};
use super::road::Link;
use super::starter::Starter;
use super::supervisor::{Supervisor, reap};
use crate::limits;

/// Most needs that wait for a supervisor.
const NEEDS: usize = 256;

/// Why there is no worker.
#[derive(Debug, Clone)]
pub(super) struct NotReady {
    pub(super) wanted: String,
    pub(super) found: String,
    /// `DEVICE_MISMATCH`: the node does not have this GPU, though somebody's configuration says so; `GPU_LOST`: the node has it,
    /// and the driver does not show it; else `GPU_WORKER_FAILED`.
    pub(super) code: Code,
}

impl NotReady {
    /// It failed, whatever there is of its GPU.
    pub(super) fn failed(wanted: impl Into<String>, found: impl Into<String>) -> Self {
        Self { wanted: wanted.into(), found: found.into(), code: Code::WorkerFailed }
    }

    /// This was so where it should have been ready.
    pub(super) fn not_in_time(found: String) -> Self {
        Self::failed(format!("ready within {:?}", limits::WORKER_START_TIME), found)
    }

    /// For how long it is not tried again.
    pub(super) fn pause(&self) -> Duration {
        match self.code {
            Code::DeviceMismatch => limits::ABSENT_GPU_PAUSE,
            _ => limits::WORKER_PAUSE,
        }
    }
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
    Gpus(learning::Asker),
    /// Something of the worker of one that there is.
    Worker(DeviceUuid, WorkerNeed),
}

/// The GPUs of this node. Clones are the same list.
#[derive(Debug, Clone)]
pub struct Gpus {
    /// Those that are known without the driver: the node's, then those that a configuration names and nothing else, which are
    /// instances of a node's GPUs, or mistakes.
    told: Arc<[DeviceUuid]>,
    /// How many of them are the node's.
    of_node: usize,
    /// Those that the driver names when it is asked, for one that is not among the others.
    named: Arc<OnceLock<Vec<DeviceUuid>>>,
}

impl Gpus {
    /// Those that are known so far: the node's, and those that a configuration names. The driver is asked when another one
    /// is needed, such as a MIG instance that nobody has named.
    #[must_use]
    pub fn new(
        of_node: impl IntoIterator<Item = DeviceUuid>,
        given: impl IntoIterator<Item = DeviceUuid>,
    ) -> Self {
        let mut told = Vec::new();
        add_new(&mut told, of_node);
        let of_node = told.len();
        add_new(&mut told, given);
        Self { told: told.into(), of_node, named: Arc::default() }
    }

    /// Whether nobody but a configuration knows of this one.
    pub(super) fn is_given_alone(&self, gpu: DeviceUuid) -> bool {
        self.told[self.of_node..].contains(&gpu)
            && !self.named.get().is_some_and(|named| named.contains(&gpu))
    }

    /// All that are known.
    pub(super) fn known(&self) -> impl Iterator<Item = &DeviceUuid> {
        let named = self.named.get().into_iter().flatten();
        self.told.iter().chain(named.filter(|gpu| !self.told.contains(gpu)))
    }

    pub(super) fn has(&self, gpu: DeviceUuid) -> bool {
        self.known().any(|known| *known == gpu)
    }

    /// The driver has named its own.
    pub(super) fn name(&self, devices: Vec<DeviceUuid>) {
        // The first word of it stays.
        let _ = self.named.set(devices);
    }

    /// Whether the driver has named its own.
    pub(super) fn are_all_known(&self) -> bool {
        self.named.get().is_some()
    }
}

fn add_new(to: &mut Vec<DeviceUuid>, gpus: impl IntoIterator<Item = DeviceUuid>) {
    for gpu in gpus {
        if !to.contains(&gpu) {
            to.push(gpu);
        }
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
    learning: Learning,
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
        let (supervisors, tasks, learning) = (HashMap::new(), JoinSet::new(), Learning::default());
        (Self { starter, gpus, current, needs, supervisors, tasks, learning }, reach)
    }

    /// Serves until told to stop, then waits for the workers' end, but not for ever.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let need = tokio::select! {
                need = self.needs.recv() => need,
                _ = stop.wait_for(|stopping| *stopping) => None,
                Some(_) = self.tasks.join_next() => continue,
                Some(learned) = self.learning.done() => {
                    self.learned(learned);
                    continue;
                }
            };
            match need {
                Some(Need::Worker(gpu, need)) => self.pass_on(gpu, need, &stop),
                Some(Need::Gpus(asker)) => self.learning.ask(asker, &self.gpus, &self.starter, &stop),
                None => break,
            }
        }
        self.supervisors.clear();
        while let Some(learned) = self.learning.done().await {
            self.learned(learned);
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn learned(&mut self, learned: Learned) {
        if let Some(process) = self.learning.settle(learned, &self.gpus) {
            self.tasks.spawn(reap(process, "it named the GPUs"));
        }
    }

    fn pass_on(&mut self, gpu: DeviceUuid, need: WorkerNeed, stop: &watch::Receiver<bool>) {
        if !self.gpus.has(gpu) {
            return; // Lanes ask for none that there is not.
        }
        let supervisor = self.supervisors.entry(gpu).or_insert_with(|| {
            let (sender, needs) = mpsc::channel(NEEDS);
            let (starter, current) = (self.starter.clone(), Arc::clone(&self.current));
            let gpus = self.gpus.clone();
            self.tasks.spawn(Supervisor::new(gpu, gpus, starter, needs, current, stop.clone()).run());
            sender
        });
        // A supervisor always listens; where so many wait already, one more learns by the end of its channel.
        let _ = supervisor.try_send(need);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_asked_only_for_what_nobody_has_told() {
        let gpu = |n| DeviceUuid::from_bytes([n; 16]);
        let gpus = Gpus::new([gpu(2)], [gpu(1), gpu(2)]);
        assert!(gpus.has(gpu(1)) && gpus.has(gpu(2)) && !gpus.has(gpu(3)) && !gpus.are_all_known());
        gpus.name(vec![gpu(2), gpu(3)]);
        assert_eq!(gpus.known().copied().collect::<Vec<_>>(), [2, 1, 3].map(gpu));
        assert!(gpus.has(gpu(3)) && gpus.are_all_known());
    }

    use gpu_handoff_protocol::socket::SeqPacket;

    use super::super::wire::Word;
    use crate::node::client::testing::{self, NodeEnd};
    use crate::node::words::{Answer, Command, FromNode};

    /// A node that starts workers which say nothing.
    struct Node(NodeEnd);

    impl Node {
        /// The next command, and its number.
        async fn asked(&self) -> (u64, Command) {
            self.0.asked().await
        }

        /// Starts a worker: gives its end of its socket.
        async fn start(&self, id: u64) -> SeqPacket {
            let (ours, theirs) = SeqPacket::pair().unwrap();
            let answer = FromNode::Answer { id, outcome: Ok(Answer::Started { worker: id, pid: 1 }) };
            let descriptors = vec![Arc::new(std::os::fd::AsFd::as_fd(&ours).try_clone_to_owned().unwrap())];
            self.0.say_with(&answer, descriptors).await;
            theirs
        }
    }

    #[tokio::test]
    async fn while_the_driver_is_asked_workers_are_started_and_a_failure_is_not_tried_again_at_once() {
        let (line, client, node) = testing::line(Arc::default());
        let gpu = DeviceUuid::from_bytes([1; 16]);
        let (workers, reach) = Workers::new(Starter::new(client), Gpus::new([gpu], []));
        let (stopping, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(line.run(oneshot::channel().0, tokio::sync::mpsc::channel(1).0, watch::channel(0).1));
        tasks.spawn(workers.run(stopped));
        let node = Node(node);
        let ask = || {
            let (asker, answer) = oneshot::channel();
            reach.needs.try_send(Need::Gpus(asker)).unwrap();
            answer
        };
        let first = ask();
        let (id, command) = node.asked().await;
        assert_eq!(command, Command::StartWorker { gpu: None });
        let silent = node.start(id).await;
        // It has said nothing yet, and others get their worker, and whoever asks the same waits for the same.
        let second = ask();
        let (asker, _link) = oneshot::channel();
        reach.needs.send(Need::Worker(gpu, WorkerNeed::Link(asker))).await.unwrap();
        let other = tokio::time::timeout(limits::WORKER_START_TIME / 2, node.asked()).await;
        let (other, command) = other.expect("asked while the driver is");
        assert_eq!(command, Command::StartWorker { gpu: Some(gpu) });
        let _other = node.start(other).await;
        drop(silent);
        let died = first.await.unwrap().unwrap_err();
        assert_eq!(
            (&*died.found, second.await.unwrap().unwrap_err().found),
            ("it died", "it died".to_owned())
        );
        let again = ask().await.unwrap().unwrap_err();
        assert_eq!(again.found, "it died", "it is not asked again at once");
        assert_eq!(node.asked().await.1, Command::EndWorker { worker: id }, "and nothing else was started");
        drop(node);
        stopping.send_replace(true);
        tasks.join_all().await;
    }

    #[tokio::test]
    async fn a_gpu_that_a_configuration_alone_names_and_the_driver_does_not_show_is_not_there() {
        let (line, client, node) = testing::line(Arc::default());
        let [own, mistyped] = [1, 2].map(|n| DeviceUuid::from_bytes([n; 16]));
        let (workers, reach) = Workers::new(Starter::new(client), Gpus::new([own], [mistyped]));
        let (stopping, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(line.run(oneshot::channel().0, tokio::sync::mpsc::channel(1).0, watch::channel(0).1));
        tasks.spawn(workers.run(stopped));
        let node = Node(node);
        let ask = |gpu| {
            let (asker, answer) = oneshot::channel();
            reach.needs.try_send(Need::Worker(gpu, WorkerNeed::Link(asker))).unwrap();
            answer
        };
        for (gpu, code) in [(own, Code::GpuLost), (mistyped, Code::DeviceMismatch)] {
            let answer = ask(gpu);
            let (id, command) = node.asked().await;
            assert_eq!(command, Command::StartWorker { gpu: Some(gpu) });
            let worker = node.start(id).await;
            let word = Word::NoDriver { why: "no device".to_owned(), no_device: true };
            worker.send(&word.packet(Vec::new()).unwrap(), None).unwrap();
            let not_ready = answer.await.unwrap().unwrap_err();
            assert_eq!(not_ready.code, code, "{not_ready:?}");
            assert_eq!(node.asked().await.1, Command::EndWorker { worker: id });
        }
        // Nor is it looked for again at once.
        let not_ready = ask(mistyped).await.unwrap().unwrap_err();
        assert_eq!(
            ((not_ready.code == Code::DeviceMismatch), &*not_ready.wanted),
            (true, &*mistyped.to_string())
        );
        drop(node);
        stopping.send_replace(true);
        tasks.join_all().await;
    }
}
