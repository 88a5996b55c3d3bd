//! What the process tests share: the built library under its real name, compiled probes, a rendezvous directory, waits.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub(crate) mod loaded;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gpu_handoff_simcuda::dump::Dump;
use tempfile::TempDir;

/// Longest wait for anything in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// When a wait that starts now gives up.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// A reason why a test cannot run here: said, or fatal where all tests must run.
pub(crate) fn skip(reason: &str) {
    let all = std::env::var("GPU_HANDOFF_TESTS").is_ok_and(|which| which == "all");
    assert!(!all, "GPU_HANDOFF_TESTS=all, but: {reason}");
    // Not by a macro: the harness hides what those print in a test that passes.
    let line = format!("SKIPPED: {}: {reason}\n", std::thread::current().name().unwrap_or("a test"));
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}

/// The built cdylib: Cargo puts it beside or above the test executable.
pub(crate) fn library() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let name = "libgpu_handoff_simcuda.so";
    let places: Vec<_> = executable.ancestors().skip(1).take(2).map(|dir| dir.join(name)).collect();
    let found = places.iter().find(|path| path.exists()).cloned();
    found.unwrap_or_else(|| {
        panic!("{name} is at none of {places:?}: run `cargo build -p gpu-handoff-simcuda` first")
    })
}

/// The directory with the vendor's `cuda.h`, and a C++ compiler; or why there is none.
pub(crate) fn header() -> Result<PathBuf, String> {
    let dir = std::env::var_os("SIMCUDA_CUDA_H").map(PathBuf::from);
    let dir = dir.ok_or("SIMCUDA_CUDA_H does not name a directory with the vendor's cuda.h")?;
    if !dir.join("cuda.h").exists() {
        return Err(format!("there is no cuda.h in {}", dir.display()));
    }
    let compiler = Command::new("g++").arg("--version").output();
    compiler.map(|_| dir).map_err(|error| format!("g++ does not run: {error}"))
}

/// A simulated machine of its own with the library laid out as programs find it.
pub(crate) struct Machine {
    root: TempDir,
}

impl Machine {
    /// Not in `/dev/shm`, which some of the programs cover with their own.
    pub(crate) fn new() -> Self {
        let root = tempfile::Builder::new().prefix("simcuda-test-").tempdir().unwrap();
        for (name, mode) in [("gpu", 0o777), ("lib", 0o755), ("bin", 0o755)] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::set_permissions(root.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // A copy, not a link: another user must be able to read it wherever the build lies.
        fs::copy(library(), root.path().join("lib/libcuda.so.1")).unwrap();
        symlink("libcuda.so.1", root.path().join("lib/libcuda.so")).unwrap();
        Self { root }
    }

    pub(crate) fn gpu(&self) -> PathBuf {
        self.root.path().join("gpu")
    }

    pub(crate) fn lib(&self) -> PathBuf {
        self.root.path().join("lib")
    }

    /// An empty directory that every user may write.
    pub(crate) fn meeting(&self, name: &str) -> PathBuf {
        let dir = self.root.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        dir
    }

    /// Compiles a probe against the vendor's header and this library.
    pub(crate) fn compile(&self, probe: &str, header: &Path) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probes").join(format!("{probe}.cu"));
        let binary = self.root.path().join("bin").join(probe);
        let mut compiler = Command::new("g++");
        compiler.args(["-x", "c++", "-std=c++17", "-O1", "-w", "-I"]).arg(header).arg("-o").arg(&binary);
        compiler.arg(source).arg("-L").arg(self.lib()).arg("-lcuda");
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "{probe}: {}", String::from_utf8_lossy(&output.stderr));
        binary
    }

    /// A command whose processes see this machine; `wrapper` comes before the program.
    pub(crate) fn command(&self, wrapper: &[&str], program: &Path) -> Command {
        let words: Vec<OsString> = wrapper.iter().map(OsString::from).chain([program.into()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("SIMCUDA_DIR", self.gpu()).env("LD_LIBRARY_PATH", self.lib());
        for variable in
            ["SIMCUDA_MEMORY_MIB", "SIMCUDA_GPUS", "SIMCUDA_MIG", "SIMCUDA_P2P", "CUDA_VISIBLE_DEVICES"]
        {
            command.env_remove(variable);
        }
        command
    }

    pub(crate) fn dump(&self) -> Dump {
        Dump::read(&self.gpu()).unwrap()
    }
}

/// A running program that does not outlive the test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::File::create(log).unwrap();
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        Self(command.spawn().unwrap())
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> i32 {
        let status = wait_for("a program to end", || self.0.try_wait().unwrap());
        status.code().unwrap_or(-1)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already in most tests.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Waits until something has a value.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_for_until(what, deadline(), look)
}

fn wait_for_until<T>(what: &str, deadline: Instant, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> String {
    let output: Output = command.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Whether this user may make these namespaces: tried, not guessed.
pub(crate) fn can_run(wrapper: &[&str]) -> bool {
    Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success())
}
