//! The demo: a buffer goes from one pod to another through the real plugin and two sidecars; a stranger is refused;
//! the producer is killed, and everything is cleaned up. Every step is checked, and its time is shown.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_simcuda::dump::{Dump, wait_until};
use gpu_handoff_sys::processes::children;

use crate::agent::{Answer, Command, MemoryKind, now_ns};
use crate::app::App;
use crate::folder::Folder;
use crate::gpu::{Gpu, Wanted};
use crate::node::{Member, Node, PATIENCE};
use crate::pod::{Pod, Walls};

/// The word that the producer fills its buffer with.
const WORD: u32 = 0xC0FF_EE42;

/// What the demo can be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which GPU.
    #[arg(long, value_enum, default_value_t = Wanted::Auto)]
    pub gpu: Wanted,
    /// Size of the buffer, in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub mib: u64,
    /// How the buffer's memory is made.
    #[arg(long, value_enum, default_value_t = MemoryKind::Vmm)]
    pub kind: MemoryKind,
}

/// What has been checked so far.
#[derive(Debug, Default)]
struct Report {
    passed: usize,
    failed: usize,
}

impl Report {
    fn check(&mut self, good: bool, what: &str) {
        let mark = if good { "ok  " } else { "FAIL" };
        println!("  {mark} {what}");
        if good {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }
}

/// Runs the demo; `Ok(false)` where something is not as it should be.
///
/// # Errors
/// When it cannot be run to its end.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let folder = Folder::find()?;
    let begin = Instant::now();
    let gpu = Arc::new(Gpu::find(options.gpu, &folder)?);
    println!("{gpu}");
    let (walls, explained) = Walls::available();
    println!("pods are {explained}\n");
    let mut report = Report::default();
    let scene = Scene::set(&folder, Arc::clone(&gpu), walls)?;
    let left = scene.play(options, &mut report)?;
    report.check(left.processes == 0, &format!("{} processes of the demo are left", left.processes));
    report.check(!left.socket, "the plugin has removed its sockets");
    if let Some(device) = gpu.device_folder() {
        let used = Dump::read(device)?.used();
        report.check(used == 0, &format!("{used} bytes of simulated GPU memory are left"));
    }
    let Report { passed, failed } = report;
    println!("\ndemo: {passed} checks passed, {failed} failed, in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(failed == 0)
}

/// What is still there after everything was stopped.
struct Left {
    processes: usize,
    socket: bool,
}

struct Scene {
    node: Node,
    pods: [Pod; 3],
    producer: App,
    consumer: App,
    stranger: App,
}

impl Scene {
    fn set(folder: &Folder, gpu: Arc<Gpu>, walls: Walls) -> anyhow::Result<Self> {
        let members = [("producer", "weights"), ("consumer", "weights"), ("stranger", "other")];
        let members = members.map(|(pod, group)| Member { pod, group });
        let begin = Instant::now();
        let node = Node::start(folder, gpu, &members)?;
        step(begin, &format!("plugin started for 3 members (pid {})", node.plugin_pid()));
        let mut pods = Vec::new();
        let mut apps = Vec::new();
        for member in &members {
            let begin = Instant::now();
            let pod = Pod::start(&node, member.pod, walls)?;
            let mut app = pod.app(&node)?;
            let (name, group) = app.connect(pod.socket())?;
            step(begin, &format!("pod {name} of group {group}: sidecar ready, application connected"));
            pods.push(pod);
            apps.push(app);
        }
        let (Ok(pods), Ok([producer, consumer, stranger])) =
            (<[Pod; 3]>::try_from(pods), <[App; 3]>::try_from(apps))
        else {
            anyhow::bail!("three pods were started");
        };
        Ok(Self { node, pods, producer, consumer, stranger })
    }

    fn play(mut self, options: &Options, report: &mut Report) -> anyhow::Result<Left> {
        let descriptors = self.node.broker_descriptors()?;
        let id = self.hand_over(options, report)?;
        self.refuse_stranger(&id, report)?;
        self.kill_producer(&id, report)?;
        let node = &self.node;
        let back = crate::wait::until(PATIENCE, "the plugin has closed what the producer left", || {
            let open = node.broker_descriptors()?;
            // The worker's socket came with the first publication; the killed application's connection has gone.
            Ok((open <= descriptors + WORKER_DESCRIPTORS).then_some(open))
        });
        report.check(
            back.is_ok(),
            &match &back {
                Ok(open) => {
                    format!(
                        "the plugin holds no descriptor of it ({descriptors} open before, {open} now, at most \
                         {WORKER_DESCRIPTORS} of them new ways to a gpu worker)"
                    )
                }
                Err(e) => format!("{e:#}"),
            },
        );
        self.strike()
    }

    /// The producer publishes, the consumer acquires and looks at every word.
    fn hand_over(&mut self, options: &Options, report: &mut Report) -> anyhow::Result<String> {
        let bytes = options.mib << 20;
        let fill = Command::Fill { memory: "m".to_owned(), bytes, kind: options.kind, word: WORD };
        let us = self.producer.expect(&fill, |answer| match answer {
            Answer::Done { us } => Ok(us),
            other => Err(other),
        })?;
        println!("\n  producer: {} MiB filled with {WORD:#x} by a GPU operation in {us:.0} µs", options.mib);
        self.consumer.done(&Command::Watch)?;
        let acquire = Command::Acquire {
            name: Some("weights".to_owned()),
            id: None,
            newer_than: 0,
            wait_ms: 10_000,
            lease: "l".to_owned(),
            announce: true,
        };
        self.consumer.tell(&acquire)?;
        anyhow::ensure!(matches!(self.consumer.hear()?, Answer::Waiting), "the consumer announces its wait");
        let publish = Command::Publish { memory: "m".to_owned(), name: "weights".to_owned() };
        let (id, began_ns, publish_us) = self.producer.expect(&publish, |a| match a {
            Answer::Published { id, began_ns, us, .. } => Ok((id, began_ns, us)),
            other => Err(other),
        })?;
        println!("  producer: published as {id} in {publish_us:.0} µs");
        let (got, done_ns) = match self.consumer.hear()? {
            Answer::Acquired { id, done_ns, .. } => (id, done_ns),
            other => anyhow::bail!("the consumer's acquire: {other:?}"),
        };
        let us = done_ns.saturating_sub(began_ns) / 1000;
        report.check(got == id, &format!("consumer: acquired and mapped it {us} µs after the publish began"));
        self.verify(report, "every word of it is what the producer's GPU operation wrote")?;
        Ok(id)
    }

    fn verify(&mut self, report: &mut Report, what: &str) -> anyhow::Result<()> {
        let verify = Command::Verify { lease: "l".to_owned(), word: WORD };
        let (words, wrong) = self.consumer.expect(&verify, |a| match a {
            Answer::Verified { words, wrong } => Ok((words, wrong)),
            other => Err(other),
        })?;
        report.check(words > 0 && wrong == 0, &format!("consumer: {what} ({words} words, {wrong} wrong)"));
        Ok(())
    }

    /// A pod outside the group knows the id, and is told no more than if it did not exist.
    fn refuse_stranger(&mut self, id: &str, report: &mut Report) -> anyhow::Result<()> {
        let acquire = Command::Acquire {
            name: None,
            id: Some(id.to_owned()),
            newer_than: 0,
            wait_ms: 0,
            lease: "l".to_owned(),
            announce: false,
        };
        let (code, text) = self.stranger.expect(&acquire, |a| match a {
            Answer::Refused { code, text } => Ok((code, text)),
            other => Err(other),
        })?;
        report.check(code == "NOT_FOUND", &format!("stranger: {text}"));
        Ok(())
    }

    fn kill_producer(&mut self, id: &str, report: &mut Report) -> anyhow::Result<()> {
        let killed_ns = now_ns();
        self.producer.kill()?;
        let ours =
            |what: &'static str| move |t: &crate::agent::Told| t.what == what && t.id.as_deref() == Some(id);
        let told = self.consumer.await_event("the consumer is told of the death", ours("orphaned"))?;
        let ms = to_ms(told.at_ns, killed_ns);
        let because = told.reason.as_deref() == Some("owner-died");
        let what = format!(
            "kill -9 producer: the consumer was told {ms:.1} ms later that its lease is of an orphan"
        );
        report.check(because && told.leases == Some(1), &what);
        self.verify(report, "the memory it holds is still whole")?;
        let pinned = self.pinned()?;
        let released_ns = now_ns();
        self.consumer.done(&Command::Release { lease: "l".to_owned() })?;
        let gone = self.consumer.await_event("the buffer is gone", ours("gone"))?;
        let ms = to_ms(gone.at_ns, released_ns);
        report.check(true, &format!("consumer: released its lease; the buffer was gone {ms:.1} ms later"));
        self.memory_is_back(pinned, report)
    }

    /// Bytes of simulated memory that are in use.
    fn pinned(&self) -> anyhow::Result<Option<u64>> {
        self.node.gpu.device_folder().map(|device| Ok(Dump::read(device)?.used())).transpose()
    }

    fn memory_is_back(&self, pinned: Option<u64>, report: &mut Report) -> anyhow::Result<()> {
        let (Some(device), Some(pinned)) = (self.node.gpu.device_folder(), pinned) else {
            return Ok(());
        };
        let begin = Instant::now();
        let dump = free(device)?;
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        let what = format!(
            "{pinned} bytes of GPU memory were pinned, {} are {ms:.1} ms after the release",
            dump.used()
        );
        report.check(pinned > 0 && dump.used() == 0, &what);
        Ok(())
    }

    /// Everything ends as an administrator would end it.
    fn strike(self) -> anyhow::Result<Left> {
        let Self { node, pods, producer, consumer, stranger } = self;
        producer.reap()?;
        consumer.finish()?;
        stranger.finish()?;
        let mut pids = Vec::new();
        for pod in pods {
            pids.push(pod.sidecar_pid()?);
            pod.stop()?;
        }
        pids.push(node.plugin_pid());
        let slot = node.slot("producer").join("slot.sock");
        // The broker, and the GPU worker.
        let started = children(node.plugin_pid())?;
        node.stop()?;
        pids.extend(started);
        let alive = |pid: &&u32| Path::new(&format!("/proc/{pid}")).exists();
        Ok(Left { processes: pids.iter().filter(alive).count(), socket: slot.exists() })
    }
}

/// Descriptors that the plugin opens with the first publication: the way to its GPU worker.
const WORKER_DESCRIPTORS: usize = 2;

/// Waits until no memory of the simulated device is in use, or as long as our patience lasts.
fn free(device: &Path) -> anyhow::Result<Dump> {
    let deadline = Instant::now() + Duration::from_secs(5);
    Ok(wait_until(device, deadline, |dump| dump.used() == 0).or_else(|_| Dump::read(device))?)
}

fn to_ms(later: u64, earlier: u64) -> f64 {
    Duration::from_nanos(later.saturating_sub(earlier)).as_secs_f64() * 1e3
}

fn step(begin: Instant, what: &str) {
    println!("  {:>6.1} ms  {what}", begin.elapsed().as_secs_f64() * 1e3);
}
