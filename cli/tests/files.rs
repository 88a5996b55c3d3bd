//! The files that the command is given.

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};

const POLICY: &str = "version: gpu-handoff.io/v1\n";
/// How long a command may take that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of a command; nothing where it did not end in that time, and now it has.
fn ended(mut command: Command, patience: Duration) -> Option<Output> {
    let (told, ended) = mpsc::channel();
    let (out, err) = (Stdio::piped(), Stdio::piped());
    // A group of its own: what it started holds its outputs open after it.
    let child = command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
    let group = Pid::from_child(&child);
    let waiter = std::thread::spawn(move || told.send(child.wait_with_output()));
    let output = ended.recv_timeout(patience);
    if output.is_err() {
        kill_process_group(group, Signal::KILL).ok();
    }
    waiter.join().unwrap().ok();
    Some(output.ok()?.unwrap())
}

/// Exit code and what was said, on either output, of the command as a shell in this folder calls it.
fn shell(folder: &Path, script: &str) -> (Option<i32>, String) {
    let mut bash = Command::new("bash");
    bash.current_dir(folder).arg("-c").arg(script).env("GPU_HANDOFF", env!("CARGO_BIN_EXE_gpu-handoff"));
    let Output { status, stdout, stderr } = ended(bash, PATIENCE).unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn a_command_that_waits_ends_with_all_that_it_started() {
    let begin = Instant::now();
    let mut bash = Command::new("bash");
    bash.arg("-c").arg("sleep 90 | cat");
    assert!(ended(bash, Duration::from_millis(100)).is_none());
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn what_is_no_regular_file_is_refused_and_nobody_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    std::fs::write(folder.path().join("policy"), POLICY).unwrap();
    std::fs::write(folder.path().join("pod"), "kind: Pod\n").unwrap();
    for call in [
        "inject --image x -f fifo",
        "inject --image x -f pod --settings fifo",
        "inject --image x -f pod --policy fifo",
        "policy check fifo",
        "policy can-share --file policy -f fifo",
    ] {
        let (code, said) = shell(folder.path(), &format!("exec $GPU_HANDOFF {call}"));
        assert_eq!(code, Some(2), "{call}: {said}");
        assert_eq!(said, "error: read fifo\n  because: it is no regular file\n", "{call}");
    }
}

#[test]
fn what_the_command_is_given_open_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for call in [
        format!("printf '{POLICY}' | $GPU_HANDOFF policy check /dev/stdin"),
        format!("printf '{POLICY}' | $GPU_HANDOFF policy check -"),
        format!("$GPU_HANDOFF policy check <(printf '{POLICY}')"),
        format!("$GPU_HANDOFF policy check /proc/self/fd/7 7< <(printf '{POLICY}')"),
        format!(
            "printf 'kind: Pod' | $GPU_HANDOFF inject --image x -f /dev/stdin --policy <(printf '{POLICY}')"
        ),
    ] {
        let (code, said) = shell(folder.path(), &call);
        assert_eq!(code, Some(0), "{call}: {said}");
    }
}

#[test]
fn bytes_that_are_no_text_are_told_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), [text.as_bytes(), b"# caf\xe9\n"].concat()).unwrap();
    };
    write("policy", POLICY);
    write("settings", "image: x\n");
    // Read as one, and cut into documents.
    write("pods", "\u{feff}kind: Pod\n---\nkind: Pod\n# \u{fc}ber\n");
    std::fs::write(folder.path().join("pod"), "kind: Pod\n").unwrap();
    for (call, code, place) in [
        ("policy check policy", 1, "line 2 column 6"),
        ("inject --image x -f pod --policy policy", 2, "line 2 column 6"),
        ("inject --image x -f pod --settings settings", 2, "line 2 column 6"),
        ("inject --image x -f pods", 2, "line 5 column 6"),
        ("policy can-share --file policy a/b a/c", 2, "line 2 column 6"),
    ] {
        let (found, said) = shell(folder.path(), &format!("exec $GPU_HANDOFF {call}"));
        assert_eq!(found, Some(code), "{call}: {said}");
        assert!(said.contains(&format!("{place}: a byte that is no UTF-8")), "{call}: {said}");
    }
}
