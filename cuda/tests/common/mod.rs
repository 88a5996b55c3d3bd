//! How these tests run something against a library that they choose: in a process of its own, because a process loads
//! `libcuda.so.1` once. A *role* is an ignored test that the others start by name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gpu_handoff_cuda::{Device, Driver};

/// The driver and its first device.
pub(crate) fn first() -> (Driver, Device) {
    let driver = Driver::load().unwrap();
    (driver, driver.devices().unwrap()[0])
}

/// Runs a role under the simulator, if that is built, and says what it said.
pub(crate) fn run(name: &str) -> Option<Vec<String>> {
    let folder = simulator()?;
    Some(said(role(name, folder.path()).output()))
}

/// Runs an ignored test of this binary in a child process that finds its libraries in `libraries` first.
pub(crate) fn role(name: &str, libraries: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", name, "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", libraries).stdin(Stdio::null());
    command
}

/// Waits for a role and returns the lines that it said, its own and not the test harness's.
#[track_caller]
pub(crate) fn said(output: io::Result<Output>) -> Vec<String> {
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text.lines().filter_map(|line| line.split_once("SAYS ")).map(|(_, said)| said.to_owned()).collect()
}

/// A line for [`said`].
pub(crate) fn say(line: impl std::fmt::Display) {
    println!("SAYS {line}");
}

/// A folder whose `libcuda.so.1` is the simulated driver; `None`, with a word about it, if that is not built.
///
/// # Panics
///
/// Under `GPU_HANDOFF_TESTS=all`, where nothing may be left out.
pub(crate) fn simulator() -> Option<tempfile::TempDir> {
    let name = "libgpu_handoff_simcuda.so";
    let Some(built) = build_folders().into_iter().map(|folder| folder.join(name)).find(|path| path.exists())
    else {
        let how = format!(
            "{name} is in none of {:?}: run `cargo build -p gpu-handoff-simcuda` first",
            build_folders()
        );
        assert!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{how}");
        skipped(&how);
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(built, folder.path().join("libcuda.so.1")).unwrap();
    Some(folder)
}

/// Says that this test does not run here, and why.
pub(crate) fn skipped(reason: &str) {
    // Not by a macro: the harness hides what those print in a test that passes.
    let line = format!("SKIPPED: {}: {reason}\n", std::thread::current().name().unwrap_or("a test"));
    let _unheard = io::stderr().write_all(line.as_bytes());
}

/// Where cargo puts a library that it builds: beside the test binaries, and above them if it was asked for by name.
fn build_folders() -> Vec<PathBuf> {
    std::env::current_exe().unwrap().ancestors().skip(1).take(2).map(Path::to_owned).collect()
}
