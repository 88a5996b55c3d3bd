//! What a legacy handle protects, and ordering between processes without events.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Machine, Running, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;

fn compile(probe: &str) -> Option<(Machine, PathBuf)> {
    match common::header() {
        Ok(header) => {
            let machine = Machine::new();
            let probe = machine.compile(probe, &header);
            Some((machine, probe))
        }
        Err(reason) => {
            common::skip(&reason);
            None
        }
    }
}

/// Starts the owner of exported and secret memory and waits for its handle file.
fn owner(machine: &Machine, probe: &Path, bytes: u64) -> (Running, PathBuf) {
    let meeting = machine.meeting("meeting");
    let file = meeting.join("handles");
    let mut command = machine.command(&[], probe);
    let owner = Running::start(command.arg("owner").env("FORGE_FILE", &file), &meeting.join("owner.log"));
    wait_for("the owner's handles", || {
        std::fs::metadata(&file).is_ok_and(|file| file.len() == bytes).then_some(())
    });
    (owner, file)
}

fn forge(machine: &Machine, probe: &Path, file: &Path) -> String {
    let mut command: Command = machine.command(&[], probe);
    common::output(command.arg("forge").env("FORGE_FILE", file))
}

#[test]
fn a_handle_opens_its_own_bytes_and_survives_many_edits() {
    let Some((machine, probe)) = compile("forge") else { return };
    let (_owner, file) = owner(&machine, &probe, 4 * 64);
    let said = forge(&machine, &probe, &file);
    assert!(said.contains("open pub 0\n"), "{said}");
    assert!(said.contains(" 4194304\n"), "the range is the allocation's: {said}");
    assert!(said.contains("size 4096\n"), "a small allocation's import shows its own bytes only: {said}");
    assert!(said.contains("read 0: words of small1 1024, of small2 (never shared) 0\n"), "{said}");
    // 6,696 of 16,320 on the real driver: bytes that are not looked at, and every other PID.
    let opened = said.split("edits that open something: ").nth(1).and_then(|rest| rest.split(',').next());
    let opened: u32 = opened.unwrap().parse().unwrap();
    assert!((6_000..7_500).contains(&opened), "{said}");
}

#[test]
fn a_computed_handle_opens_exported_memory_and_nothing_else() {
    let Some((machine, probe)) = compile("forge") else { return };
    let (_owner, file) = owner(&machine, &probe, 4 * 64);
    // What the exporter never gave away is the second handle; from the first it is computed by two small counters.
    let handles = std::fs::read(&file).unwrap();
    let (public, secret) = (&handles[..64], &handles[64..128]);
    let mut forged = public.to_vec();
    for (at, by) in [(40, 1_u32), (52, 1)] {
        let word = u32::from_le_bytes(forged[at..at + 4].try_into().unwrap()) + by;
        forged[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    assert_eq!(forged, secret);
}

#[test]
fn memory_that_was_never_exported_is_out_of_reach() {
    let Some((machine, probe)) = compile("forge2") else { return };
    let (_owner, file) = owner(&machine, &probe, 64);
    let said = forge(&machine, &probe, &file);
    assert_eq!(
        said,
        "tries 189 opened 0 never-exported cuMemAlloc memory reached 0, kept VMM memory reached 0\n"
    );
}

#[test]
fn two_processes_order_their_streams_by_a_shared_word() {
    let Some((machine, probe)) = compile("timeline") else { return };
    let said = common::output(&mut machine.command(&[], &probe));
    assert!(said.contains("timeline round trip") && said.trim_end().ends_with("child 0"), "{said}");
}

#[test]
fn thousands_of_exports_stay_quick() {
    let Some((machine, probe)) = compile("sentinel") else { return };
    let mut command = machine.command(&[], &probe);
    let said = common::output(command.env("SIMCUDA_MEMORY_MIB", "8192"));
    assert!(said.contains("2000 exports kept"), "{said}");
    assert!(machine.dump().allocations.is_empty());
}
