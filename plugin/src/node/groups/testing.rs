//! What tests of what groups share have in common.

use std::io::Write as _;
use std::process::Command;

use super::*;

/// Set in the process that has mounts of its own.
const APART: &str = "GPU_HANDOFF_TEST_APART";

/// The other side of [`unheard`]: dropped, it is as if the thread had broken off.
pub(in crate::node) struct Unheard {
    asked: Receiver<Ask>,
    _told: watch::Sender<u64>,
}

impl Unheard {
    /// How often it was asked since.
    pub(in crate::node) fn asked(&self) -> usize {
        self.asked.try_iter().count()
    }
}

/// As one whose thread is busy for ever.
pub(in crate::node) fn unheard() -> (Groups, Unheard) {
    let (asks, asked) = sync_channel(limits::GROUP_ASKS);
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let (told, changes) = watch::channel(0);
    (Groups { asks: Some(asks), wake, changes, thread: None }, Unheard { asked, _told: told })
}

/// Whether this process is root and has mounts of its own. Where it has not, the test of this name is run once more, by one
/// that has.
pub(in crate::node) fn apart(test: &str) -> bool {
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
            let why = format!("it takes root to make namespaces ({other:?})");
            assert!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{why}");
            // Not by a macro: the harness hides what those print in a test that passes.
            let _unheard = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
            return false;
        }
    }
    let own = std::env::current_exe().unwrap();
    let output = unshare().arg(own).args(["--exact", test, "--nocapture"]).env(APART, "1").output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{wrong}");
    false
}
