//! Faults on demand: a call that hangs, fails or crashes, a GPU that is lost. Armed and disarmed while programs run.
//!
//! Each file in `faults/` of the rendezvous directory is one fault, a [`Fault`] as JSON:
//!
//! ```json
//! {"does": "hang", "call": "cuMemImportFromShareableHandle", "argument": "gpu-worker", "times": 1}
//! ```
//!
//! Write them with [`arm`] or, by hand, with `simcuda-fault`: both also set the word in the machine's book that has every call look
//! there before it does anything. A fault with `times` takes its own file away when it strikes for the last time, which tells that it
//! has.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, Mode, flock};
use serde::{Deserialize, Serialize};

use crate::complain;
use crate::driver::driver;
use crate::error::{CuResult, Result};
use crate::ledger::Ledger;
use crate::measured;
use crate::process::own_pid;

const FOLDER: &str = "faults";
/// Calls that only look something up in a table: they fail when a fault names them, not when it names none.
const TABLES: [&str; 4] = ["cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion", "cuGetProcAddress_v2"];

/// A fault: what happens, and to which calls of which processes. What it does not name it means all of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub does: Action,
    /// The call, as the library exports it: `cuMemMap`, `cuIpcOpenMemHandle_v2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The process, by the number that it has in its own PID namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The file name of the process's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// A word of the process's command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argument: Option<String>,
    /// How often it strikes; always, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It does not return as long as the process lives.
    Hang,
    /// It answers this code and does nothing.
    Fail(u32),
    /// The process ends with SIGSEGV.
    Crash,
    /// The GPU with this minor number is lost while the file is there: calls of processes that see it answer
    /// `CUDA_ERROR_DEVICE_UNAVAILABLE`, what its streams wait for ends so, and it is not there for `cuInit`.
    Lose(usize),
}

impl Fault {
    /// A fault of every call of every process, always.
    pub const fn new(does: Action) -> Self {
        Self { does, call: None, pid: None, program: None, argument: None, times: None }
    }

    /// Of this call only.
    #[must_use]
    pub fn of_call(self, call: &str) -> Self {
        Self { call: Some(call.to_owned()), ..self }
    }

    /// Of processes with this word in their command line only.
    #[must_use]
    pub fn with_argument(self, argument: &str) -> Self {
        Self { argument: Some(argument.to_owned()), ..self }
    }

    /// Of this process only.
    #[must_use]
    pub fn of_pid(self, pid: u32) -> Self {
        Self { pid: Some(pid), ..self }
    }

    /// So often and no more.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    fn is_for(&self, call: &str) -> bool {
        let of_call = self.call.as_deref().map_or(!TABLES.contains(&call), |named| named == call);
        of_call
            && self.pid.is_none_or(|pid| pid == own_pid())
            && self.program.as_deref().is_none_or(|name| program().as_deref() == Some(name))
            && self.argument.as_deref().is_none_or(has_argument)
    }
}

/// Arms a fault in a rendezvous directory under a name of the caller's; one that has the name already is replaced.
///
/// # Errors
///
/// If the folder or the file cannot be made.
pub fn arm(dir: &Path, name: &str, fault: &Fault) -> io::Result<()> {
    let mut book = book(dir)?;
    let folder = dir.join(FOLDER);
    match fs::create_dir(&folder) {
        // Whoever may use the machine may take away a fault that has struck.
        Ok(()) => fs::set_permissions(&folder, fs::metadata(dir)?.permissions())?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let draft = folder.join(format!(".{name}"));
    let mode = fs::metadata(dir)?.permissions().mode() & 0o666;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&draft)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(&serde_json::to_vec(fault)?)?;
    fs::rename(draft, folder.join(name))?;
    book.arm(true).map_err(Into::into)
}

/// The book of a machine, locked.
fn book(dir: &Path) -> io::Result<Ledger> {
    let mode = Mode::from_raw_mode(fs::metadata(dir)?.permissions().mode() & 0o666);
    Ok(Ledger::lock(File::open(dir)?.as_fd(), mode)?)
}

/// Whether a fault is armed: one with `times` is not any more when it has struck so often.
pub fn is_armed(dir: &Path, name: &str) -> bool {
    dir.join(FOLDER).join(name).exists()
}

/// Takes a fault away, if it is there. What hangs goes on hanging.
///
/// # Errors
///
/// If the file cannot be removed.
pub fn disarm(dir: &Path, name: &str) -> io::Result<()> {
    let mut book = book(dir)?;
    let folder = dir.join(FOLDER);
    for gone in [fs::remove_file(folder.join(name)), fs::remove_dir(&folder)] {
        match gone {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                return Err(error);
            }
            _ => {}
        }
    }
    // Nothing is left that a call would have to look for.
    if folder.exists() { Ok(()) } else { book.arm(false).map_err(Into::into) }
}

/// Lets the faults that are armed for a call strike.
pub(crate) fn strike(call: &str) -> Result<()> {
    for path in armed() {
        let Some(fault) = hit(&path, |fault| fault.is_for(call) && applies(fault.does)) else { continue };
        match fault.does {
            Action::Hang => loop {
                std::thread::park();
            },
            Action::Fail(code) => return if code == 0 { Ok(()) } else { Err(CuResult(code)) },
            Action::Crash => crash(),
            Action::Lose(_) => return Err(measured::GPU_LOST),
        }
    }
    Ok(())
}

/// A lost GPU is a matter of those who see it: for `cuInit` it is not there.
fn applies(does: Action) -> bool {
    match does {
        Action::Lose(minor) => driver().is_ok_and(|driver| driver.devices.minors().any(|seen| seen == minor)),
        Action::Hang | Action::Fail(_) | Action::Crash => true,
    }
}

/// Whether a GPU is lost to this process.
pub(crate) fn is_lost(minor: usize) -> bool {
    armed().iter().any(|path| {
        hit(path, |fault| fault.does == Action::Lose(minor) && fault.call.is_none() && fault.is_for("cuInit"))
            .is_some()
    })
}

/// The faults' files; none, without a look, if the book says so.
fn armed() -> Vec<PathBuf> {
    if driver().is_ok_and(|driver| !driver.armed.is_set()) {
        return Vec::new();
    }
    static HERE: OnceLock<PathBuf> = OnceLock::new();
    let folder = HERE.get_or_init(|| crate::config::dir().0.join(FOLDER));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// The fault of a file if it is the wanted one; counts that it struck.
fn hit(path: &Path, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
    let mut file = OpenOptions::new().read(true).write(true).open(path).or_else(|_| File::open(path)).ok()?;
    // Each strike counts once, whoever comes first.
    flock(&file, FlockOperation::LockExclusive).ok()?;
    let there = file.metadata().is_ok_and(|file| file.nlink() > 0);
    let mut text = String::new();
    file.read_to_string(&mut text).ok().filter(|_| there)?;
    let fault: Fault = match serde_json::from_str(&text) {
        Ok(fault) => fault,
        Err(error) => {
            complain(&format!("{} is no fault: {error}", path.display()));
            return None;
        }
    };
    if !wanted(&fault) {
        return None;
    }
    if let Err(error) = count(path, &mut file, &fault) {
        complain(&format!("{} cannot be counted down: {error}", path.display()));
    }
    Some(fault)
}

fn count(path: &Path, file: &mut File, fault: &Fault) -> io::Result<()> {
    match fault.times {
        None => Ok(()),
        Some(0 | 1) => fs::remove_file(path),
        Some(times) => {
            let text = serde_json::to_vec(&fault.clone().times(times - 1))?;
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(&text)
        }
    }
}

fn program() -> Option<String> {
    let path = std::env::current_exe().ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn has_argument(wanted: &str) -> bool {
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    line.split(|&byte| byte == 0).any(|word| word == wanted.as_bytes())
}

/// Ends the process as the driver does when it follows what is no pointer.
pub(crate) fn crash() -> ! {
    // A handler that returns, as Rust's does the first time, does not save the program.
    for _ in 0..2 {
        // SAFETY: raising a signal in the calling thread touches no memory.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::{Action, Fault, arm, disarm, hit, is_armed};

    #[test]
    fn a_fault_is_a_line_of_json() {
        let text = r#"{"does": {"fail": 46}, "call": "cuMemMap", "times": 2}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!(fault, Fault::new(Action::Fail(46)).of_call("cuMemMap").times(2));
        assert!(serde_json::from_str::<Fault>(r#"{"does": "hang", "cal": "cuMemMap"}"#).is_err());
        assert_eq!(serde_json::to_string(&Fault::new(Action::Lose(1))).unwrap(), r#"{"does":{"lose":1}}"#);
    }

    #[test]
    fn a_counted_fault_takes_its_file_away_with_the_last_strike() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults/two");
        arm(dir.path(), "two", &Fault::new(Action::Hang).times(2)).unwrap();
        assert!(hit(&path, |_| false).is_none() && is_armed(dir.path(), "two"));
        assert_eq!(hit(&path, |_| true).unwrap().times, Some(2));
        assert!(is_armed(dir.path(), "two"));
        assert_eq!(hit(&path, |_| true).unwrap().times, Some(1));
        assert!(!is_armed(dir.path(), "two") && hit(&path, |_| true).is_none());
        arm(dir.path(), "always", &Fault::new(Action::Crash)).unwrap();
        assert!(hit(&dir.path().join("faults/always"), |_| true).is_some());
        disarm(dir.path(), "always").unwrap();
        disarm(dir.path(), "always").unwrap();
        assert!(!is_armed(dir.path(), "always"));
    }

    #[test]
    fn a_fault_means_all_that_it_does_not_name() {
        let hang = Fault::new(Action::Hang);
        assert!(hang.is_for("cuMemMap") && !hang.is_for("cuGetErrorName"));
        assert!(hang.clone().of_call("cuGetErrorName").is_for("cuGetErrorName"));
        assert!(!hang.clone().of_call("cuMemMap").is_for("cuMemUnmap"));
        assert!(hang.clone().of_pid(std::process::id()).is_for("cuMemMap"));
        assert!(!hang.clone().of_pid(1).is_for("cuMemMap"));
        assert!(!hang.clone().with_argument("no such word").is_for("cuMemMap"));
        let own = std::env::args().next().unwrap();
        assert!(hang.with_argument(&own).is_for("cuMemMap"));
    }
}
