//! The command line of `gpu-handoff-sidecar`.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use gpu_handoff_protocol::{APP_SOCKET_ENV, DEFAULT_APP_SOCKET};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::{door, ready};

/// Environment variable that says what is logged.
const LOG_ENV: &str = "GPU_HANDOFF_LOG";

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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
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
                init_logs(log_format)?;
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
        assert!(read("warn,gpu_handoff_sidecar=trace").is_ok());
        for wrong in ["inof", "info,inof", "gpu_handoff_sidecar=inof", "gpu_handoff_sidecar"] {
            let error = format!("{:#}", read(wrong).expect_err(wrong));
            assert!(error.contains(wrong.rsplit(',').next().unwrap()), "{error}");
        }
    }
}
