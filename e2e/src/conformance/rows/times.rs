//! Section 5: what the steps cost. Medians in microseconds; shown, never compared.

use std::os::fd::{AsFd, OwnedFd};

use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{Puppet, Step};
use crate::conformance::stage::Stage;
use crate::conformance::wire::{Request, Timed};
use crate::conformance::{Row, Tag};

const ROUNDS: usize = 100;
const SIZES: [(&str, u64); 2] = [("2m", 2 * MIB), ("64m", 64 * MIB)];

/// `12.3 us`.
pub(super) fn micros(ns: u64) -> String {
    format!("{}.{} us", ns / 1000, ns % 1000 / 100)
}

fn median(puppet: &Puppet, what: Timed, fd: Option<&OwnedFd>, handle: &[u8]) -> Step<String> {
    let request = Request::Time { what, rounds: ROUNDS, handle: handle.to_vec() };
    let (response, _) = puppet.ask(&request, fd.map(AsFd::as_fd))?;
    Ok(micros(response.words.first().copied().unwrap_or(0)))
}

fn row(id: String, says: &str, script: impl Fn(&mut Stage) -> Step<String> + 'static) -> Row {
    Row::new(Tag::Time, 5, format!("time-{id}"), says, script)
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = vec![row("init".into(), "cuInit when already initialised", |stage| {
        median(&stage.solo()?, Timed::Init, None, &[])
    })];
    for (name, bytes) in SIZES {
        for (kept, sentinel) in [("alone", false), ("sentinel", true)] {
            rows.push(row(format!("export-{kept}-{name}"), "exporting fresh vmm memory", move |stage| {
                median(&stage.solo()?, Timed::Export { bytes, sentinel }, None, &[])
            }));
            rows.push(row(format!("close-{kept}-{name}"), "closing the exported descriptor", move |stage| {
                median(&stage.solo()?, Timed::CloseExported { bytes, sentinel }, None, &[])
            }));
        }
        rows.push(row(format!("import-{name}"), "importing a descriptor", move |stage| {
            let (exporter, importer) = stage.pair()?;
            let (mapped, fd) = memory::shared_vmm(&exporter, bytes)?;
            let said = median(&importer, Timed::Import, Some(&fd), &[]);
            memory::unmap(&exporter, mapped)?;
            said
        }));
        rows.push(row(format!("map-{name}"), "reserving, mapping and setting access", move |stage| {
            let (exporter, importer) = stage.pair()?;
            let (mapped, fd) = memory::shared_vmm(&exporter, bytes)?;
            let said = median(&importer, Timed::MapAndAllow { bytes }, Some(&fd), &[]);
            memory::unmap(&exporter, mapped)?;
            said
        }));
        for (step, what) in [("open", Timed::IpcOpen), ("close", Timed::IpcClose)] {
            rows.push(row(
                format!("legacy-{step}-{name}"),
                "opening and closing a legacy handle",
                move |stage| {
                    let (exporter, importer) = stage.pair()?;
                    let (ptr, handle) = memory::legacy(&exporter, bytes)?;
                    let said = median(&importer, what, None, &handle);
                    exporter.tell(Request::Free { ptr })?;
                    said
                },
            ));
        }
        rows.push(row(format!("legacy-get-{name}"), "getting a legacy handle", move |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes })?;
            let said = median(&solo, Timed::IpcGet { ptr }, None, &[]);
            solo.tell(Request::Free { ptr })?;
            said
        }));
    }
    rows
}
