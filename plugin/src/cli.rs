//! The command line of `gpu-handoff-plugin`.

use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gpu_handoff_logs::LogFormat;

use crate::config::Config;
use crate::gpu::self_test::{self, Half};
use crate::{app, gpu};

/// The node daemon of gpu-handoff.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(subcommand)]
    mode: Mode,
    /// How log lines are written to standard error. What is logged: `GPU_HANDOFF_LOG`, such as `info` (where it is
    /// not set) or `debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Serve this node's members.
    Broker(BrokerArgs),
    /// Inspect descriptors for the broker, which starts this itself with the request socket as standard input.
    #[command(hide = true)]
    GpuWorker,
    /// One half of the self-test of legacy handles, which the broker starts itself.
    #[command(hide = true)]
    LegacySelfTest {
        /// Which half.
        #[arg(value_enum)]
        half: Half,
    },
}

/// How the broker is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct BrokerArgs {
    /// Where slots and the daemon's own files are.
    #[arg(long, env = "GPU_HANDOFF_RUN_DIR", default_value = "/run/gpu-handoff")]
    pub run_dir: PathBuf,
    /// The members, for a laptop or bare containers: a JSON file, see the module `members`.
    #[arg(long, env = "GPU_HANDOFF_STATIC_MEMBERS")]
    pub static_members: PathBuf,
    /// The kubelet's socket. Where it exists, a kubelet knows the members, and static ones are refused.
    #[arg(
        long,
        env = "GPU_HANDOFF_KUBELET_SOCKET",
        default_value = "/var/lib/kubelet/device-plugins/kubelet.sock"
    )]
    pub kubelet_socket: PathBuf,
    /// Check the configuration, print it, and end.
    #[arg(long)]
    pub check_config: bool,
}

impl Args {
    /// Does what the command line says.
    ///
    /// # Errors
    /// What kept it from being done.
    pub fn run(self) -> anyhow::Result<()> {
        let Self { mode, log_format } = self;
        match mode {
            Mode::Broker(args) => {
                gpu_handoff_logs::init(log_format)?;
                let check_only = args.check_config;
                let config = Config::try_from(args)?;
                if check_only {
                    println!("{config}");
                    return Ok(());
                }
                app::run(config)
            }
            Mode::GpuWorker => {
                let requests =
                    std::io::stdin().as_fd().try_clone_to_owned().context("take the request socket")?;
                gpu::worker::run(requests).context("serve the broker")
            }
            Mode::LegacySelfTest { half } => self_test::run_half(half),
        }
    }
}
