//! Which namespaces an importer may have apart from the exporter: the measured table, row by row.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Machine, Running};
use std::path::Path;

const BYTES: &str = "67108864";
const OWN_DEV_SHM: &str = r#"mount -t tmpfs t /dev/shm; exec "$0" "$@""#;

/// How the importer is started, and whether it shares `/dev/shm` and UID with the exporter, which only events need.
struct Row {
    name: &'static str,
    wrapper: &'static [&'static str],
    events: bool,
}

const ROWS: &[Row] = &[
    Row { name: "nothing", wrapper: &["env"], events: true },
    Row { name: "ipc", wrapper: &["unshare", "-i"], events: true },
    Row {
        name: "pid, other number",
        wrapper: &["unshare", "-p", "-f", "--kill-child", "--mount-proc"],
        events: true,
    },
    Row { name: "net", wrapper: &["unshare", "-n"], events: true },
    Row {
        name: "mount with own /dev/shm",
        wrapper: &["unshare", "-m", "sh", "-c", OWN_DEV_SHM],
        events: false,
    },
    Row { name: "uts", wrapper: &["unshare", "-u"], events: true },
    Row { name: "user", wrapper: &["unshare", "-U", "-r"], events: true },
    Row {
        name: "uid",
        wrapper: &["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"],
        events: false,
    },
    Row {
        name: "no capabilities",
        wrapper: &["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"],
        events: true,
    },
    Row {
        name: "ipc, pid, net, uts, own /dev/shm",
        wrapper: &[
            "unshare",
            "-m",
            "-i",
            "-p",
            "-n",
            "-u",
            "-f",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            OWN_DEV_SHM,
        ],
        events: false,
    },
];

/// The importer's line about its result, for an exporter and an importer started as told.
fn exchange(machine: &Machine, probe: &Path, kind: &str, from: &[&str], to: &[&str], name: &str) -> String {
    let meeting = machine.meeting(name);
    let mut exporter = machine.command(from, probe);
    let mut exporter =
        Running::start(exporter.args(["export", kind, BYTES]).arg(&meeting), &meeting.join("export.log"));
    let said = common::output(machine.command(to, probe).args(["import", kind]).arg(&meeting));
    std::fs::write(meeting.join("done"), "").unwrap();
    let result = said.lines().find(|line| line.starts_with("RESULT") || line.starts_with("FAIL"));
    if result.is_none() {
        exporter.kill();
    }
    exporter.end();
    result.map_or(said.clone(), |line| line.split_ascii_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

fn expected(kind: &str, events: bool) -> String {
    let result = if kind == "event" && !events { "CUDA_ERROR_MAP_FAILED" } else { "OK" };
    format!("RESULT {kind} {result}")
}

/// The machine and the probe, or nothing where they cannot be had.
fn probe() -> Option<(Machine, std::path::PathBuf)> {
    match common::header() {
        Ok(header) => {
            let machine = Machine::new();
            let probe = machine.compile("ipcprobe", &header);
            Some((machine, probe))
        }
        Err(reason) => {
            common::skip(&reason);
            None
        }
    }
}

#[test]
fn the_namespace_table_holds() {
    let Some((machine, probe)) = probe() else { return };
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        if !common::can_run(row.wrapper) {
            common::skip(&format!("row \"{}\": {:?} is not permitted here", row.name, row.wrapper));
            continue;
        }
        for kind in ["legacy", "event", "vmm", "pool"] {
            let got = exchange(&machine, &probe, kind, &["env"], row.wrapper, &format!("{kind}-{number}"));
            if got != expected(kind, row.events) {
                wrong.push(format!("{} {kind}: {got}", row.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let left = machine.dump();
    assert!(left.allocations.is_empty(), "all ended, so nothing is held: {left:?}");
}

#[test]
fn equal_pid_numbers_are_taken_for_one_process() {
    let Some((machine, probe)) = probe() else { return };
    let first: &[&str] = &["unshare", "-p", "-f", "--kill-child", "--mount-proc"];
    if !common::can_run(first) {
        return common::skip("PID namespaces are not permitted here");
    }
    // The shell takes number 1, so its child is another.
    let later: &[&str] =
        &["unshare", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-c", r#""$0" "$@"; true"#];
    for (kind, same) in [("legacy", false), ("event", false), ("vmm", true), ("pool", true)] {
        let result = if same { "OK" } else { "CUDA_ERROR_INVALID_CONTEXT" };
        let got = exchange(&machine, &probe, kind, first, first, &format!("same-{kind}"));
        assert_eq!(got, format!("RESULT {kind} {result}"));
        let got = exchange(&machine, &probe, kind, first, later, &format!("later-{kind}"));
        assert_eq!(got, format!("RESULT {kind} OK"));
    }
}

#[test]
fn rewriting_the_pid_word_cures_memory_but_not_events() {
    let header = match common::header() {
        Ok(header) => header,
        Err(reason) => return common::skip(&reason),
    };
    let own: &[&str] = &["unshare", "-p", "-f", "--kill-child", "--mount-proc"];
    if !common::can_run(own) {
        return common::skip("PID namespaces are not permitted here");
    }
    let machine = Machine::new();
    let probe = machine.compile("pidfield", &header);
    let meeting = machine.meeting("meeting");
    let mut exporter = machine.command(own, &probe);
    let mut exporter = Running::start(exporter.arg("export").arg(&meeting), &meeting.join("export.log"));
    let said = common::output(machine.command(own, &probe).arg("import").arg(&meeting));
    std::fs::write(meeting.join("done"), "").unwrap();
    exporter.end();
    for line in [
        "mem as given: CUDA_ERROR_INVALID_CONTEXT",
        "mem with word at 8 changed: CUDA_SUCCESS data c0ffee42",
        "event as given: CUDA_ERROR_INVALID_CONTEXT",
        "event with word at 0 changed: CUDA_ERROR_MAP_FAILED",
    ] {
        assert!(said.lines().any(|said| said == line), "{line:?} is missing in:\n{said}");
    }
}
