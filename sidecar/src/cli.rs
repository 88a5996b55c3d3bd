//! The command line of `gpu-handoff-sidecar`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use gpu_handoff_logs::LogFormat;
use gpu_handoff_protocol::{APP_SOCKET_ENV, DEFAULT_APP_SOCKET};

use crate::{door, ready};

/// The per-pod agent of gpu-handoff.
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
    /// Be the pod's door.
    Serve(ServeArgs),
    /// Check that an application would reach the daemon, by a real round trip; for the startup probe.
    Ready {
        /// The pod's socket.
        #[arg(long, env = APP_SOCKET_ENV, default_value = DEFAULT_APP_SOCKET)]
        socket: PathBuf,
    },
}

/// How the door is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// The daemon's socket in this pod's slot.
    #[arg(long, env = "GPU_HANDOFF_SLOT", default_value = "/run/gpu-handoff/slot/slot.sock")]
    pub slot: PathBuf,
    /// The pod's socket, which applications connect to.
    #[arg(long, env = APP_SOCKET_ENV, default_value = DEFAULT_APP_SOCKET)]
    pub listen: PathBuf,
}

impl Args {
    /// Does what the command line says.
    ///
    /// # Errors
    /// What kept it from being done.
    pub fn run(self) -> anyhow::Result<()> {
        let Self { mode, log_format } = self;
        match mode {
            Mode::Serve(args) => {
                gpu_handoff_logs::init(log_format)?;
                door::run(&args)
            }
            Mode::Ready { socket } => {
                let welcome = ready::check(&socket)?;
                println!("ready: pod {} in group {}", welcome.pod, welcome.group);
                Ok(())
            }
        }
    }
}
