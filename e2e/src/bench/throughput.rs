//! How many hand-offs a second the node makes, with how much memory and processor time, and whether that depends on how
//! many buffers are live.
//!
//! One hand-off is an acquire and a release, two packets with one item each, the descriptor received and closed by a
//! client process. The node's own counters must agree with what the clients counted, or the run fails.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;

use crate::agent::many::HandedOff;
use crate::agent::{Answer, Command, now_ns};
use crate::app::App;
use crate::folder::Folder;
use crate::footprint;
use crate::gpu::Gpu;
use crate::node::{Member, Node};
use crate::pod::{Pod, Walls};

mod counters;
mod report;

pub use counters::Counters;
pub use report::{Case, Load, Report};

/// Names of pods: there are as many at most.
const PODS: [&str; 16] = [
    "pod-00", "pod-01", "pod-02", "pod-03", "pod-04", "pod-05", "pod-06", "pod-07", "pod-08", "pod-09",
    "pod-10", "pod-11", "pod-12", "pod-13", "pod-14", "pod-15",
];
/// Size of each buffer, in bytes: the granularity of GPU memory. The memory is never touched.
const BUFFER_BYTES: u64 = 2 << 20;
/// Metadata of each buffer, in bytes.
const METADATA_BYTES: usize = 64;
/// Descriptors that the plugin keeps for itself and for slots that stay open, at most.
const PLUGINS_OWN_DESCRIPTORS: u64 = 256 + 1_024;
/// How long the clients have to get ready before they begin together.
const HEAD_START: Duration = Duration::from_millis(20);
/// A run of all clients before anything is measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// What the throughput mode can be told.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Measure hand-offs a second, memory and processor time instead of the latencies of single hand-offs.
    #[arg(long)]
    pub throughput: bool,
    /// Client processes that hand off at the same time.
    #[arg(long, default_value_t = 16, requires = "throughput", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub clients: u64,
    /// Pods that the clients and the publishers are spread over.
    #[arg(long, default_value_t = 4, requires = "throughput", value_parser = clap::value_parser!(u64).range(1..=16))]
    pub pods: u64,
    /// Live buffers: the whole measurement for each of these numbers, on a new node.
    #[arg(long, value_delimiter = ',', default_value = "100,15000", requires = "throughput")]
    pub live_buffers: Vec<u32>,
    /// Items in a message, for the batched figures beside.
    #[arg(long, default_value_t = MESSAGE_ITEMS as u64, requires = "throughput", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub batch: u64,
    /// Seconds that each measurement takes.
    #[arg(long, default_value_t = 5.0, requires = "throughput", value_parser = seconds)]
    pub seconds: f64,
    /// Seconds that the idle node is looked at.
    #[arg(long, default_value_t = 10.0, requires = "throughput", value_parser = seconds)]
    pub idle_seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.05 to 3600".to_owned()),
    }
}

impl Options {
    /// The short run: few buffers, few seconds.
    #[must_use]
    pub fn quick(self) -> Self {
        Self { live_buffers: vec![20, 200], seconds: 0.5, idle_seconds: 0.5, ..self }
    }
}

/// Runs the measurement.
///
/// # Errors
/// When it cannot be run to its end, or the node counted otherwise than the clients.
pub fn run(options: &Options, folder: &Folder, gpu: &Arc<Gpu>, walls: Walls) -> anyhow::Result<Report> {
    let limit = footprint::descriptor_limit();
    let most = options.live_buffers.iter().copied().max().context("a number of live buffers")?;
    println!("{}", descriptors_suffice(limit, most)?);
    let mut report = Report::new(gpu.to_string(), options, limit);
    for live in &options.live_buffers {
        eprintln!("measuring with {live} live buffers");
        report.add(measure(options, usize::try_from(*live)?, folder, gpu, walls)?);
    }
    Ok(report)
}

/// Each live buffer takes a descriptor of the plugin, and one of its publisher's sidecar.
fn descriptors_suffice(limit: Option<u64>, buffers: u32) -> anyhow::Result<String> {
    let needed = u64::from(buffers) + PLUGINS_OWN_DESCRIPTORS;
    let Some(limit) = limit else { return Ok("a process may open any number of descriptors".to_owned()) };
    ensure!(
        needed <= limit,
        "{buffers} live buffers need {needed} descriptors in the plugin, and a process may open {limit} here: raise the \
         hard limit (ulimit -Hn), or ask for fewer with --live-buffers"
    );
    Ok(format!(
        "a process may open {limit} descriptors; the plugin needs {needed} for {buffers} live buffers"
    ))
}

fn measure(
    options: &Options,
    live: usize,
    folder: &Folder,
    gpu: &Arc<Gpu>,
    walls: Walls,
) -> anyhow::Result<Case> {
    let mut stage = Stage::set(options, folder, gpu, walls)?;
    let published = stage.publish(live)?;
    let time = Duration::from_secs_f64(options.seconds);
    let batch = usize::try_from(options.batch)?;
    let mut sum = HandedOff::default();
    let mut run = |stage: &mut Stage, clients: usize, batch: usize, time: Duration| {
        let (load, done) = stage.hand_off(clients, live, batch, time)?;
        sum.granted += done.granted;
        sum.released += done.released;
        sum.refused += done.refused;
        anyhow::Ok(load)
    };
    let all = stage.clients.len();
    run(&mut stage, all, 1, WARM_UP)?;
    let idle = stage.idle(Duration::from_secs_f64(options.idle_seconds))?;
    let alone = run(&mut stage, 1, 1, time)?;
    let together = run(&mut stage, all, 1, time)?;
    let batched = run(&mut stage, all, batch, time)?;
    let memory = stage.memory()?.max(&idle.memory);
    let told = stage.strike()?;
    let counted = Counters { published, granted: sum.granted, released: sum.released, refused: sum.refused };
    ensure!(told == counted, "with {live} live buffers the plugin counted {told}, the clients {counted}");
    Ok(Case::new(live, [alone, together, batched], &memory, &idle, counted))
}

/// Bytes of memory (PSS) of the node's processes.
#[derive(Debug, Clone)]
pub struct Memory {
    /// All processes of the plugin.
    pub plugin: u64,
    /// Each sidecar.
    pub sidecars: Vec<u64>,
}

impl Memory {
    /// The larger of each.
    fn max(&self, other: &Self) -> Self {
        let sidecars = self.sidecars.iter().zip(&other.sidecars).map(|(a, b)| *a.max(b)).collect();
        Self { plugin: self.plugin.max(other.plugin), sidecars }
    }
}

/// The idle node.
struct Idle {
    memory: Memory,
    share: f64,
    load_average: f64,
}

/// A node with pods, publishers and clients.
struct Stage {
    node: Node,
    pods: Vec<Pod>,
    publishers: Vec<App>,
    clients: Vec<App>,
    runs: u64,
}

impl Stage {
    fn set(options: &Options, folder: &Folder, gpu: &Arc<Gpu>, walls: Walls) -> anyhow::Result<Self> {
        let names = PODS.iter().take(usize::try_from(options.pods)?);
        let members: Vec<Member> = names.map(|pod| Member { pod, group: "bench" }).collect();
        let node = Node::start_with(folder, Arc::clone(gpu), &members, &serde_json::json!({}))?;
        let pods: anyhow::Result<Vec<Pod>> =
            members.iter().map(|m| Pod::start(&node, m.pod, walls)).collect();
        let pods = pods?;
        let mut publishers = Vec::new();
        for pod in &pods {
            publishers.push(pod.connected(&node)?);
        }
        let clients = pods.iter().cycle().take(usize::try_from(options.clients)?);
        let clients: anyhow::Result<Vec<App>> = clients.map(|pod| pod.app(&node)).collect();
        Ok(Self { clients: clients?, node, pods, publishers, runs: 0 })
    }

    /// Publishes so many buffers, a part of them in each pod.
    fn publish(&mut self, live: usize) -> anyhow::Result<u64> {
        let mut first = 0;
        let parts = self.publishers.len();
        for (n, app) in self.publishers.iter_mut().enumerate() {
            let count = live / parts + usize::from(n < live % parts);
            let many =
                Command::PublishMany { first, count, bytes: BUFFER_BYTES, metadata_bytes: METADATA_BYTES };
            app.tell(&many)?;
            first += count;
        }
        for app in &mut self.publishers {
            match app.hear()? {
                Answer::Done { .. } => {}
                other => anyhow::bail!("publishing was answered by {other:?}"),
            }
        }
        Ok(u64::try_from(first)?)
    }

    /// Lets the first so many clients hand off at the same time.
    fn hand_off(
        &mut self,
        clients: usize,
        buffers: usize,
        batch: usize,
        time: Duration,
    ) -> anyhow::Result<(Load, HandedOff)> {
        let millis = u64::try_from(time.as_millis())?;
        let begin_ns = now_ns() + u64::try_from(HEAD_START.as_nanos())?;
        self.runs += 1;
        let plugin = footprint::family(self.node.plugin_pid())?;
        let ((n_pods, runs), pods, apps) = ((self.pods.len(), self.runs), &self.pods, &mut self.clients);
        let (share, done) = footprint::processor_share(&plugin, || {
            for (n, app) in apps.iter_mut().take(clients).enumerate() {
                let socket = pods[n % n_pods].socket().to_path_buf();
                let seed = runs << 32 | u64::try_from(n)?;
                app.tell(&Command::HandOff { socket, buffers, batch, begin_ns, millis, seed })?;
            }
            apps.iter_mut()
                .take(clients)
                .map(|app| handed_off(app.hear()?))
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mut sum = HandedOff { began_ns: u64::MAX, ..HandedOff::default() };
        for part in done {
            sum.granted += part.granted;
            sum.released += part.released;
            sum.refused += part.refused;
            sum.began_ns = sum.began_ns.min(part.began_ns);
            sum.ended_ns = sum.ended_ns.max(part.ended_ns);
            sum.took_ns.extend(part.took_ns);
        }
        Ok((Load::of(&sum, share)?, sum))
    }

    /// Looks at the node while nobody asks for anything.
    fn idle(&self, time: Duration) -> anyhow::Result<Idle> {
        let plugin = footprint::family(self.node.plugin_pid())?;
        let (share, ()) = footprint::processor_share(&plugin, || {
            std::thread::sleep(time);
            Ok(())
        })?;
        Ok(Idle { memory: self.memory()?, share, load_average: footprint::load_average()? })
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        let sidecars = self.pods.iter().map(|pod| footprint::pss_bytes(pod.sidecar_pid()?));
        let plugin = footprint::pss_of_all(&footprint::family(self.node.plugin_pid())?)?;
        Ok(Memory { plugin, sidecars: sidecars.collect::<anyhow::Result<_>>()? })
    }

    /// Ends everything; what the plugin has counted.
    fn strike(self) -> anyhow::Result<Counters> {
        let Self { node, pods, publishers, clients, .. } = self;
        for app in clients.into_iter().chain(publishers) {
            app.finish()?;
        }
        for pod in pods {
            pod.stop()?;
        }
        Counters::of_log(&node.stop_and_tell()?)
    }
}

fn handed_off(answer: Answer) -> anyhow::Result<HandedOff> {
    match answer {
        Answer::HandedOff(done) => Ok(done),
        other => anyhow::bail!("handing off was answered by {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_descriptors_that_does_not_suffice_is_a_sentence() {
        assert!(descriptors_suffice(None, 15_000).is_ok());
        assert!(descriptors_suffice(Some(16_280), 15_000).unwrap().contains("16280"));
        let refused = format!("{:#}", descriptors_suffice(Some(4_096), 15_000).unwrap_err());
        assert!(refused.contains("4096") && refused.contains("ulimit"), "{refused}");
    }
}
