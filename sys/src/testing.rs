//! What tests of this crate have in common.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the process that is root and has mounts and IPC of its own.
const APART: &str = "GPU_HANDOFF_TEST_APART";

/// Whether this process is root and has mounts and an IPC namespace of its own. Where it has not, the test of this name is
/// run once more, by one that has; where that cannot be, it is said that the test is skipped, which `GPU_HANDOFF_TESTS=all`
/// makes a failure.
pub(crate) fn apart(test: &str) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--ipc", "--propagation", "private"]);
        command
    };
    match unshare().arg("true").output() {
        Ok(output) if output.status.success() => {}
        other => {
            skip(test, &format!("it takes root to make namespaces ({other:?})"));
            return false;
        }
    }
    let own = std::env::current_exe().unwrap();
    let output = unshare().arg(own).args(["--exact", test, "--nocapture"]).env(APART, "1").output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{wrong}");
    pass_on(&wrong);
    false
}

/// Says that a test is skipped, and why.
pub(crate) fn skip(test: &str, why: &str) {
    assert!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{test}: {why}");
    pass_on(&format!("SKIPPED: {test}: {why}\n"));
}

/// Not by a macro: the harness hides what those print in a test that passes.
fn pass_on(line: &str) {
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}

/// A folder that is gone with this.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpu-handoff-sys-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}
