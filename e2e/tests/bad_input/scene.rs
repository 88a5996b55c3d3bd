//! A node with a pod that misbehaves and a pair that does not.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::gpu::Gpu;
use gpu_handoff_e2e::node::{Member, Node, PATIENCE};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_e2e::rough::{Client, Sidecar, vmm};
use gpu_handoff_e2e::wait;
use gpu_handoff_protocol::{Code, DeviceUuid, Refusal};
use gpu_handoff_simcuda::dump;

use crate::pair::{Pair, Rounds};

/// Size of the buffers, in bytes: the granularity of GPU memory.
pub(crate) const BYTES: u64 = 2 << 20;
/// What the buffers of the well-behaved hold.
const WORD: u32 = 0x0bad_cafe;
/// Hand-offs of the pair before a deed, and at least as many beside it.
const SAMPLE: u64 = 20;
/// How many times as long the slowest hand-offs beside a deed may take as those before it.
const SLOWER: u32 = 10;
/// What they may take in any case: other tests and programs use the same processors.
const SLOW: Duration = Duration::from_millis(250);
/// The same for [`Scene::with_masses`], where nothing was optimised.
const SLOW_MASSES: Duration = Duration::from_secs(5);

/// A GPU of the simulated machine.
pub(crate) fn device(minor: u8) -> DeviceUuid {
    let mut uuid = *b"simcuda\0\x40\0\x80\0\0\0\0\0";
    uuid[15] = minor;
    DeviceUuid::from_bytes(uuid)
}

/// Something that the GPU's driver would not take, refused: from then on the pod's lane has its way to the GPU's worker,
/// whose descriptors count.
fn open_ways(pod: &Pod, gpus: usize) -> anyhow::Result<()> {
    let mut client = Client::greeted(pod.socket())?;
    for minor in 0..u8::try_from(gpus)? {
        let null = Arc::new(File::open("/dev/null")?.into());
        refused_with(client.publish_one(vmm("no-memory", device(minor), BYTES, null)?)?, Code::NotGpuMemory);
    }
    Ok(())
}

/// A node with its pods.
pub(crate) struct Stage {
    pub(crate) node: Node,
    /// The pod that misbehaves.
    pub(crate) rough: Pod,
    /// A pod of another group.
    pub(crate) stranger: Pod,
    producer: Pod,
    consumer: Pod,
    /// What the pair has done.
    rounds: Rounds,
}

/// A stage with a pair that hands a buffer over.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    pair: Pair,
    /// What a hand-off of the pair may take in any case.
    slow: Duration,
}

impl Scene {
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::with_policy(&serde_json::json!({ "legacy": "within-namespace" }))
    }

    pub(crate) fn with_policy(policy: &serde_json::Value) -> anyhow::Result<Self> {
        Self::on(Gpu::simulated(&Folder::shared()?)?, policy)
    }

    pub(crate) fn on(gpu: Gpu, policy: &serde_json::Value) -> anyhow::Result<Self> {
        let Gpu::Simulated { gpus, .. } = gpu else { anyhow::bail!("the scene is for the simulator") };
        let member = |pod, group| Member { pod, group };
        let members = [
            member("producer", "group"),
            member("consumer", "group"),
            member("rough", "group"),
            member("stranger", "others"),
        ];
        let node = Node::start_with(&Folder::shared()?, Arc::new(gpu), &members, policy)?;
        let pod = |name| Pod::start(&node, name, Walls::None);
        let (producer, consumer) = (pod("producer")?, pod("consumer")?);
        let (rough, stranger) = (pod("rough")?, pod("stranger")?);
        let stage = Stage { rough, stranger, producer, consumer, node, rounds: Rounds::default() };
        for pod in [&stage.rough, &stage.stranger, &stage.consumer] {
            open_ways(pod, gpus)?;
        }
        let pair = Pair::start(stage.connected(&stage.producer)?, stage.connected(&stage.consumer)?)?;
        Ok(Self { stage, pair, slow: SLOW })
    }

    /// For a deed that has many thousand buffers end at once, which is one step of the registry, or that itself keeps all
    /// processors busy: without optimisation that takes seconds.
    pub(crate) fn with_masses(mut self) -> Self {
        if cfg!(debug_assertions) {
            self.slow = SLOW_MASSES;
        }
        self
    }

    /// Lets the deed be done while the pair goes on, then counts what is left, and stops everything in good order.
    pub(crate) fn run(mut self, deed: impl FnOnce(&Stage) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.act(deed)?;
        self.end()
    }

    /// Lets the deed be done while the pair goes on, then counts what is left. `deed` must let go of all that it made.
    pub(crate) fn act(&mut self, deed: impl FnOnce(&Stage) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let before = self.stage.settled()?;
        let stop = AtomicBool::new(false);
        let (stage, pair, slow) = (&self.stage, &mut self.pair, self.slow);
        std::thread::scope(|scope| {
            let good = scope.spawn(|| pair.go_on(&stop, &stage.rounds));
            let _stop_at_the_end = SetOnDrop(&stop);
            let more = |count: u64| {
                let goal = stage.rounds() + count;
                wait::until(PATIENCE, "the well-behaved pair hands a buffer over", || {
                    Ok((stage.rounds() >= goal || good.is_finished()).then_some(()))
                })
            };
            more(SAMPLE)?;
            let before = stage.rounds.slowest();
            let outcome = deed(stage);
            more(2)?;
            let beside = stage.rounds.slowest();
            stop.store(true, Ordering::Relaxed);
            let paired = good.join().map_err(|_| anyhow::anyhow!("the well-behaved pair panicked"))?;
            outcome?;
            paired.context("the well-behaved pair was disturbed")?;
            println!("the pair's slowest hand-offs: {before:?} before the deed, {beside:?} beside it");
            let bound = slow.max(before * SLOWER);
            ensure!(
                beside <= bound,
                "the pair's hand-offs took {beside:?} beside the deed, {before:?} before"
            );
            Ok(())
        })
        .with_context(|| format!("the plugin's log ends with:\n{}", self.stage.log_tail()))?;
        self.stage.wait_for_no_more_than(&before)
    }

    /// As `run` for a deed that the pair cannot but notice: it rests meanwhile.
    pub(crate) fn run_disturbed(
        mut self,
        deed: impl FnOnce(&Stage) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let before = self.stage.settled()?;
        deed(&self.stage)
            .with_context(|| format!("the plugin's log ends with:\n{}", self.stage.log_tail()))?;
        self.stage.wait_for_no_more_than(&before)?;
        // A GPU worker that is new counts with the pair's way to it.
        self.pair.hand_over()?;
        self.run(|_| Ok(()))
    }

    /// Stops everything in good order; no GPU memory may be left.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        self.stop(true)
    }

    /// The same where the misbehaving pod's sidecar is dead.
    pub(crate) fn end_without_rough(self) -> anyhow::Result<()> {
        self.stop(false)
    }

    /// Stops the plugin while everybody is still there.
    pub(crate) fn stop_plugin_first(self) -> anyhow::Result<()> {
        let Self { stage, pair, .. } = self;
        stage.node.stop()?;
        pair.finish()
    }

    fn stop(self, rough_too: bool) -> anyhow::Result<()> {
        let Self { stage, pair, .. } = self;
        pair.finish()?;
        stage.wait_for_free_memory()?;
        let Stage { node, rough, stranger, producer, consumer, .. } = stage;
        for pod in [stranger, producer, consumer] {
            pod.stop()?;
        }
        if rough_too {
            rough.stop()?;
        }
        node.stop()
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Stage {
    /// How often the pair has handed its buffer over.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.count()
    }

    /// Waits until the pair has handed its buffer over often enough to tell whether it is disturbed.
    pub(crate) fn sample(&self) -> anyhow::Result<()> {
        let goal = self.rounds() + SAMPLE;
        eventually("the well-behaved pair goes on", || Ok(self.rounds() >= goal))
    }

    /// An application of a pod that has connected.
    pub(crate) fn connected(&self, pod: &Pod) -> anyhow::Result<App> {
        pod.connected(&self.node)
    }

    /// The socket of a well-behaved pod, for a guest.
    pub(crate) fn consumer_socket(&self) -> &Path {
        self.consumer.socket()
    }

    /// The slot of the pod that misbehaves.
    pub(crate) fn slot(&self) -> PathBuf {
        self.node.slot("rough")
    }

    /// A rough sidecar in that slot, beside the real one.
    pub(crate) fn rough_sidecar(&self) -> anyhow::Result<Sidecar> {
        Sidecar::greeted(&self.slot())
    }

    /// The process number of the first GPU's worker.
    pub(crate) fn worker(&self) -> anyhow::Result<u32> {
        let log = self.node.log();
        let gpu = format!("gpu={}", device(0));
        let started = |line: &str| {
            let (number, of) = line.split_once("gpu worker started pid=")?.1.trim().split_once(' ')?;
            (of == gpu).then(|| number.parse().ok())?
        };
        let number = log.lines().rev().find_map(started);
        number.context("the plugin's log names no GPU worker")
    }

    /// What the misbehaving pod's sidecar has logged.
    pub(crate) fn rough_log(&self) -> String {
        std::fs::read_to_string(self.node.dir().join("pods/rough/sidecar.log")).unwrap_or_default()
    }

    /// The end of the plugin's log.
    fn log_tail(&self) -> String {
        let log = self.node.log();
        // Without what the pair does.
        let theirs = |l: &&str| l.contains("name=good") || l.contains("reason=\"retired\"");
        let lines: Vec<&str> = log.lines().filter(|l| !theirs(l)).collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// Who is counted.
    fn processes(&self) -> anyhow::Result<Vec<(String, u32)>> {
        let mut counted =
            vec![("node".to_owned(), self.node.plugin_pid()), ("broker".to_owned(), self.node.broker_pid()?)];
        counted.push(("gpu worker".to_owned(), self.worker()?));
        for pod in [&self.rough, &self.stranger, &self.producer, &self.consumer] {
            if let Ok(pid) = pod.sidecar_pid() {
                counted.push((format!("sidecar of {}", pod.name), pid));
            }
        }
        Ok(counted)
    }

    fn counts(&self) -> anyhow::Result<Vec<(String, usize)>> {
        Ok(self
            .processes()?
            .into_iter()
            .map(|(name, pid)| (name, descriptors(pid).map_or(0, |l| l.len())))
            .collect())
    }

    /// The counts, once they have not changed for a while: probes of the start are over then.
    pub(crate) fn settled(&self) -> anyhow::Result<Vec<(String, usize)>> {
        let (mut last, mut looks) = (self.counts()?, 0);
        wait::until(PATIENCE, "the counts of descriptors settle", || {
            let now = self.counts()?;
            looks = if now == last { looks + 1 } else { 0 };
            last = now;
            Ok((looks >= 20).then(|| last.clone()))
        })
    }

    fn wait_for_no_more_than(&self, before: &[(String, usize)]) -> anyhow::Result<()> {
        let fine = |now: &[(String, usize)]| now.iter().zip(before).all(|(n, b)| n.1 <= b.1);
        let waited =
            wait::until(PATIENCE, "no descriptor is left over", || Ok(fine(&self.counts()?).then_some(())));
        waited.with_context(|| {
            let now = self.counts().unwrap_or_default();
            let open = self.node.broker_pid().and_then(descriptors).unwrap_or_default();
            format!("before: {before:?}\nnow: {now:?}\nbroker: {open:?}\n{}", self.log_tail())
        })
    }

    /// Waits until nobody holds simulated GPU memory.
    pub(crate) fn wait_for_free_memory(&self) -> anyhow::Result<()> {
        let Some(device) = self.node.gpu.device_folder() else { return Ok(()) };
        Ok(dump::wait_until_free(device, Instant::now() + PATIENCE)?)
    }
}

/// What a process has open.
fn descriptors(pid: u32) -> anyhow::Result<Vec<PathBuf>> {
    let folder = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("list {folder}"))?.flatten();
    Ok(entries.map(|e| std::fs::read_link(e.path()).unwrap_or_default()).collect())
}

/// The numbers of what a process has open.
pub(crate) fn descriptor_numbers(pid: u32) -> anyhow::Result<Vec<u64>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    Ok(entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// Checks that a refusal carries this code.
#[track_caller]
pub(crate) fn expect_code(refusal: &Refusal, code: Code) {
    assert_eq!(refusal.code(), code, "{refusal}");
}

/// Checks that an outcome is a refusal with this code.
#[track_caller]
pub(crate) fn refused_with<T: std::fmt::Debug>(outcome: Result<T, Refusal>, code: Code) {
    let found = outcome.as_ref().map_err(Refusal::code);
    assert!(matches!(found, Err(found) if found == code), "{outcome:?} instead of {code}");
}

pub(crate) fn fill(app: &mut App) -> anyhow::Result<()> {
    let memory = "memory".to_owned();
    app.done(&Command::Fill { memory, bytes: BYTES, kind: MemoryKind::Vmm, word: WORD })
}

/// Publishes the application's memory, and gives the buffer's id back.
pub(crate) fn publish(app: &mut App, name: &str) -> anyhow::Result<String> {
    let command = Command::Publish { memory: "memory".to_owned(), name: name.to_owned() };
    app.expect(&command, |answer| match answer {
        Answer::Published { id, .. } => Ok(id),
        other => Err(other),
    })
}

/// A command to acquire by name, as `lease`.
pub(crate) fn acquire(name: &str, newer_than: u64, wait: Duration) -> Command {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let (name, lease) = (Some(name.to_owned()), "lease".to_owned());
    Command::Acquire { name, id: None, newer_than, wait_ms, lease, announce: false }
}

/// Acquires by name, as `lease`.
pub(crate) fn acquired(app: &mut App, name: &str) -> anyhow::Result<()> {
    app.expect(&acquire(name, 0, PATIENCE), |answer| match answer {
        Answer::Acquired { .. } => Ok(()),
        other => Err(other),
    })
}

/// Checks that the leased buffer holds what was filled in.
pub(crate) fn verify(app: &mut App) -> anyhow::Result<()> {
    let command = Command::Verify { lease: "lease".to_owned(), word: WORD };
    app.expect(&command, |answer| match answer {
        Answer::Verified { wrong: 0, words } if words == BYTES / 4 => Ok(()),
        other => Err(other),
    })
}

/// Waits until a path is a socket that somebody listens on.
pub(crate) fn wait_for_socket(path: &Path) -> anyhow::Result<()> {
    let what = format!("somebody listens on {}", path.display());
    wait::until(PATIENCE, &what, || Ok(gpu_handoff_protocol::socket::SeqPacket::connect(path).ok())).map(drop)
}

/// Checks a condition, again and again, until it holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    wait::until(PATIENCE, what, || Ok(holds()?.then_some(())))
}
