//! The figures of the throughput mode, as a table and as JSON.

use std::fmt;

use anyhow::Context;
use serde::Serialize;

use super::{Counters, Idle, Memory, Options};
use crate::agent::many::HandedOff;
use crate::bench::report::Percentiles;

/// What one run of clients gave.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Load {
    /// Acquired, closed and released, a second, all clients together.
    pub hand_offs_per_s: f64,
    /// From sending an acquire to the answer to its release.
    #[serde(flatten)]
    pub took: Percentiles,
    /// Processor time of the plugin's processes meanwhile, in percent of one processor.
    pub plugin_cpu_percent: f64,
    /// The same for each hand-off: other work on the machine changes this least.
    pub plugin_cpu_us_per_hand_off: f64,
}

impl Load {
    pub(super) fn of(sum: &HandedOff, share: f64) -> anyhow::Result<Self> {
        let seconds = sum.ended_ns.saturating_sub(sum.began_ns) as f64 / 1e9;
        let took: Vec<f64> = sum.took_ns.iter().map(|ns| f64::from(*ns) / 1e3).collect();
        let hand_offs_per_s = sum.released as f64 / seconds;
        Ok(Self {
            hand_offs_per_s,
            took: Percentiles::of(&took).context("the clients handed nothing off")?,
            plugin_cpu_percent: share * 100.0,
            plugin_cpu_us_per_hand_off: share * 1e6 / hand_offs_per_s,
        })
    }
}

/// The figures for one number of live buffers.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    live_buffers: usize,
    /// What the machine did before the clients began: the load average of a minute.
    load_average_before: f64,
    /// One client alone.
    alone: Load,
    /// All clients together.
    together: Load,
    /// All clients together, many items in a message.
    batched: Load,
    /// Memory of all our processes, in bytes (PSS); the larger of before and after the load, as all memory here but one.
    pss_bytes: u64,
    plugin_pss_bytes: u64,
    /// The plugin's before the load: nobody has leased much yet.
    plugin_pss_before_load_bytes: u64,
    /// The largest sidecar.
    sidecar_pss_bytes: u64,
    /// Processor time of the idle plugin, in percent of one processor.
    idle_cpu_percent: f64,
    /// What the clients counted, and the plugin with them.
    counted: Counters,
}

impl Case {
    pub(super) fn new(
        live_buffers: usize,
        loads: [Load; 3],
        memory: &Memory,
        idle: &Idle,
        counted: Counters,
    ) -> Self {
        let [alone, together, batched] = loads;
        Self {
            live_buffers,
            load_average_before: idle.load_average,
            alone,
            together,
            batched,
            pss_bytes: memory.plugin + memory.sidecars.iter().sum::<u64>(),
            plugin_pss_bytes: memory.plugin,
            plugin_pss_before_load_bytes: idle.memory.plugin,
            sidecar_pss_bytes: memory.sidecars.iter().copied().max().unwrap_or(0),
            idle_cpu_percent: idle.share * 100.0,
            counted,
        }
    }
}

/// All of them. What stands at the top is the worst of the cases.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    gpu: String,
    clients: u64,
    pods: u64,
    batch: u64,
    run_s: f64,
    idle_s: f64,
    /// The hard limit of descriptors of a process here; none: there is no limit.
    descriptor_limit: Option<u64>,
    hand_offs_per_s: f64,
    pss_bytes: u64,
    idle_cpu_percent: f64,
    /// The median hand-off with the most live buffers, in medians with the fewest.
    p50_ratio: Option<f64>,
    p50_ratio_alone: Option<f64>,
    /// What a buffer more costs the plugin, in bytes.
    plugin_bytes_per_buffer: Option<f64>,
    cases: Vec<Case>,
}

impl Report {
    pub(super) fn new(gpu: String, options: &Options, descriptor_limit: Option<u64>) -> Self {
        Self {
            gpu,
            clients: options.clients,
            pods: options.pods,
            batch: options.batch,
            run_s: options.seconds,
            idle_s: options.idle_seconds,
            descriptor_limit,
            hand_offs_per_s: f64::INFINITY,
            pss_bytes: 0,
            idle_cpu_percent: 0.0,
            p50_ratio: None,
            p50_ratio_alone: None,
            plugin_bytes_per_buffer: None,
            cases: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, case: Case) {
        self.hand_offs_per_s = self.hand_offs_per_s.min(case.together.hand_offs_per_s);
        self.pss_bytes = self.pss_bytes.max(case.pss_bytes);
        self.idle_cpu_percent = self.idle_cpu_percent.max(case.idle_cpu_percent);
        self.cases.push(case);
        let fewest = self.cases.iter().min_by_key(|case| case.live_buffers);
        let most = self.cases.iter().max_by_key(|case| case.live_buffers);
        let (Some(few), Some(many)) = (fewest, most) else { return };
        let more = many.live_buffers - few.live_buffers;
        if more > 0 {
            self.p50_ratio = Some(many.together.took.p50_us / few.together.took.p50_us);
            self.p50_ratio_alone = Some(many.alone.took.p50_us / few.alone.took.p50_us);
            let bytes = many.plugin_pss_bytes as f64 - few.plugin_pss_bytes as f64;
            self.plugin_bytes_per_buffer = Some(bytes / more as f64);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} clients in {} pods, {:.1} s a run. One hand-off: acquire, descriptor closed, release; two packets, one \
             item each.\nBatched: {} items a packet, a latency is that of the two packets.\n",
            self.clients, self.pods, self.run_s, self.batch
        )?;
        writeln!(
            f,
            "| live buffers | clients | items | hand-offs/s | p50 µs | p99 µs | plugin's CPU % | µs of it a hand-off | load average before |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
        for case in &self.cases {
            for (clients, items, load) in [
                (1, 1, case.alone),
                (self.clients, 1, case.together),
                (self.clients, self.batch, case.batched),
            ] {
                writeln!(
                    f,
                    "| {} | {clients} | {items} | {:.0} | {:.1} | {:.1} | {:.0} | {:.1} | {:.1} |",
                    case.live_buffers,
                    load.hand_offs_per_s,
                    load.took.p50_us,
                    load.took.p99_us,
                    load.plugin_cpu_percent,
                    load.plugin_cpu_us_per_hand_off,
                    case.load_average_before
                )?;
            }
        }
        writeln!(
            f,
            "\n| live buffers | plugin's processes MiB | of that before the load | largest sidecar MiB | all of ours MiB | idle CPU % of {:.1} s | the plugin's own count, equal to the clients' |",
            self.idle_s
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for case in &self.cases {
            writeln!(
                f,
                "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.3} | {} |",
                case.live_buffers,
                mib(case.plugin_pss_bytes),
                mib(case.plugin_pss_before_load_bytes),
                mib(case.sidecar_pss_bytes),
                mib(case.pss_bytes),
                case.idle_cpu_percent,
                case.counted
            )?;
        }
        if let (Some(together), Some(alone)) = (self.p50_ratio, self.p50_ratio_alone) {
            write!(
                f,
                "\np50 with the most live buffers, in p50 with the fewest: {together:.2} (all clients), {alone:.2} (one)"
            )?;
        }
        if let Some(bytes) = self.plugin_bytes_per_buffer {
            write!(f, "\na buffer more costs the plugin {bytes:.0} bytes")?;
        }
        Ok(())
    }
}
