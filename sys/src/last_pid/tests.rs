use std::io::Read as _;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;
use crate::isolate::{Isolation, Privilege, isolated_pid};

/// Tells this program, started again as the process that gives up everything, what to do.
const ROLE: &str = "GPU_HANDOFF_LAST_PID_TEST";
/// How long something may take that takes a moment.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process in a PID namespace of its own.
struct Pod {
    keeper: Child,
    pid: u32,
}

impl Pod {
    /// `None`, and it is said that the test is skipped: namespaces cannot be made.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            crate::testing::skip(test, "it takes root to enter namespaces");
            return None;
        }
        let mut command = Command::new("sleep");
        command.arg("600");
        Isolation::new_pod(Privilege::Root).apply(&mut command);
        let keeper = match command.spawn() {
            Ok(keeper) => keeper,
            Err(e) => {
                crate::testing::skip(test, &format!("namespaces cannot be made: {e}"));
                return None;
            }
        };
        let pid = isolated_pid(keeper.id()).unwrap();
        Some(Self { keeper, pid })
    }

    fn pidfd(&self) -> OwnedFd {
        let pid = Pid::from_raw(i32::try_from(self.pid).unwrap()).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).unwrap()
    }

    /// This program again, which runs the test of this name as the process that gives up everything.
    fn helper(&self, test: &str, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("last_pid::tests::{test}"), "--nocapture"]).env(ROLE, role);
        command.stdin(Stdio::from(self.pidfd())).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The number of a process that is started in there.
    fn next(&self) -> u32 {
        let mut command = Command::new("nsenter");
        command.args(["--pid", "--mount", "--target", &self.pid.to_string(), "sh", "-c", "echo $$"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.keeper.kill().unwrap();
        self.keeper.wait().unwrap();
    }
}

/// Does it, as the process that gives up everything, and ends: what the harness would do next it may not.
fn as_helper<const N: usize>(work: impl FnOnce(&LastPid) -> io::Result<[u32; N]>) -> ! {
    let outcome = within(work);
    let text = match outcome {
        Ok(numbers) => format!("={numbers:?}="),
        Err(e) => format!("=failed: {e}="),
    };
    rustix::io::write(std::io::stdout().as_fd(), text.as_bytes()).unwrap();
    // SAFETY: ends this process at once.
    unsafe { libc::_exit(0) }
}

/// What it said.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = text.split('=').nth(1).map(str::to_owned);
    said.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn the_next_process_of_a_namespace_gets_the_number_after_it() {
    let test = "the_next_process_of_a_namespace_gets_the_number_after_it";
    if let Ok(role) = std::env::var(ROLE) {
        let wanted: u32 = role.parse().unwrap();
        as_helper(|last| {
            let before = last.get()?;
            last.set(wanted)?;
            Ok([before, last.get()?])
        });
    }
    let Some(pod) = Pod::new(test) else { return };
    let own = std::fs::read_to_string(FILE).unwrap();
    // The first process of a namespace, and the one that looked.
    assert_eq!(said(&mut pod.helper(test, "20000")), "[2, 20000]");
    assert_eq!(pod.next(), 20_001);
    assert_eq!(said(&mut pod.helper(test, "300")), "[20002, 300]");
    assert_eq!(pod.next(), 301);
    assert_ne!(std::fs::read_to_string(FILE).unwrap().trim(), "300", "our own was {own}");
}

#[test]
fn a_number_that_the_namespace_does_not_have_is_an_error() {
    let test = "a_number_that_the_namespace_does_not_have_is_an_error";
    if std::env::var_os(ROLE).is_some() {
        as_helper(|last| {
            let refused = last.set(1 << 30).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            Err::<[u32; 0], _>(refused)
        });
    }
    let Some(pod) = Pod::new(test) else { return };
    assert_eq!(said(&mut pod.helper(test, "")), "failed: Invalid argument (os error 22)");
    assert_eq!(pod.next(), 3);
}

#[test]
fn a_process_that_has_ended_has_no_namespace_to_enter() {
    let test = "a_process_that_has_ended_has_no_namespace_to_enter";
    if std::env::var_os(ROLE).is_some() {
        as_helper(|_| Ok([]));
    }
    let Some(pod) = Pod::new(test) else { return };
    let mut helper = pod.helper(test, "");
    drop(pod);
    assert_eq!(said(&mut helper), "failed: No such process (os error 3)");
}

#[test]
fn what_is_in_the_namespace_is_of_no_use_to_who_traces_it() {
    let test = "what_is_in_the_namespace_is_of_no_use_to_who_traces_it";
    if std::env::var_os(ROLE).is_some() {
        as_helper(|last| {
            let open = std::fs::File::open("/").unwrap_err();
            assert_eq!(open.raw_os_error(), Some(libc::EPERM));
            // Until it is let go.
            while last.get()? < 1_000 {}
            Ok([])
        });
    }
    let Some(pod) = Pod::new(test) else { return };
    let mut helper = pod.helper(test, "").spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let inside = loop {
        if let Some(inside) = crate::processes::children(helper.id()).unwrap().first().copied() {
            break inside;
        }
        assert!(Instant::now() < deadline, "it does not come");
    };
    let status = std::fs::read_to_string(format!("/proc/{inside}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for set in ["CapPrm:", "CapEff:"] {
        assert_eq!(field(set), ["0000010000000000"], "CAP_CHECKPOINT_RESTORE alone");
    }
    for set in ["CapInh:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (vec!["1".to_owned()], vec!["2".to_owned()]));
    assert_eq!(field("NSpid:").last().unwrap(), "2");
    let root: Vec<_> = std::fs::read_dir(format!("/proc/{inside}/root/")).unwrap().collect();
    assert!(root.is_empty(), "{root:?}");
    let mounts = std::fs::read_to_string(format!("/proc/{inside}/mountinfo")).unwrap();
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    let open = std::fs::read_dir(format!("/proc/{inside}/fd")).unwrap();
    let open = open.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string());
    let open: Vec<_> =
        open.filter(|name| !name.starts_with("pipe:") && name != "anon_inode:[pidfd]").collect();
    // Its own root is not where this was opened.
    assert_eq!(open.len(), 1, "{open:?}");
    assert!(open[0].ends_with("/sys/kernel/ns_last_pid"), "{open:?}");
    let set = |number: u32| format!("echo {number} > {FILE}");
    let mut let_go = Command::new("nsenter");
    let_go.args(["--pid", "--mount", "--target", &pod.pid.to_string(), "sh", "-c", &set(5_000)]);
    assert!(let_go.status().unwrap().success());
    let mut text = String::new();
    helper.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    helper.wait().unwrap();
    assert!(text.contains("=[]="), "{text}");
}
