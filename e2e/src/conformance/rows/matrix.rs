//! Section 1: what an importer may have apart from the exporter.

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::place::Place;
use crate::conformance::puppet::{Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;

/// Size of what is handed over, in bytes.
const BYTES: u64 = 64 * MIB;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Legacy,
    Event,
    Vmm,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Legacy, Kind::Event, Kind::Vmm];

    fn name(self) -> &'static str {
        match self {
            Kind::Legacy => "legacy",
            Kind::Event => "event",
            Kind::Vmm => "vmm",
        }
    }

    /// Hands memory or an event from one puppet to the other. Only the importing step is the row's outcome.
    fn hand_over(self, exporter: &Puppet, importer: &Puppet) -> Step<String> {
        match self {
            Kind::Legacy => {
                let (ptr, handle) = memory::legacy(exporter, BYTES)?;
                let said = legacy(importer, &handle);
                exporter.tell(Request::Free { ptr })?;
                said
            }
            Kind::Event => {
                let handle = exporter.bytes(Request::EventShare)?;
                Ok(outcome(&importer.tell(Request::EventOpen { handle })))
            }
            Kind::Vmm => {
                let (mapped, fd) = memory::shared_vmm(exporter, BYTES)?;
                let said = match memory::import_map(importer, &fd, BYTES) {
                    Ok(there) => {
                        let said = memory::verify(importer, there.ptr, BYTES)?;
                        memory::unmap(importer, there)?;
                        Ok(said)
                    }
                    refused => Ok(outcome(&refused)),
                };
                memory::unmap(exporter, mapped)?;
                said
            }
        }
    }
}

/// Opens a handle and looks at the bytes behind it.
fn legacy(importer: &Puppet, handle: &[u8]) -> Step<String> {
    match memory::open(importer, handle) {
        Ok(ptr) => {
            let said = memory::verify(importer, ptr, BYTES)?;
            importer.tell(Request::IpcClose { ptr })?;
            Ok(said)
        }
        refused => Ok(outcome(&refused)),
    }
}

/// An exporter and an importer that are both process 1 of a PID namespace.
fn both_pid_1(stage: &mut Stage) -> Step<(Puppet, Puppet)> {
    Ok((stage.shared(&Place::pid(), "exporter")?, stage.shared(&Place::pid(), "importer")?))
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        for place in Place::matrix() {
            let id = format!("ns-{}-{}", kind.name(), place.name);
            let says = format!("{} import where the importer's difference is: {}", kind.name(), place.name);
            rows.push(Row::api(1, id, says, move |stage| {
                let exporter = stage.shared(&Place::here(), "exporter")?;
                let importer = stage.shared(&place, "importer")?;
                kind.hand_over(&exporter, &importer)
            }));
        }
        let id = format!("ns-{}-both-pid-1", kind.name());
        let says = format!(
            "{} import between two processes that are both process 1 of their namespace",
            kind.name()
        );
        rows.push(Row::api(1, id, says, move |stage| {
            let (exporter, importer) = both_pid_1(stage)?;
            kind.hand_over(&exporter, &importer)
        }));
    }
    rows.extend(of_numbers());
    rows.push(Row::api(
        1,
        "ns-legacy-both-pid-1-word-changed",
        "the same with another number in the handle's word at byte 8",
        |stage| {
            let (exporter, importer) = both_pid_1(stage)?;
            let (ptr, mut handle) = memory::legacy(&exporter, BYTES)?;
            handle[8..12].copy_from_slice(&100_001_u32.to_le_bytes());
            let said = legacy(&importer, &handle);
            exporter.tell(Request::Free { ptr })?;
            said
        },
    ));
    rows.push(Row::api(
        1,
        "ns-event-both-pid-1-word-changed",
        "an event between two processes 1 with another number in the handle's first word",
        |stage| {
            let (exporter, importer) = both_pid_1(stage)?;
            let mut handle = exporter.bytes(Request::EventShare)?;
            handle[0..4].copy_from_slice(&100_001_u32.to_le_bytes());
            Ok(outcome(&importer.tell(Request::EventOpen { handle })))
        },
    ));
    rows.push(Row::api(
        1,
        "ns-legacy-pid-word-is-pid",
        "the word at byte 8 of a handle is the exporter's number in its own PID namespace",
        |stage| {
            let (exporter, _) = both_pid_1(stage)?;
            let (ptr, handle) = memory::legacy(&exporter, BYTES)?;
            exporter.tell(Request::Free { ptr })?;
            Ok(format!("word {}", super::handles::word(&handle, 8)))
        },
    ));
    rows
}

/// Section 8: it is the numbers that count, whatever they are and however many namespaces there are.
fn of_numbers() -> Vec<Row> {
    let cases = [
        ("pid-1-and-2", "process 1 of a PID namespace to process 2 of another", Place::pid()),
        ("both-pid-2", "process 2 of a PID namespace to process 2 of another", Place::pid_second()),
    ];
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        for (case, says, exporter) in cases.clone() {
            let (id, says) = (format!("number-{}-{case}", kind.name()), format!("{}, {says}", kind.name()));
            rows.push(Row::api(8, id, says, move |stage| {
                let exporter = stage.shared(&exporter, "exporter")?;
                let importer = stage.shared(&Place::pid_second(), "importer")?;
                kind.hand_over(&exporter, &importer)
            }));
        }
    }
    rows
}
