//! Setting the number that the next process of a pod gets: this very program in another mode, which gives up everything
//! else first (`gpu_handoff_sys::last_pid`), and its answer.
//!
//! It is said which part of the group's grid the pod has, and not which numbers: how many numbers there are in the pod's
//! namespace can only be asked within it. They are found out by setting the last one, which the kernel refuses beyond the
//! end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;

use gpu_handoff_sys::isolate::die_with_parent;
use gpu_handoff_sys::last_pid::{self, LastPid};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::ranges::{Grid, SIZES};
use crate::limits;

/// The mode that this program is started in.
const MODE: &str = "pid-seed";

/// What was found, and done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Seeded {
    /// How many numbers there are in the namespace, as far as it is cut: one of [`SIZES`].
    pub pid_max: u32,
    /// The number that was given last.
    pub last: u32,
    /// It was set: the next process gets the first number of the range.
    pub is_set: bool,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The process could not be started.
    #[error("the process that sets the numbers could not be started")]
    Start(#[source] io::Error),
    /// It gave no answer.
    #[error("the process that sets the numbers has not ended within {:?}", limits::PID_SEED_TIME)]
    Late,
    /// It said why.
    #[error("{0}")]
    Failed(String),
    /// Its answer is none.
    #[error("the process that sets the numbers said something else: {0:?}")]
    Strange(String),
}

/// Starts it.
#[derive(Debug, Clone)]
pub struct Seeder {
    program: PathBuf,
}

impl Seeder {
    /// By this program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// Has the namespace of `process`, a pidfd, go on with the numbers that have this index, unless it has come less than
    /// half through them. `pid_max`: what an earlier answer said; without it, it goes on with the first of them in any
    /// case.
    ///
    /// # Errors
    /// See [`SeedError`].
    pub async fn seed(
        &self,
        process: OwnedFd,
        index: u32,
        pid_max: Option<u32>,
    ) -> Result<Seeded, SeedError> {
        let child = self.start(process, index, pid_max).map_err(SeedError::Start)?;
        timeout(limits::PID_SEED_TIME, hear(child)).await.map_err(|_elapsed| SeedError::Late)?
    }

    fn start(&self, process: OwnedFd, index: u32, pid_max: Option<u32>) -> io::Result<Child> {
        let mut command = std::process::Command::new(&self.program);
        command.args([MODE, "--index", &index.to_string()]);
        if let Some(pid_max) = pid_max {
            command.args(["--pid-max", &pid_max.to_string()]);
        }
        // Nothing of ours is to be found in it.
        command.env_clear().current_dir("/");
        command.stdin(Stdio::from(process)).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        Command::from(command).kill_on_drop(true).spawn()
    }
}

async fn hear(mut child: Child) -> Result<Seeded, SeedError> {
    let (mut said, mut complaint) = (Vec::new(), Vec::new());
    let heard = async {
        let no_output = || io::Error::other("it has no output");
        let mut out = child.stdout.take().ok_or_else(no_output)?.take(limits::PID_SEED_BYTES);
        let mut err = child.stderr.take().ok_or_else(no_output)?.take(limits::COMPLAINT_BYTES);
        tokio::try_join!(out.read_to_end(&mut said), err.read_to_end(&mut complaint))?;
        child.wait().await
    };
    let status = heard.await.map_err(|e| SeedError::Failed(e.to_string()))?;
    if !status.success() {
        let complaint = String::from_utf8_lossy(&complaint);
        let why = complaint.lines().last().map(str::trim).filter(|line| !line.is_empty());
        return Err(SeedError::Failed(why.map_or_else(|| status.to_string(), str::to_owned)));
    }
    // Who is in the namespace may have had a hand in it.
    let seeded =
        serde_json::from_slice::<Seeded>(&said).ok().filter(|seeded| SIZES.contains(&seeded.pid_max));
    seeded.ok_or_else(|| SeedError::Strange(String::from_utf8_lossy(&said).into_owned()))
}

/// What the process does: standard input is a pidfd.
///
/// # Errors
/// What kept it from it.
pub fn run(index: u32, pid_max: Option<u32>) -> anyhow::Result<()> {
    let known = pid_max.and_then(|pid_max| Grid::of(pid_max).map(|grid| (pid_max, grid)));
    let [pid_max, last, is_set] = last_pid::within(|last| go_on(last, index, known)).map_err(why)?;
    Ok(serde_json::to_writer(io::stdout().lock(), &Seeded { pid_max, last, is_set: is_set != 0 })?)
}

/// In the namespace. Only system calls are made here, and few of them pass.
fn go_on(last: &LastPid, index: u32, known: Option<(u32, Grid)>) -> io::Result<[u32; 3]> {
    let found = last.get()?;
    if let Some((pid_max, grid)) = known {
        let numbers = grid.numbers(index);
        if numbers.left(found).is_some() {
            return Ok([pid_max, found, 0]);
        }
        match last.set(numbers.before()) {
            // There are fewer by now.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
            set => return set.map(|()| [pid_max, found, 1]),
        }
    }
    for (pid_max, grid) in SIZES.into_iter().filter_map(|size| Some((size, Grid::of(size)?))) {
        match last.set(pid_max - 1) {
            Ok(()) => {
                last.set(grid.numbers(index).before())?;
                return Ok([pid_max, found, 1]);
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::from_raw_os_error(rustix::io::Errno::RANGE.raw_os_error()))
}

fn why(error: io::Error) -> anyhow::Error {
    let is = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
    let context = if is(rustix::io::Errno::RANGE) {
        let least = SIZES[SIZES.len() - 1];
        format!("the pod's PID namespace has fewer than {least} process numbers (/proc/sys/kernel/pid_max)")
    } else {
        "set the last process number of the pod's PID namespace".to_owned()
    };
    anyhow::Error::new(error).context(context)
}
