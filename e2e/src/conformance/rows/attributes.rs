//! What the driver says of a pointer: the ground that classification stands on.

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::{Attribute, Request};

const BYTES: u64 = 4 * MIB;

/// All attributes of a pointer in one line; the start as the distance to it.
fn attributes(puppet: &Puppet, ptr: u64) -> Step<String> {
    let ask = |attribute, mask: u64| match puppet.word(Request::Attribute { attribute, ptr }) {
        Ok(value) => (value & mask).to_string(),
        refused => outcome(&refused),
    };
    let start = match puppet.word(Request::Attribute { attribute: Attribute::RangeStart, ptr }) {
        Ok(start) => format!("-{}", ptr.wrapping_sub(start)),
        refused => outcome(&refused),
    };
    let (word, int, flag) = (u64::MAX, u64::from(u32::MAX), 0xff);
    let facts = [
        ("type", ask(Attribute::MemoryType, int)),
        ("managed", ask(Attribute::IsManaged, flag)),
        ("ordinal", ask(Attribute::DeviceOrdinal, int)),
        ("legacy ipc", ask(Attribute::IsLegacyIpcCapable, flag)),
        ("handle types", ask(Attribute::AllowedHandleTypes, word)),
        ("start", start),
        ("size", ask(Attribute::RangeSize, word)),
        ("mapped", ask(Attribute::Mapped, flag)),
    ];
    // One refusal of everything reads shorter.
    if facts.iter().all(|(_, said)| *said == facts[0].1 && said.starts_with("CUDA_ERROR")) {
        return Ok(format!("all {}", facts[0].1));
    }
    Ok(facts.map(|(name, said)| format!("{name} {said}")).join(", "))
}

fn row(id: &str, says: &str, make: impl Fn(&mut Stage) -> Step<(Puppet, u64)> + 'static) -> [Row; 2] {
    let make = std::rc::Rc::new(make);
    let again = std::rc::Rc::clone(&make);
    [
        Row::api(4, format!("attributes-{id}"), format!("pointer attributes of {says}"), move |stage| {
            let (puppet, ptr) = make(stage)?;
            attributes(&puppet, ptr)
        }),
        Row::api(4, format!("classify-{id}"), format!("classification of {says}"), move |stage| {
            let (puppet, ptr) = again(stage)?;
            puppet.text(Request::Classify { ptr })
        }),
    ]
}

pub(super) fn rows() -> Vec<Row> {
    [simulated(), not_simulated(), of_neighbours()].into_iter().flatten().collect()
}

fn simulated() -> Vec<Row> {
    [
        row("legacy", "cuMemAlloc memory", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes: BYTES })?;
            Ok((solo, ptr))
        }),
        row("legacy-inside", "cuMemAlloc memory, 1 MiB in", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes: BYTES })?;
            Ok((solo, ptr + MIB))
        }),
        row("legacy-small", "4,096 bytes of cuMemAlloc", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes: 4096 })?;
            Ok((solo, ptr))
        }),
        row("legacy-import", "imported legacy memory", |stage| {
            let (exporter, importer) = stage.pair()?;
            let (_, handle) = memory::legacy(&exporter, BYTES)?;
            let ptr = memory::open(&importer, &handle)?;
            Ok((importer, ptr))
        }),
        row("vmm", "exportable vmm memory", |stage| {
            let solo = stage.solo()?;
            let ptr = memory::vmm(&solo, BYTES, true)?.ptr;
            Ok((solo, ptr))
        }),
        row("vmm-inside", "exportable vmm memory, 1 MiB in", |stage| {
            let solo = stage.solo()?;
            let ptr = memory::vmm(&solo, BYTES, true)?.ptr;
            Ok((solo, ptr + MIB))
        }),
        row("vmm-private", "vmm memory made without the descriptor type", |stage| {
            let solo = stage.solo()?;
            let ptr = memory::vmm(&solo, BYTES, false)?.ptr;
            Ok((solo, ptr))
        }),
        row("vmm-import", "imported vmm memory", |stage| {
            let (exporter, importer) = stage.pair()?;
            let (_, fd) = memory::shared_vmm(&exporter, BYTES)?;
            let ptr = memory::import_map(&importer, &fd, BYTES)?.ptr;
            Ok((importer, ptr))
        }),
        row("pool", "memory of an exportable pool", |stage| {
            let solo = stage.solo()?;
            let pool = solo.word(Request::PoolCreate { exportable: true })?;
            let ptr = solo.word(Request::PoolAlloc { pool, bytes: BYTES })?;
            solo.tell(Request::Synchronize)?;
            Ok((solo, ptr))
        }),
        row("reserved", "reserved addresses with nothing mapped", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Reserve { bytes: BYTES })?;
            Ok((solo, ptr))
        }),
        row("freed", "freed cuMemAlloc memory", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes: 64 * MIB })?;
            solo.tell(Request::Free { ptr })?;
            Ok((solo, ptr))
        }),
        row("host", "a host pointer", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::HostPointer)?;
            Ok((solo, ptr))
        }),
        row("null", "the null pointer", |stage| Ok((stage.solo()?, 0))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Kinds of memory that the simulator does not have.
fn not_simulated() -> Vec<Row> {
    let rows = [
        row("managed", "managed memory", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::AllocManaged { bytes: BYTES })?;
            Ok((solo, ptr))
        }),
        row("pinned", "pinned host memory", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::AllocHost { bytes: BYTES })?;
            Ok((solo, ptr))
        }),
    ];
    rows.into_iter().flatten().map(|row| Row { tag: crate::conformance::Tag::Kernel, ..row }).collect()
}

/// An address in the second of two handles that are mapped side by side, as allocators with segments that grow do it.
fn second_of_two(stage: &mut Stage) -> Step<(Puppet, u64)> {
    let solo = stage.solo()?;
    let ptr = solo.word(Request::Reserve { bytes: 2 * BYTES })?;
    for at in [0, BYTES] {
        let handle = solo.word(Request::Create { bytes: BYTES, exportable: true })?;
        solo.tell(Request::Map { ptr: ptr + at, bytes: BYTES, offset: 0, handle })?;
    }
    solo.tell(Request::Allow { ptr, bytes: 2 * BYTES, read_only: false })?;
    Ok((solo, ptr + BYTES + MIB))
}

/// An address in a mapping in the middle of a larger reservation.
fn alone_in_larger(stage: &mut Stage) -> Step<(Puppet, u64)> {
    let solo = stage.solo()?;
    let ptr = solo.word(Request::Reserve { bytes: 3 * BYTES })? + BYTES;
    let handle = solo.word(Request::Create { bytes: BYTES, exportable: true })?;
    solo.tell(Request::Map { ptr, bytes: BYTES, offset: 0, handle })?;
    solo.tell(Request::Allow { ptr, bytes: BYTES, read_only: false })?;
    Ok((solo, ptr + MIB))
}

/// What the driver calls the mapping itself.
fn mapping(puppet: &Puppet, ptr: u64) -> Step<String> {
    let base = puppet.word(Request::Attribute { attribute: Attribute::MappingBase, ptr })?;
    let bytes = puppet.word(Request::Attribute { attribute: Attribute::MappingSize, ptr })?;
    let (from, length) = puppet.words(Request::AddressRange { ptr })?;
    let (base, from) = (ptr.wrapping_sub(base), ptr.wrapping_sub(from));
    Ok(format!("mapping -{base}, {bytes} bytes, address range -{from}, {length} bytes"))
}

fn of_neighbours() -> Vec<Row> {
    let two = "the second of two handles mapped side by side";
    let alone = "a mapping in the middle of a larger reservation";
    let of_two = row("two-handles", two, second_of_two);
    let of_one = row("in-larger", alone, alone_in_larger);
    let mapping_of = |id: &str, says: &str, make: fn(&mut Stage) -> Step<(Puppet, u64)>| {
        Row::api(4, format!("mapping-{id}"), format!("mapping and address range of {says}"), move |stage| {
            let (puppet, ptr) = make(stage)?;
            mapping(&puppet, ptr)
        })
    };
    let mappings =
        [mapping_of("two-handles", two, second_of_two), mapping_of("in-larger", alone, alone_in_larger)];
    of_two.into_iter().chain(of_one).chain(mappings).collect()
}
