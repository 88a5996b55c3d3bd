//! The soak: `kill -9` of everybody in turn, many times, at random moments under load, and what is left afterwards.
//!
//! | concern | file |
//! |---|---|
//! | the node, its pods, and who lives through it all | [`stage`] |
//! | applications that die | `applications` |
//! | our own processes that die | `ours` |
//! | simulated memory coming back | `memory` |
//! | what is said to an application | `talk` |
//! | what was measured and what went wrong | [`report`] |

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;

use crate::folder::Folder;
use crate::footprint;
use crate::gpu::Gpu;
use crate::pod::Walls;

mod applications;
mod memory;
mod ours;
pub mod report;
pub mod stage;
mod talk;

use report::Report;
use stage::Stage;

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Victim {
    /// An application that published.
    Producer,
    /// An application that published, and leaves its connection to a child process.
    ProducerWithChild,
    /// An application with leases.
    Consumer,
    /// The GPU worker of the plugin.
    Worker,
    /// A sidecar.
    Sidecar,
    /// The plugin's process that serves the members.
    Broker,
    /// Both of these at the same time.
    SidecarAndBroker,
    /// All of the plugin.
    Plugin,
}

/// What the soak can be told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// How often each victim is killed.
    #[arg(long, default_value_t = 100)]
    pub rounds: usize,
    /// Who is killed, in this order.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "producer,producer-with-child,consumer,worker,sidecar,broker,sidecar-and-broker,plugin"
    )]
    pub victims: Vec<Victim>,
    /// Applications that publish and acquire all the time meanwhile.
    #[arg(long, default_value_t = 4)]
    pub load: usize,
    /// Longest pause between two steps of such an application, in microseconds.
    #[arg(long, default_value_t = 2000)]
    pub load_pause_us: usize,
    /// What random moments and choices begin with.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A time over its target is a failure too. Without this it is only shown: other work on the machine counts.
    #[arg(long)]
    pub assert_times: bool,
    /// Write what was measured to this file as JSON too.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Runs the soak and prints the table; `Ok(false)` where something is not as it should be.
///
/// # Errors
/// When it cannot be run to its end.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let folder = Folder::find()?;
    let json =
        options.json.as_ref().map(File::create).transpose().context("open the file for the figures")?;
    // Only the simulated driver tells who holds which memory.
    let gpu = Gpu::simulated(&folder)?;
    println!("{gpu}");
    let (walls, explained) = Walls::available();
    println!("pods are {explained}");
    println!("seed {}, load average {:.1} before\n", options.seed, footprint::load_average()?);
    let mut report = Report::new(options.seed);
    let mut stage = Stage::set(options, &folder, gpu, walls)?;
    for victim in &options.victims {
        eprintln!("killing {victim:?}, {} rounds", options.rounds);
        for round in 0..options.rounds {
            let outcome = match victim {
                Victim::Producer => stage.kill_producer(round, &mut report),
                Victim::ProducerWithChild => stage.kill_producer_with_child(round, &mut report),
                Victim::Consumer => stage.kill_consumer(round, &mut report),
                Victim::Worker => stage.kill_worker(round, &mut report),
                Victim::Sidecar => stage.kill_sidecar(round, &mut report),
                Victim::Broker => stage.kill_broker(round, &mut report),
                Victim::SidecarAndBroker => stage.kill_sidecar_and_broker(round, &mut report),
                Victim::Plugin => stage.kill_plugin(round, &mut report),
            };
            outcome.with_context(|| {
                format!(
                    "killing {victim:?}, round {round} with seed {}; the plugin's log ends with:\n{}",
                    options.seed,
                    stage.log_end()
                )
            })?;
            report.killed(*victim);
        }
        stage.check_steady(&mut report).with_context(|| format!("after killing {victim:?}"))?;
    }
    stage.strike(&mut report)?;
    println!("{report}");
    if let Some(file) = json {
        serde_json::to_writer_pretty(file, &report)?;
    }
    Ok(report.is_good(options.assert_times))
}
