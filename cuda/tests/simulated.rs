//! The whole layer against the simulated driver: hand-overs between processes by both kinds, classification, inspection
//! of descriptors that are not what was claimed, and nothing left over.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;

use common::{first, role, run, said, say};
use gpu_handoff_cuda::raw::{PointerAttribute, Raw};
use gpu_handoff_cuda::{
    Access, Device, Driver, InspectError, LegacyAllocation, LegacyHandle, LegacyMapping, Memory,
    NotExportable, Sentinel, SizeProof, Status, VmmAllocation, VmmImport, classify, inspect, ops, status,
    vmm::ExportError,
};

const MIB: u64 = 1 << 20;
const FILL: u32 = 0xC0FF_EE42;

/// The libraries of this process, for a role that it starts itself.
fn libraries() -> PathBuf {
    std::env::var_os("LD_LIBRARY_PATH").unwrap().into()
}

fn word_at(driver: Driver, ptr: u64) -> u32 {
    let mut word = [0; 4];
    ops::read(driver, ptr, &mut word).unwrap();
    u32::from_le_bytes(word)
}

#[test]
fn vmm_memory_reaches_another_process() {
    let Some(lines) = run("role_vmm") else { return };
    assert_eq!(
        lines,
        [
            "importer: device same, 4194304 bytes, first c0ffee42, last c0ffee42",
            "exporter sees 5",
            "drop errors 0"
        ]
    );
}

#[test]
#[ignore = "started by another test"]
fn role_vmm() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let sentinel = Sentinel::hold(driver, device).unwrap();
        let mapping =
            VmmAllocation::create(driver, device, 3 * MIB).unwrap().map(Access::ReadWrite, device).unwrap();
        assert_eq!(mapping.bytes(), 4 * MIB, "rounded up");
        ops::memset_d32(driver, mapping.ptr(), FILL, MIB).unwrap();
        ops::synchronize(driver).unwrap();
        let exported = mapping.export().unwrap();
        assert_eq!((exported.bytes, exported.device), (4 * MIB, device.uuid()));
        let mut importer = role("role_vmm_importer", &libraries());
        importer.stdin(Stdio::from(exported.fd)).env("UUID", device.uuid().to_string());
        said(importer.output()).iter().for_each(say);
        say(format_args!("exporter sees {}", word_at(driver, mapping.ptr() + 4)));
        drop(sentinel);
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
#[ignore = "started by another test"]
fn role_vmm_importer() {
    let (driver, device) = first();
    let _context = device.retain_primary_context().unwrap();
    let import = VmmImport::import(driver, std::io::stdin().as_fd()).unwrap();
    let of = import.device().unwrap().map(|uuid| uuid.to_string());
    let mapping = import.map(4 * MIB, Access::ReadWrite, device).unwrap();
    let (low, high) = (word_at(driver, mapping.ptr()), word_at(driver, mapping.ptr() + mapping.bytes() - 4));
    let same = if of == std::env::var("UUID").ok() { "same" } else { "other" };
    say(format_args!("importer: device {same}, {} bytes, first {low:x}, last {high:x}", mapping.bytes()));
    ops::write(driver, mapping.ptr() + 4, &5_u32.to_le_bytes()).unwrap();
    assert!(matches!(mapping.export(), Err(ExportError::NotExportable(_))), "only its maker exports memory");
    let found = classify(driver, mapping.ptr()).unwrap();
    assert!(
        matches!(found, Memory::NotExportable { why: NotExportable::VmmWithoutDescriptor, .. }),
        "{found:?}"
    );
    assert!(NotExportable::VmmWithoutDescriptor.remedy().contains("let its owner publish it"));
}

#[test]
fn a_hold_exports_memory_that_nobody_maps_any_more() {
    let Some(lines) = run("role_hold") else { return };
    assert_eq!(lines, ["4194304 bytes, first c0ffee42", "drop errors 0"]);
}

#[test]
#[ignore = "started by another test"]
fn role_hold() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let memory = VmmAllocation::create(driver, device, 3 * MIB).unwrap();
        let hold = memory.hold();
        let mapping = memory.map(Access::ReadWrite, device).unwrap();
        ops::memset_d32(driver, mapping.ptr(), FILL, MIB).unwrap();
        ops::synchronize(driver).unwrap();
        let later = mapping.hold();
        drop((hold, mapping));
        let exported = later.export().unwrap();
        assert_eq!((exported.bytes, exported.device), (4 * MIB, device.uuid()));
        drop(later);
        let import = VmmImport::import(driver, exported.fd.as_fd()).unwrap();
        let mapping = import.map(exported.bytes, Access::ReadOnly, device).unwrap();
        say(format_args!("{} bytes, first {:x}", mapping.bytes(), word_at(driver, mapping.ptr())));
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
fn legacy_memory_reaches_another_process() {
    let Some(lines) = run("role_legacy") else { return };
    assert_eq!(lines, ["importer: 4194304 bytes, last c0ffee42", "drop errors 0", "drop errors 0"]);
}

#[test]
#[ignore = "started by another test"]
fn role_legacy() {
    let (driver, device) = first();
    {
        let context = device.retain_primary_context().unwrap();
        assert_eq!(driver.current_context().unwrap(), Some(context.context()));
        assert_eq!(context.context().device(driver).unwrap(), device);
        let memory = LegacyAllocation::create(driver, 4 * MIB).unwrap();
        ops::memset_d32(driver, memory.ptr(), FILL, MIB).unwrap();
        let handle = LegacyHandle::export(driver, memory.ptr() + MIB).unwrap();
        assert_eq!(handle.pid_word(), std::process::id());
        let hex: String = handle.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        said(role("role_legacy_importer", &libraries()).env("HANDLE", hex).output()).iter().for_each(say);
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
#[ignore = "started by another test"]
fn role_legacy_importer() {
    let hex = std::env::var("HANDLE").unwrap();
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    let handle = LegacyHandle::from_bytes(std::array::from_fn(byte));
    let (driver, device) = first();
    {
        let context = device.retain_primary_context().unwrap();
        let mapping = LegacyMapping::open(driver, &handle).unwrap();
        let bytes = mapping.bytes().unwrap();
        say(format_args!("importer: {bytes} bytes, last {:x}", word_at(driver, mapping.ptr() + bytes - 4)));
        // The mapping outlives the context's being current, and is closed in the context it was opened in.
        let guard = context.context().enter(driver).unwrap();
        drop(guard);
        std::thread::scope(|scope| scope.spawn(|| drop(mapping)).join()).unwrap();
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

#[test]
fn memory_is_told_apart() {
    let Some(lines) = run("role_classify") else { return };
    assert_eq!(lines, ["drop errors 0"]);
}

#[test]
#[ignore = "started by another test"]
fn role_classify() {
    let (driver, device) = first();
    {
        let _context = device.retain_primary_context().unwrap();
        let legacy = LegacyAllocation::create(driver, 4 * MIB).unwrap();
        let (base, bytes) = (legacy.ptr(), 4 * MIB);
        assert_eq!(classify(driver, base + 8), Ok(Memory::Legacy { device, base, bytes, offset: 8 }));
        assert!(VmmAllocation::of_pointer(driver, base).is_err());

        let mapping =
            VmmAllocation::create(driver, device, 2 * MIB).unwrap().map(Access::ReadWrite, device).unwrap();
        let (base, bytes) = (mapping.ptr(), 2 * MIB);
        assert_eq!(classify(driver, base + 64), Ok(Memory::Vmm { device, base, bytes, offset: 64 }));
        let again = VmmAllocation::of_pointer(driver, base + 64).unwrap();
        assert_eq!((again.bytes(), again.device()), (bytes, device));
        assert!(again.export().is_ok());
        assert!(LegacyHandle::export(driver, base).is_err());

        let private = VmmAllocation::create_private(driver, device, 2 * MIB)
            .unwrap()
            .map(Access::ReadWrite, device)
            .unwrap();
        let found = classify(driver, private.ptr()).unwrap();
        let range = Some((private.ptr(), 2 * MIB));
        assert_eq!(found, Memory::NotExportable { range, why: NotExportable::VmmWithoutDescriptor });
        assert!(matches!(private.export(), Err(ExportError::NotExportable(_))));

        one_of_several_handles(driver, device);

        let here = (&raw const range).addr() as u64;
        let unknown = Memory::NotExportable { range: None, why: NotExportable::UnknownPointer };
        assert_eq!(classify(driver, here), Ok(unknown));
        assert!(ops::write(driver, here, &[0; 4]).is_err(), "a host pointer is no device memory");
        assert!(ops::read(driver, base + bytes - 2, &mut [0; 4]).is_err(), "past the end");
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}

/// Handles of different sizes side by side: the driver's range is all of them, a descriptor is for one.
fn one_of_several_handles(driver: Driver, device: Device) {
    let raw = Raw::load().unwrap();
    let sizes = [2 * MIB, 6 * MIB, 2 * MIB, 4 * MIB];
    let total = sizes.iter().sum::<u64>();
    let start = raw.reserve(usize::try_from(total).unwrap()).unwrap();
    let mut base = start;
    for bytes in sizes {
        let handle = raw.create(device.ordinal(), usize::try_from(bytes).unwrap(), true).unwrap();
        assert_eq!(raw.map(base, usize::try_from(bytes).unwrap(), 0, handle), Status::SUCCESS);
        base += bytes;
    }
    assert_eq!(raw.pointer_attribute(PointerAttribute::RangeSize, start + 3 * MIB), Ok(total));
    let mut base = start;
    for bytes in sizes {
        for offset in [0, MIB, bytes - 1] {
            let found = classify(driver, base + offset);
            assert_eq!(found, Ok(Memory::Vmm { device, base, bytes, offset }));
            let one = VmmAllocation::of_pointer(driver, base + offset).unwrap();
            assert!(inspect(driver, one.export().unwrap().as_fd(), one.bytes(), SizeProof::Thorough).is_ok());
        }
        base += bytes;
    }
}

#[test]
fn a_descriptor_is_what_it_is_and_not_what_was_claimed() {
    let Some(lines) = run("role_inspect") else { return };
    assert_eq!(lines, ["drop errors 0"]);
}

#[test]
#[ignore = "started by another test"]
fn role_inspect() {
    let (driver, device) = first();
    let proof = SizeProof::of_driver(driver, device).unwrap();
    assert_eq!(proof, SizeProof::WholeOnly, "as measured");
    for (granules, proof) in [1, 2, 3, 7].into_iter().flat_map(|n| [(n, proof), (n, SizeProof::Thorough)]) {
        let bytes = granules * 2 * MIB;
        let exported = VmmAllocation::create(driver, device, bytes).unwrap().export().unwrap();
        let found = inspect(driver, exported.as_fd(), bytes, proof).unwrap();
        assert_eq!((found.device, found.bytes), (Some(device.uuid()), bytes));
        for wrong in [0, 1, bytes - 1, bytes + 2 * MIB, bytes * 2, bytes.saturating_sub(2 * MIB), u64::MAX] {
            let error = inspect(driver, exported.as_fd(), wrong, proof).unwrap_err();
            let InspectError::SizeMismatch { claimed, actual } = error else { panic!("{error:?}") };
            // A driver that maps nothing but the whole of an allocation gives its size away to no search.
            assert_eq!(claimed, wrong);
            assert!(actual.is_none_or(|actual| actual == bytes), "{actual:?} of {bytes}");
            assert!(actual.is_some() || !bytes.is_power_of_two(), "{bytes} is a likely size");
        }
    }
    assert_eq!(driver.current_context(), Ok(None), "none of it needed a context");
    let (reader, writer) = std::io::pipe().unwrap();
    let file = tempfile::tempfile().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for other in [OwnedFd::from(reader), writer.into(), file.into(), null.into()] {
        assert!(matches!(
            inspect(driver, other.as_fd(), 2 * MIB, SizeProof::Thorough),
            Err(InspectError::NotGpuMemory(_))
        ));
    }
    say(format_args!("drop errors {}", status::drop_errors()));
}
