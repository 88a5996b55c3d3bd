//! A broker that was taken over: it does what it is told in files of the state folder, `deed-1`, `deed-2`, and so on, one after the other.
//!
//! Built with the feature `taken-over` alone, for tests of what such a broker can do; no image of the product has it, which
//! `e2e/cluster/test-images.sh` checks by [`MARK`]. It has no right and no way that the broker does not have: it is a thread of the
//! broker's, behind the same filter. What came of a deed is a line in the log. Those that there are when the broker starts were
//! another's, which may have died of the last.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::mount_bind;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use rustix::thread::move_into_link_name_space;
use serde::Deserialize;
use tracing::{info, warn};

/// What such a build is known by.
const MARK: &str = "this broker was taken over: it does what files in its state folder say";

/// How often it looks for a deed.
const PAUSE: Duration = Duration::from_millis(10);

/// What it is to try.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Deed {
    /// Send a signal; 0: look whether that would be allowed.
    Signal { pid: i32, signal: i32 },
    /// Mount one folder over another.
    Mount { source: PathBuf, target: PathBuf },
    /// Open a file.
    Open { path: PathBuf, write: bool },
    /// Connect to a socket.
    Connect { path: PathBuf },
    /// Start a program.
    Run { path: PathBuf },
    /// Take another process's view of the files.
    Enter { pid: i32 },
    /// Say something to the node.
    Say { text: String },
}

/// Begins to do what it is told.
///
/// # Errors
/// When there is no thread for that.
pub(crate) fn begin(state: BorrowedFd<'_>) -> io::Result<()> {
    warn!(MARK);
    // It stays open for as long as the broker lives.
    let folder = PathBuf::from(format!("/proc/self/fd/{}", state.as_raw_fd()));
    let mut done = deeds(&folder)?;
    std::thread::Builder::new().name("taken-over".to_owned()).spawn(move || {
        loop {
            for name in deeds(&folder).unwrap_or_default() {
                // One that is still being written does not read as a deed.
                if !done.contains(&name) && take(&folder, &name) {
                    done.insert(name);
                }
            }
            std::thread::sleep(PAUSE);
        }
    })?;
    Ok(())
}

fn deeds(folder: &Path) -> io::Result<BTreeSet<String>> {
    let names = std::fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("deed-")).collect())
}

fn take(folder: &Path, name: &str) -> bool {
    let Ok(text) = std::fs::read(folder.join(name)) else { return false };
    let Ok(deed) = serde_json::from_slice::<Deed>(&text) else { return false };
    info!(name, ?deed, "tried");
    match attempt(deed) {
        Ok(()) => info!(name, "DONE"),
        Err(e) => info!(name, error = %e, "refused"),
    }
    true
}

fn attempt(deed: Deed) -> io::Result<()> {
    let process = |pid| Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput);
    match deed {
        Deed::Signal { pid, signal: 0 } => test_kill_process(process(pid)?)?,
        Deed::Signal { pid, signal } => {
            let signal = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
            kill_process(process(pid)?, signal)?;
        }
        Deed::Mount { source, target } => mount_bind(source, target)?,
        Deed::Open { path, write } => drop(File::options().read(true).write(write).open(path)?),
        Deed::Connect { path } => drop(UnixStream::connect(path)?),
        Deed::Run { path } => drop(std::process::Command::new(path).spawn()?),
        Deed::Enter { pid } => {
            let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
            move_into_link_name_space(namespace.as_fd(), None)?;
        }
        Deed::Say { text } => drop(rustix::io::write(io::stdout().as_fd(), format!("{text}\n").as_bytes())?),
    }
    Ok(())
}
