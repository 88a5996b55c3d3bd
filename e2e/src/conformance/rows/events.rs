//! Section 1, events: what the handle needs from the file system.

use crate::conformance::Row;
use crate::conformance::puppet::outcome;
use crate::conformance::wire::Request;

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::api(1, "event-open-own", "a process opening its own event handle", |stage| {
            let solo = stage.solo()?;
            let handle = solo.bytes(Request::EventShare)?;
            Ok(outcome(&solo.tell(Request::EventOpen { handle })))
        }),
        Row::api(1, "event-open-zeros", "opening an event of 64 zero bytes", |stage| {
            Ok(outcome(&stage.solo()?.tell(Request::EventOpen { handle: vec![0; 64] })))
        }),
        Row::api(1, "event-after-death", "opening an event whose exporter was killed", |stage| {
            let exporter = stage.own(&super::here())?;
            let importer = stage.shared(&super::here(), "importer")?;
            let handle = exporter.bytes(Request::EventShare)?;
            // The event is over before its maker is: one that never happens is another matter.
            exporter.tell(Request::Synchronize)?;
            exporter.kill();
            Ok(outcome(&importer.tell(Request::EventOpen { handle })))
        }),
        Row::kernel(1, "event-file", "files that an exported event makes in /dev/shm", |stage| {
            let exporter = stage.own(&super::here())?;
            exporter.bytes(Request::EventShare)?;
            let pid = exporter.word(Request::Pid)?;
            let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
            let count = names
                .filter(|entry| entry.file_name().to_string_lossy().contains(&format!(".{pid:x}.")))
                .count();
            Ok(format!("{count} named for the process"))
        }),
    ]
}
