//! The benchmark: from "buffer ready" to "readable in the other process", pod to pod through the real plugin and two
//! sidecars with policy and validation, beside the raw driver between two processes of the same pods in the same run.
//!
//! | concern | file |
//! |---|---|
//! | what is measured | [`Case`] |
//! | through gpu-handoff | `ours` |
//! | through the raw driver | `baseline` |
//! | percentiles, table, JSON | [`report`] |
//! | hand-offs that are ordered on the GPU (`--timeline`) | [`timeline`] |
//! | hand-offs a second, memory, processor time (`--throughput`) | [`throughput`] |

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::agent::MemoryKind;
use crate::agent::stream::StreamTimes;
use crate::folder::Folder;
use crate::gpu::{Gpu, Wanted};
use crate::node::{Member, Node};
use crate::pod::{Pod, Walls};

mod baseline;
mod ours;
pub mod report;
pub mod throughput;
pub mod timeline;

use report::{Report, Row};

/// Bytes that a simulated GPU may fill for one case: it is host memory, and filling it takes long.
const SIMULATED_BYTES: u64 = 8 << 30;

/// Rounds of each case before the clock counts: workers start, caches fill.
pub const WARM_UP: usize = 5;

/// Microseconds of each round that counts, from what producer and consumer measured.
#[must_use]
pub fn total_us(mode: Mode, [made, got]: [StreamTimes; 2]) -> Vec<f64> {
    ours::times(mode, &made, got).total
}

/// What the benchmark can be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which GPU.
    #[arg(long, value_enum, default_value_t = Wanted::Auto)]
    pub gpu: Wanted,
    /// Sizes of the buffer, in MiB.
    #[arg(long, value_delimiter = ',', default_value = "2,64,1024")]
    pub mib: Vec<u64>,
    /// Rounds for each case. On a simulated GPU large buffers get fewer; the table says how many.
    #[arg(long, default_value_t = 300, value_parser = rounds)]
    pub rounds: usize,
    /// How long to rest before each round, in microseconds: a case for each. On an idle machine everybody has to be woken
    /// and finds its caches cold; back to back (0) nobody rests.
    #[arg(long, value_delimiter = ',', default_value = "0,2000")]
    pub pause_us: Vec<u64>,
    /// A short run: 2 MiB, 20 rounds, back to back; with `--throughput`: few buffers, half a second each.
    #[arg(long)]
    pub quick: bool,
    /// Measure hand-offs of one slot that two pods use in turn, ordered on the GPU, and how soon a stream goes on whose peer
    /// was killed.
    #[arg(long, conflicts_with = "throughput")]
    pub timeline: bool,
    /// The other mode.
    #[command(flatten)]
    pub throughput: throughput::Options,
    /// Write the figures to this file as JSON too: for each row `kind`, `size` (bytes), `mode`, `pause_us`,
    /// `rounds`, `p50_us` and `p99_us`, and the same of each hop and of the raw driver; with `--throughput` among
    /// others `hand_offs_per_s` and `pss_bytes`.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number from 1 on".to_owned()),
        Ok(rounds) => Ok(rounds),
    }
}

/// What a buffer is like when the clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Just filled: it is exported, published, validated, acquired by a waiting consumer, and mapped.
    Fresh,
    /// Published before: a consumer that has not seen it acquires and maps it.
    Exported,
    /// Leased before by the same consumer: it acquires it again.
    Again,
}

/// One thing that is measured.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// How the memory is made.
    pub kind: MemoryKind,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it is like when the clock starts.
    pub mode: Mode,
    /// How often it is measured.
    pub rounds: usize,
    /// How long everybody rests before each round, in microseconds.
    pub pause_us: u64,
}

/// Runs the benchmark and prints the table.
///
/// # Errors
/// When it cannot be run to its end.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let folder = Folder::find()?;
    let json = options.json.as_ref().map(|path| open(path)).transpose()?;
    let gpu = Arc::new(Gpu::find(options.gpu, &folder)?);
    println!("{gpu}");
    let (walls, explained) = Walls::available();
    println!("pods are {explained}\n");
    if options.throughput.throughput {
        let wanted = options.throughput.clone();
        let wanted = if options.quick { wanted.quick() } else { wanted };
        return tell(&throughput::run(&wanted, &folder, &gpu, walls)?, json, options);
    }
    if options.timeline {
        return tell(
            &timeline::run(timeline::Plan::new(options.quick), &folder, &gpu, walls)?,
            json,
            options,
        );
    }
    tell(&latencies(options, &folder, gpu, walls)?, json, options)
}

/// Prints a report, and writes it where that was asked for.
fn tell(
    report: &(impl Serialize + std::fmt::Display),
    json: Option<File>,
    options: &Options,
) -> anyhow::Result<()> {
    println!("{report}");
    if let (Some(file), Some(path)) = (json, &options.json) {
        serde_json::to_writer_pretty(file, report).with_context(|| format!("write {}", path.display()))?;
        println!("\nwritten to {}", path.display());
    }
    Ok(())
}

fn latencies(options: &Options, folder: &Folder, gpu: Arc<Gpu>, walls: Walls) -> anyhow::Result<Report> {
    let mut bench = Bench::start(folder, Arc::clone(&gpu), walls)?;
    let mut report = Report::new(gpu.to_string());
    for case in cases(options, gpu.is_simulated()) {
        if case.kind == MemoryKind::Legacy {
            // All pods' applications are PID 1: legacy handles need the cure, and that its proof.
            bench.node.wait_for_log("self-test of legacy handles done proven=true")?;
        }
        eprintln!("measuring {} rounds of {}", case.rounds, report::describe(&case));
        let ours = bench.ours(&case)?;
        let raw = bench.baseline(&case)?;
        report.add(Row::new(&case, &ours, raw.as_ref()));
    }
    bench.stop()?;
    Ok(report)
}

/// Opened before anything is measured, so that a wrong path costs no time.
fn open(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("open {} for the figures", path.display()))
}

fn cases(options: &Options, simulated: bool) -> Vec<Case> {
    let (sizes, pauses, rounds) = if options.quick {
        (vec![2], vec![0], 20)
    } else {
        (options.mib.clone(), options.pause_us.clone(), options.rounds)
    };
    let mut cases = Vec::new();
    for kind in [MemoryKind::Vmm, MemoryKind::Legacy] {
        for (mib, pause_us) in sizes.iter().flat_map(|mib| pauses.iter().map(move |pause| (mib, *pause))) {
            for mode in [Mode::Fresh, Mode::Exported, Mode::Again] {
                let bytes = mib << 20;
                let affordable = usize::try_from(SIMULATED_BYTES / bytes.max(1)).unwrap_or(usize::MAX).max(3);
                let rounds = if simulated && mode == Mode::Fresh { rounds.min(affordable) } else { rounds };
                cases.push(Case { kind, bytes, mode, rounds, pause_us });
            }
        }
    }
    cases
}

/// Two pods, each with one application for gpu-handoff and one for the raw driver.
struct Bench {
    node: Node,
    pods: [Pod; 2],
    ours: ours::Pair,
    baseline: baseline::Pair,
}

impl Bench {
    fn start(folder: &Folder, gpu: Arc<Gpu>, walls: Walls) -> anyhow::Result<Self> {
        let members = ["producer", "consumer"].map(|pod| Member { pod, group: "bench" });
        let node = Node::start(folder, gpu, &members)?;
        // Once a boot, and in the driver's way meanwhile.
        node.wait_for_log("self-test of legacy handles done")?;
        let pods = [Pod::start(&node, "producer", walls)?, Pod::start(&node, "consumer", walls)?];
        let ours = ours::Pair::start(&node, &pods)?;
        let baseline = baseline::Pair::start(&node, &pods)?;
        Ok(Self { node, pods, ours, baseline })
    }

    fn ours(&mut self, case: &Case) -> anyhow::Result<ours::Times> {
        self.ours.measure(case)
    }

    fn baseline(&mut self, case: &Case) -> anyhow::Result<Option<baseline::Times>> {
        self.baseline.measure(case)
    }

    fn stop(self) -> anyhow::Result<()> {
        self.ours.stop()?;
        self.baseline.stop()?;
        for pod in self.pods {
            pod.stop()?;
        }
        self.node.stop()
    }
}
