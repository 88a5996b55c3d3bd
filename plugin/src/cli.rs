//! The command line of `gpu-handoff-plugin`.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::Config;
use crate::gpu::self_test::{self, Half};
use crate::{app, gpu};

/// Environment variable that says what is logged.
const LOG_ENV: &str = "GPU_HANDOFF_LOG";

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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
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
                init_logs(log_format)?;
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

fn init_logs(format: LogFormat) -> anyhow::Result<()> {
    let filter = log_filter(std::env::var_os(LOG_ENV).as_deref())
        .with_context(|| format!("{LOG_ENV} does not say what to log"))?;
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}

/// Reads what to log; `info` where nothing is said.
fn log_filter(said: Option<&OsStr>) -> anyhow::Result<EnvFilter> {
    let text = said.unwrap_or_default().to_str().context("it is not UTF-8")?;
    if text.is_empty() {
        return Ok(EnvFilter::new("info"));
    }
    // A lone word would otherwise be taken for a module, of which there is nothing to log: a misspelt level.
    for word in text.split(',').filter(|part| !part.contains(['=', '[', ']', '{', '}'])) {
        word.parse::<LevelFilter>().with_context(|| {
            format!("{word:?} is none of off, error, warn, info, debug, trace, and no module=level")
        })?;
    }
    EnvFilter::builder().parse(text).with_context(|| format!("{text:?} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_log_is_read_or_refused() {
        let read = |text: &str| log_filter(Some(OsStr::new(text)));
        assert_eq!(log_filter(None).unwrap().to_string(), "info");
        assert_eq!(read("").unwrap().to_string(), "info");
        assert_eq!(read("debug").unwrap().to_string(), "debug");
        assert!(read("warn,gpu_handoff_plugin=trace").is_ok());
        for wrong in ["inof", "info,inof", "gpu_handoff_plugin=inof", "gpu_handoff_plugin"] {
            let error = format!("{:#}", read(wrong).expect_err(wrong));
            assert!(error.contains(wrong.rsplit(',').next().unwrap()), "{error}");
        }
    }
}
