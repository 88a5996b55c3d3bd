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

/// Where the importer runs, which can depend on the machine.
#[derive(Debug, Clone)]
enum Seen {
    /// There, with this ordinal for GPU 1.
    In(Place, i32),
    /// Without the device node of GPU 0.
    OwnNode,
}

/// An exporter on GPU 0 and an importer whose device is GPU 1.
fn two(stage: &mut Stage, seen: &Seen) -> Step<(Puppet, Puppet)> {
    if stage.devices < 2 {
        return Err(End::NotRun("one GPU".into()));
    }
    let (place, ordinal) = match seen {
        Seen::In(place, ordinal) => (place.clone(), *ordinal),
        Seen::OwnNode => (Place::without_node(stage.minor_of(0)?), 0),
    };
    let importer = stage.initialised(&place)?;
    memory::enter(&importer, ordinal)?;
    Ok((stage.own(&here())?, importer))
}

/// The bytes at an address that the importer was to get, or why there is none.
fn seen_bytes(importer: &Puppet, ptr: Step<u64>) -> Step<String> {
    match ptr {
        Ok(ptr) => memory::verify(importer, ptr, BYTES),
        refused => Ok(outcome(&refused)),
    }
}

type Exchange = fn(&Puppet, &Puppet) -> Step<String>;

const EXCHANGES: [(&str, &str, Exchange); 5] = [
    ("legacy", "legacy memory of GPU 0 on GPU 1", |exporter, importer| {
        let (_, handle) = memory::legacy(exporter, BYTES)?;
        seen_bytes(importer, memory::open(importer, &handle))
    }),
    ("vmm", "vmm memory of GPU 0 on GPU 1", |exporter, importer| {
        let (_, fd) = memory::shared_vmm(exporter, BYTES)?;
        seen_bytes(importer, memory::import_map(importer, &fd, BYTES).map(|mapped| mapped.ptr))
    }),
    ("properties", "the ordinal that the import has", |exporter, importer| {
        let (_, fd) = memory::shared_vmm(exporter, BYTES)?;
        match memory::import(importer, fd.as_fd()) {
            Ok(handle) => importer.text(Request::Properties { handle }),
            refused => Ok(outcome(&refused)),
        }
    }),
    ("pool", "pool memory of GPU 0 on GPU 1", |exporter, importer| {
        let (fd, data) = memory::pooled(exporter, BYTES)?;
        seen_bytes(importer, memory::import_pooled(importer, &fd, data))
    }),
    ("event", "an event of GPU 0 on GPU 1", |exporter, importer| {
        let handle = exporter.bytes(Request::EventShare)?;
        Ok(outcome(&importer.tell(Request::EventOpen { handle })))
    }),
];

fn of_reach() -> Vec<Row> {
    let in_place = |place: Place, ordinal| Seen::In(place, ordinal);
    let views = [
        ("visible", "both visible", in_place(here(), 1)),
        (
            "hidden-by-variable",
            "CUDA_VISIBLE_DEVICES names GPU 1 alone",
            in_place(here().with(VISIBLE, "1"), 0),
        ),
        ("reversed", "CUDA_VISIBLE_DEVICES=1,0", in_place(here().with(VISIBLE, "1,0"), 0)),
        ("hidden-by-node", "only the device node of GPU 1 is there", Seen::OwnNode),
    ];
    let mut rows = Vec::new();
    for (view, means, seen) in views {
        for (kind, what, exchange) in EXCHANGES {
            let seen = seen.clone();
            rows.push(Row::api(7, format!("peer-{kind}-{view}"), format!("{what}: {means}"), move |stage| {
                let (exporter, importer) = two(stage, &seen)?;
                exchange(&exporter, &importer)
            }));
        }
    }
    rows
}

/// How many devices a process with these variables sees, and which of GPU 0 and GPU 1 they are.
fn order(stage: &mut Stage, place: &Place) -> Step<String> {
    if stage.devices < 2 {
        return Err(End::NotRun("one GPU".into()));
    }
    let all = stage.initialised(&here())?;
    let known: Vec<String> = (0..2).map(|device| all.text(Request::Uuid { device })).collect::<Step<_>>()?;
    let puppet = stage.fresh(place)?;
    if let Err(end) = puppet.tell(Request::Init) {
        return Ok(format!("cuInit: {end}"));
    }
    let count = i32::try_from(puppet.word(Request::DeviceCount)?).unwrap_or(0);
    let seen: Vec<String> = (0..count)
        .map(|device| {
            let uuid = puppet.text(Request::Uuid { device })?;
            let gpu = known.iter().position(|known| *known == uuid);
            Ok(gpu.map_or_else(|| "another".to_owned(), |gpu| format!("GPU {gpu}")))
        })
        .collect::<Step<_>>()?;
    Ok(if seen.is_empty() { "none".into() } else { seen.join(", ") })
}

/// `CUDA_VISIBLE_DEVICES` in what spellings; the names of GPUs are the machine's.
fn of_the_variable() -> Vec<Row> {
    let fixed = |id: &str, value: &'static str| {
        Row::api(
            7,
            format!("visible-{id}"),
            format!("what CUDA_VISIBLE_DEVICES={value} shows"),
            move |stage| order(stage, &here().with(VISIBLE, value)),
        )
    };
    let named = |id: &str, says: &str, value: fn([String; 2]) -> String| {
        Row::api(
            7,
            format!("visible-{id}"),
            format!("what CUDA_VISIBLE_DEVICES shows: {says}"),
            move |stage| {
                if stage.devices < 2 {
                    return Err(End::NotRun("one GPU".into()));
                }
                let puppet = stage.initialised(&here())?;
                let uuids = [0, 1].map(|device| puppet.text(Request::Uuid { device }));
                let [first, second] = uuids;
                order(stage, &here().with(VISIBLE, value([first?, second?])))
            },
        )
    };
    vec![
        fixed("reversed", "1,0"),
        fixed("ended", "1,-1,0"),
        fixed("twice", "1,1"),
        fixed("nothing", ""),
        named("uuids", "the UUIDs of GPU 1 and GPU 0", |[first, second]| format!("{second},{first}")),
        named("uuid-shortened", "the UUID of GPU 1 without its last two digits", |[first, second]| {
            // Where the GPUs differ in those digits alone, as simulated ones do, that names neither.
            let short = &second[..second.len() - 2];
            if first.starts_with(short) { second } else { short.to_owned() }
        }),
        named("uuid-and-number", "the UUID of GPU 1, then 0", |[_, second]| format!("{second},0")),
        named("uuid-unknown", "a UUID that no GPU has", |_| {
            "GPU-00000000-0000-0000-0000-00000000ffff".to_owned()
        }),
    ]
}

fn of_pairs() -> Vec<Row> {
    let pair = |id: &str, says: &str, from, to| {
        Row::api(7, id, says, move |stage| {
            if stage.devices < 2 {
                return Err(End::NotRun("one GPU".into()));
            }
            stage.initialised(&here())?.text(Request::Peer { from, to })
        })
    };
    vec![
        pair("pair-attributes", "peer attributes of GPU 0 to GPU 1", 0, 1),
        pair("pair-attributes-back", "peer attributes of GPU 1 to GPU 0", 1, 0),
        pair("pair-attributes-same", "peer attributes of a GPU to itself", 0, 0),
        pair("pair-attributes-unknown", "peer attributes of GPU 0 to a number that no GPU has", 0, 99),
        Row::api(7, "seen-without-node", "what a process sees without the device node of GPU 0", |stage| {
            if stage.devices < 2 {
                return Err(End::NotRun("one GPU".into()));
            }
            let place = Place::without_node(stage.minor_of(0)?);
            order(stage, &place)
        }),
    ]
}

pub(super) fn rows() -> Vec<Row> {
    [of_reach(), of_pairs(), of_the_variable()].into_iter().flatten().collect()
}
