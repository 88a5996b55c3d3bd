//! Section 7: memory of one GPU in a process on another, where the machine has two.

use std::os::fd::AsFd;

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::place::Place;
use crate::conformance::puppet::{End, Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;

use super::here;

const BYTES: u64 = 64 * MIB;
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// An exporter on GPU 0 and an importer whose device is GPU 1 and which sees what `place` lets it see.
fn two(stage: &mut Stage, place: &Place, ordinal: i32) -> Step<(Puppet, Puppet)> {
    if stage.devices < 2 {
        return Err(End::NotRun("one GPU".into()));
    }
    let importer = stage.initialised(place)?;
    memory::enter(&importer, ordinal)?;
    Ok((stage.own(&here())?, importer))
}

fn rows_for(name: &str, says: &str, place: Place, ordinal: i32) -> Vec<Row> {
    let (legacy, vmm, properties) = (place.clone(), place.clone(), place);
    vec![
        Row::api(
            7,
            format!("peer-legacy-{name}"),
            format!("legacy memory of GPU 0 on GPU 1: {says}"),
            move |stage| {
                let (exporter, importer) = two(stage, &legacy, ordinal)?;
                let (_, handle) = memory::legacy(&exporter, BYTES)?;
                match memory::open(&importer, &handle) {
                    Ok(ptr) => memory::verify(&importer, ptr, BYTES),
                    refused => Ok(outcome(&refused)),
                }
            },
        ),
        Row::api(
            7,
            format!("peer-vmm-{name}"),
            format!("vmm memory of GPU 0 on GPU 1: {says}"),
            move |stage| {
                let (exporter, importer) = two(stage, &vmm, ordinal)?;
                let (_, fd) = memory::shared_vmm(&exporter, BYTES)?;
                match memory::import_map(&importer, &fd, BYTES) {
                    Ok(mapped) => memory::verify(&importer, mapped.ptr, BYTES),
                    refused => Ok(outcome(&refused)),
                }
            },
        ),
        Row::api(
            7,
            format!("peer-properties-{name}"),
            format!("the ordinal that the import has: {says}"),
            move |stage| {
                let (exporter, importer) = two(stage, &properties, ordinal)?;
                let (_, fd) = memory::shared_vmm(&exporter, BYTES)?;
                let handle = memory::import(&importer, fd.as_fd())?;
                importer.text(Request::Properties { handle })
            },
        ),
    ]
}

pub(super) fn rows() -> Vec<Row> {
    [
        rows_for("visible", "both visible", here(), 1),
        rows_for(
            "hidden-by-variable",
            "CUDA_VISIBLE_DEVICES names GPU 1 alone",
            here().with(VISIBLE, "1"),
            0,
        ),
        rows_for("reversed", "CUDA_VISIBLE_DEVICES=1,0", here().with(VISIBLE, "1,0"), 0),
    ]
    .into_iter()
    .flatten()
    .collect()
}
