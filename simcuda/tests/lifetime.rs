//! Who keeps memory alive when its maker dies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Machine, Running, deadline, wait_for};
use gpu_handoff_simcuda::dump::{Dump, wait_until, wait_until_free};
use std::path::{Path, PathBuf};

const BYTES: u64 = 64 << 20;

fn probe() -> Option<(Machine, PathBuf)> {
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

fn start(
    machine: &Machine,
    probe: &Path,
    words: &[&str],
    meeting: &Path,
    more: &[&str],
    log: &str,
) -> Running {
    let mut command = machine.command(&[], probe);
    Running::start(command.args(words).arg(meeting).args(more), &meeting.join(log))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The one allocation of `BYTES`, after its maker's death.
fn orphan(dump: &Dump) -> Option<&gpu_handoff_simcuda::dump::Allocation> {
    dump.allocations.iter().find(|allocation| allocation.bytes == BYTES && !allocation.creator.alive)
}

#[test]
fn an_importers_mapping_keeps_a_dead_exporters_memory() {
    let Some((machine, probe)) = probe() else { return };
    for kind in ["legacy", "vmm"] {
        let meeting = machine.meeting(kind);
        let bytes = BYTES.to_string();
        let mut exporter = start(&machine, &probe, &["export", kind, &bytes], &meeting, &[], "export.log");
        // The importer holds for a second, long enough to look, and then reads again.
        let mut importer = start(&machine, &probe, &["import", kind], &meeting, &["1000"], "import.log");
        wait_for("the importer's mapping", || meeting.join("mapped").exists().then_some(()));
        let dump = machine.dump();
        assert!(
            dump.allocations.iter().any(|allocation| allocation.bytes == BYTES && allocation.creator.alive)
        );
        assert_eq!(dump.device_used(0), dump.used());
        exporter.kill();

        let dump = wait_until(&machine.gpu(), deadline(), |dump| orphan(dump).is_some()).unwrap();
        let held = orphan(&dump).unwrap();
        assert_eq!((held.kind, held.pinned, held.process_less), (kind, true, false));
        assert_eq!(held.creator.comm, "ipcprobe");
        let holder = held.holders.iter().find(|holder| holder.pid == importer.id()).unwrap();
        assert_eq!(holder.mapped_bytes, BYTES);

        assert_eq!(importer.end(), 0);
        let said = text(&meeting.join("import.log"));
        assert!(said.contains("after_hold read CUDA_SUCCESS value c0ffee42"), "{said}");
        if kind == "legacy" {
            assert!(said.contains("reopen CUDA_ERROR_INVALID_HANDLE"), "{said}");
        }
        wait_until_free(&machine.gpu(), deadline()).unwrap();
    }
}

#[test]
fn a_descriptor_alone_keeps_memory_that_no_process_shows() {
    let Some((machine, probe)) = probe() else { return };
    let meeting = machine.meeting("meeting");
    let bytes = BYTES.to_string();
    let mut exporter = start(&machine, &probe, &["export", "vmm", &bytes], &meeting, &[], "export.log");
    let mut keeper = start(&machine, &probe, &["rawhold", "x"], &meeting, &["1000", "serve"], "keeper.log");
    wait_for("the keeper's descriptor", || meeting.join("broker").exists().then_some(()));
    exporter.kill();

    let dump = wait_until(&machine.gpu(), deadline(), |dump| orphan(dump).is_some()).unwrap();
    let held = orphan(&dump).unwrap();
    assert!(held.process_less, "{held:?}");
    let holders: Vec<_> =
        held.holders.iter().map(|holder| (holder.pid, holder.mapped_bytes, holder.descriptors)).collect();
    assert_eq!(holders, [(keeper.id(), 0, 1)]);

    let mut importer = start(&machine, &probe, &["import", "vmm"], &meeting, &[], "import.log");
    importer.end();
    let said = text(&meeting.join("import.log"));
    assert!(said.contains("RESULT vmm OK"), "a later importer reads a dead maker's bytes: {said}");
    assert!(said.contains("readonly_write CUDA_ERROR_INVALID_VALUE"), "{said}");
    wait_for("the keeper's close", || text(&meeting.join("keeper.log")).contains("closed fd").then_some(()));
    assert!(keeper.id() > 0);
    wait_until_free(&machine.gpu(), deadline()).unwrap();
    keeper.kill();
}

#[test]
fn a_broker_without_a_context_checks_a_descriptor() {
    let Some((machine, probe)) = probe() else { return };
    let meeting = machine.meeting("meeting");
    let bytes = BYTES.to_string();
    let _exporter = start(&machine, &probe, &["export", "vmm", &bytes], &meeting, &[], "export.log");
    let mut broker = start(&machine, &probe, &["holdfd", "x"], &meeting, &["0"], "broker.log");
    wait_for("the broker's look", || meeting.join("broker").exists().then_some(()));
    let said = text(&meeting.join("broker.log"));
    for line in [
        "cuInit CUDA_SUCCESS",
        "ctxless_import CUDA_SUCCESS",
        "ctxless_props CUDA_SUCCESS loc.type 1 id 0",
        "ctxless_map(n) CUDA_SUCCESS",
        "ctxless_map(2n) CUDA_ERROR_NOT_SUPPORTED",
        "ctxless_release CUDA_SUCCESS",
    ] {
        assert!(said.contains(line), "{line:?} is missing in:\n{said}");
    }
    broker.kill();
}
