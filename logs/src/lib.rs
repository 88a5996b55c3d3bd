//! How the programs of gpu-handoff write their logs: to standard error, as text or JSON, and what `GPU_HANDOFF_LOG` says.

use std::error::Error;
use std::ffi::OsStr;
use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Environment variable that says what is logged.
const LOG_ENV: &str = "GPU_HANDOFF_LOG";

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

impl LogFormat {
    /// As it is written on a command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Begins to log.
///
/// # Errors
/// When `GPU_HANDOFF_LOG` says nothing that can be read.
pub fn init(format: LogFormat) -> anyhow::Result<()> {
    let filter = filter(std::env::var_os(LOG_ENV).as_deref())
        .with_context(|| format!("{LOG_ENV} does not say what to log"))?;
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}

/// An error and its causes in one line.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Reads what to log; `info` where nothing is said.
fn filter(said: Option<&OsStr>) -> anyhow::Result<EnvFilter> {
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
        let read = |text: &str| filter(Some(OsStr::new(text)));
        assert_eq!(filter(None).unwrap().to_string(), "info");
        assert_eq!(read("").unwrap().to_string(), "info");
        assert_eq!(read("debug").unwrap().to_string(), "debug");
        assert!(read("warn,gpu_handoff_plugin=trace").is_ok());
        for wrong in ["inof", "info,inof", "gpu_handoff_plugin=inof", "gpu_handoff_plugin"] {
            let error = format!("{:#}", read(wrong).expect_err(wrong));
            assert!(error.contains(wrong.rsplit(',').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_chain_names_every_cause() {
        let inner = std::io::Error::other("b");
        assert_eq!(chain(&std::io::Error::other(inner)), "b");
        let error = anyhow::anyhow!("c").context("b").context("a");
        assert_eq!(chain(error.as_ref()), "a: b: c");
    }
}
