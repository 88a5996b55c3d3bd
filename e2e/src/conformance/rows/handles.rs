//! Section 2: what a legacy handle is made of, and what opening one gives.

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;

const BYTES: u64 = 4 * MIB;
/// Less than a block, so that several allocations share one.
const SMALL: u64 = 4096;

/// The little-endian word at a byte of a handle.
pub(super) fn word(handle: &[u8], at: usize) -> u32 {
    handle
        .get(at..at + 4)
        .map_or(0, |bytes| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
}

/// Two small allocations whose handles have different words at byte 28, found among the first few.
fn small_pair(exporter: &Puppet) -> Step<[(u64, Vec<u8>); 2]> {
    let first = memory::legacy(exporter, SMALL)?;
    let second = memory::legacy(exporter, SMALL)?;
    Ok([first, second])
}

pub(super) fn rows() -> Vec<Row> {
    [of_handles(), of_opening()].into_iter().flatten().collect()
}

fn of_handles() -> Vec<Row> {
    vec![
        Row::api(2, "handle-of-vmm", "cuIpcGetMemHandle of vmm memory", |stage| {
            let solo = stage.solo()?;
            let mapped = memory::vmm(&solo, BYTES, true)?;
            let got = solo.bytes(Request::IpcGet { ptr: mapped.ptr });
            memory::unmap(&solo, mapped)?;
            Ok(outcome(&got))
        }),
        Row::api(
            2,
            "handle-of-interior",
            "handles of a pointer and of one inside the same allocation",
            |stage| {
                let solo = stage.solo()?;
                let (ptr, whole) = memory::legacy(&solo, BYTES)?;
                let inside = solo.bytes(Request::IpcGet { ptr: ptr + MIB })?;
                Ok(if inside == whole { "bytes equal".into() } else { "bytes differ".into() })
            },
        ),
        Row::api(2, "handle-again", "two handles of the same pointer", |stage| {
            let solo = stage.solo()?;
            let (ptr, first) = memory::legacy(&solo, BYTES)?;
            let second = solo.bytes(Request::IpcGet { ptr })?;
            Ok(if first == second { "bytes equal".into() } else { "bytes differ".into() })
        }),
        Row::api(
            2,
            "handle-words",
            "size words of a handle: at byte 16, rounded at 24, offset at 28, bytes 56 to 63",
            |stage| {
                let (_, handle) = memory::legacy(&stage.solo()?, BYTES)?;
                let tail: u32 = handle[56..64].iter().map(|byte| u32::from(*byte)).sum();
                Ok(format!("{} {} {}, tail {tail}", word(&handle, 16), word(&handle, 24), word(&handle, 28)))
            },
        ),
        Row::api(
            2,
            "handle-small-offset",
            "offset words of the handles of two 4,096-byte allocations",
            |stage| {
                let [(_, first), (_, second)] = small_pair(&stage.solo()?)?;
                let some = word(&first, 28) != 0 || word(&second, 28) != 0;
                Ok(format!("one is not 0: {some}, equal: {}", word(&first, 28) == word(&second, 28)))
            },
        ),
        Row::api(2, "handle-of-import", "cuIpcGetMemHandle of imported memory", |stage| {
            let (exporter, importer) = stage.pair()?;
            let (_, handle) = memory::legacy(&exporter, BYTES)?;
            let ptr = memory::open(&importer, &handle)?;
            let got = importer.bytes(Request::IpcGet { ptr });
            importer.tell(Request::IpcClose { ptr })?;
            Ok(outcome(&got))
        }),
        Row::api(2, "handle-of-host", "cuIpcGetMemHandle of a host pointer", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::HostPointer)?;
            Ok(outcome(&solo.bytes(Request::IpcGet { ptr })))
        }),
        Row::api(2, "handle-of-freed", "cuIpcGetMemHandle of freed memory", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes: BYTES })?;
            solo.tell(Request::Free { ptr })?;
            Ok(outcome(&solo.bytes(Request::IpcGet { ptr })))
        }),
    ]
}

/// The importer's pointer and what a script says about it; the pointer is closed afterwards.
fn opened(
    stage: &mut Stage,
    bytes: u64,
    script: impl FnOnce(&Puppet, &Puppet, u64, &[u8]) -> Step<String>,
) -> Step<String> {
    let (exporter, importer) = stage.pair()?;
    let (from, handle) = memory::legacy(&exporter, bytes)?;
    let ptr = memory::open(&importer, &handle)?;
    let said = script(&exporter, &importer, ptr, &handle)?;
    // It may be closed already.
    let _ = importer.tell(Request::IpcClose { ptr });
    let _ = exporter.tell(Request::Free { ptr: from });
    Ok(said)
}

fn of_opening() -> Vec<Row> {
    vec![
        Row::api(
            2,
            "open-small-range",
            "cuMemGetAddressRange of an imported 4,096-byte allocation",
            |stage| {
                opened(stage, SMALL, |_, importer, ptr, _| {
                    let (base, bytes) = importer.words(Request::AddressRange { ptr })?;
                    Ok(format!(
                        "{bytes} bytes from {}",
                        if base == ptr { "the pointer" } else { "before it" }
                    ))
                })
            },
        ),
        Row::api(2, "open-range", "cuMemGetAddressRange of an imported 4 MiB allocation", |stage| {
            opened(stage, BYTES, |_, importer, ptr, _| {
                let (base, bytes) = importer.words(Request::AddressRange { ptr })?;
                Ok(format!("{bytes} bytes from {}", if base == ptr { "the pointer" } else { "before it" }))
            })
        }),
        Row::api(
            2,
            "open-small-past-end",
            "reading 8,192 bytes of an imported 4,096-byte allocation",
            |stage| {
                opened(stage, SMALL, |_, importer, ptr, _| {
                    Ok(outcome(&importer.words(Request::Read { ptr, bytes: 2 * SMALL })))
                })
            },
        ),
        Row::api(2, "open-twice", "opening a handle a second time in one process", |stage| {
            opened(stage, BYTES, |_, importer, ptr, handle| {
                Ok(match memory::open(importer, handle) {
                    Ok(again) if again == ptr => "same pointer".into(),
                    Ok(_) => "another pointer".into(),
                    refused => outcome(&refused),
                })
            })
        }),
        Row::api(2, "open-twice-close-thrice", "two opens of one handle and three closes", |stage| {
            opened(stage, BYTES, |_, importer, ptr, handle| {
                let second = memory::open(importer, handle)?;
                let closes = [ptr, second, ptr].map(|ptr| outcome(&importer.tell(Request::IpcClose { ptr })));
                Ok(closes.join(", "))
            })
        }),
        Row::api(2, "open-close-read", "reading an import after it was closed", |stage| {
            opened(stage, BYTES, |_, importer, ptr, _| {
                importer.tell(Request::IpcClose { ptr })?;
                Ok(outcome(&memory::read(importer, ptr)))
            })
        }),
        Row::api(2, "open-free", "cuMemFree of an imported pointer", |stage| {
            opened(stage, BYTES, |_, importer, ptr, _| Ok(outcome(&importer.tell(Request::Free { ptr }))))
        }),
        Row::api(2, "open-flags-0", "cuIpcOpenMemHandle without the peer access flag", |stage| {
            opened(stage, BYTES, |_, importer, ptr, handle| {
                importer.tell(Request::IpcClose { ptr })?;
                let opened = importer.word(Request::IpcOpen { handle: handle.to_vec(), flags: 0 });
                Ok(outcome(&opened))
            })
        }),
        Row::api(2, "open-own", "a process opening its own handle", |stage| {
            let solo = stage.solo()?;
            let (_, handle) = memory::legacy(&solo, BYTES)?;
            Ok(outcome(&memory::open(&solo, &handle)))
        }),
        Row::api(2, "open-zeros", "opening 64 zero bytes", |stage| {
            Ok(outcome(&memory::open(&stage.solo()?, &[0; 64])))
        }),
        Row::api(2, "open-noise", "opening 64 bytes of 0xa5", |stage| {
            Ok(outcome(&memory::open(&stage.solo()?, &[0xa5; 64])))
        }),
        Row::api(2, "open-after-free", "opening a handle whose memory the exporter has freed", |stage| {
            let (exporter, importer) = stage.pair()?;
            let (ptr, handle) = memory::legacy(&exporter, BYTES)?;
            exporter.tell(Request::Free { ptr })?;
            Ok(outcome(&memory::open(&importer, &handle)))
        }),
        Row::api(
            2,
            "open-then-exporter-frees",
            "reading an import after the exporter called cuMemFree",
            |stage| {
                let (exporter, importer) = stage.pair()?;
                let (from, handle) = memory::legacy(&exporter, BYTES)?;
                let ptr = memory::open(&importer, &handle)?;
                let freed = exporter.tell(Request::Free { ptr: from });
                let read = memory::verify(&importer, ptr, BYTES);
                let _ = importer.tell(Request::IpcClose { ptr });
                Ok(format!("free {}, read {}", outcome(&freed), read.unwrap_or_else(|end| end.to_string())))
            },
        ),
        Row::api(2, "open-write-seen", "a write through an import, seen by the exporter", |stage| {
            let (exporter, importer) = stage.pair()?;
            let (from, handle) = memory::legacy(&exporter, BYTES)?;
            let ptr = memory::open(&importer, &handle)?;
            importer.tell(Request::Fill { ptr, value: 7, words: 1 })?;
            importer.tell(Request::Synchronize)?;
            let seen = memory::read(&exporter, from)?;
            importer.tell(Request::IpcClose { ptr })?;
            Ok(format!("reads {seen}"))
        }),
        Row::api(2, "close-own-allocation", "cuIpcCloseMemHandle of the process's own memory", |stage| {
            let solo = stage.solo()?;
            let ptr = solo.word(Request::Alloc { bytes: BYTES })?;
            Ok(outcome(&solo.tell(Request::IpcClose { ptr })))
        }),
    ]
}
