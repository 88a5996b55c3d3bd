//! Section 2: what a legacy handle protects, and what read-only vmm access does.

use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;
use crate::conformance::{Row, Tag};

use super::handles::word;
use super::here;

const BYTES: u64 = 4 * MIB;

fn set_word(handle: &mut [u8], at: usize, value: u32) {
    handle[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// How many handles opened, and how many of those were the fill.
fn attempt(importer: &Puppet, handles: Vec<Vec<u8>>) -> Step<(u64, u64)> {
    // Few at a time, so that a packet holds them.
    let mut sum = (0, 0);
    for part in handles.chunks(40) {
        let request = Request::TryHandles { handles: part.to_vec(), value: memory::FILL };
        let (opened, found) = importer.words(request)?;
        sum = (sum.0 + opened, sum.1 + found);
    }
    Ok(sum)
}

/// The handles that lie near one whose fields are known, as `probes/forge2.cu` counts them up.
fn nearby(handle: &[u8]) -> Vec<Vec<u8>> {
    let (generation, object) = (word(handle, 40), word(handle, 52));
    let mut handles = Vec::new();
    for step in 0..=2 {
        for next in 1..64 {
            let mut guess = handle.to_vec();
            set_word(&mut guess, 40, generation.wrapping_add(step));
            set_word(&mut guess, 52, object.wrapping_add(next));
            handles.push(guess);
        }
    }
    handles
}

pub(super) fn rows() -> Vec<Row> {
    [of_forging(), of_reading_only()].into_iter().flatten().collect()
}

fn of_forging() -> Vec<Row> {
    vec![
        Row::api(
            2,
            "forge-exported",
            "computing the handle of another exported allocation from one that was given",
            |stage| {
                let (exporter, importer) = (stage.own(&here())?, stage.own(&here())?);
                let ptr = exporter.word(Request::Alloc { bytes: BYTES })?;
                let given = exporter.bytes(Request::IpcGet { ptr })?;
                let (secret, exported) = memory::legacy(&exporter, BYTES)?;
                let differ: Vec<usize> =
                    (0..64).step_by(4).filter(|at| word(&given, *at) != word(&exported, *at)).collect();
                // As far as two counters explain the difference, the one is computed from the other.
                let mut forged = given;
                for at in differ.iter().copied().filter(|at| [40, 52].contains(at)) {
                    let value = word(&exported, at);
                    set_word(&mut forged, at, value);
                }
                let reached = attempt(&importer, vec![forged])?;
                let _ = secret;
                Ok(format!("differing words at {differ:?}, reached {}", reached.1))
            },
        ),
        Row::api(
            2,
            "forge-never-exported",
            "counting up from a handle to memory that was never exported",
            |stage| {
                let (exporter, importer) = (stage.own(&here())?, stage.own(&here())?);
                let ptr = exporter.word(Request::Alloc { bytes: BYTES })?;
                let handle = exporter.bytes(Request::IpcGet { ptr })?;
                let secret = exporter.word(Request::Alloc { bytes: BYTES })?;
                memory::fill(&exporter, secret, BYTES)?;
                memory::vmm(&exporter, BYTES, true)?;
                let guesses = nearby(&handle);
                let tried = guesses.len();
                let (_, reached) = attempt(&importer, guesses)?;
                Ok(format!("{reached} of {tried} reached it"))
            },
        ),
        Row::new(
            Tag::Kernel,
            2,
            "forge-single-byte",
            "one edit of each byte of a valid handle: how many still open",
            |stage| {
                let (exporter, importer) = (stage.own(&here())?, stage.own(&here())?);
                let (_, handle) = memory::legacy(&exporter, BYTES)?;
                let edit = |at: usize| {
                    let mut edited = handle.clone();
                    edited[at] = edited[at].wrapping_add(1);
                    edited
                };
                let (opened, _) = attempt(&importer, (0..64).map(edit).collect())?;
                Ok(format!("{opened} of 64"))
            },
        ),
    ]
}

fn of_reading_only() -> Vec<Row> {
    /// A read-only view of another process's memory: what a script says of its address.
    fn view(stage: &mut Stage, script: impl FnOnce(&Puppet, u64) -> Step<String>) -> Step<String> {
        let (exporter, importer) = stage.pair()?;
        let (theirs, fd) = memory::shared_vmm(&exporter, BYTES)?;
        let ours = memory::import_map(&importer, &fd, BYTES)?;
        importer.tell(Request::Allow { ptr: ours.ptr, bytes: BYTES, read_only: true })?;
        let said = script(&importer, ours.ptr)?;
        memory::unmap(&importer, ours)?;
        memory::unmap(&exporter, theirs)?;
        Ok(said)
    }
    vec![
        Row::api(
            2,
            "read-only-set-access",
            "cuMemSetAccess with PROT_READ on imported vmm memory",
            |stage| view(stage, |_, _| Ok("OK".into())),
        ),
        Row::api(2, "read-only-read", "reading through it", |stage| {
            view(stage, |importer, ptr| memory::verify(importer, ptr, BYTES))
        }),
        Row::api(2, "read-only-memset", "cuMemsetD32 through it", |stage| {
            view(stage, |importer, ptr| {
                Ok(outcome(&importer.tell(Request::Fill { ptr, value: 1, words: 16 })))
            })
        }),
        Row::api(2, "read-only-write", "cuMemcpyHtoD through it", |stage| {
            view(stage, |importer, ptr| Ok(outcome(&importer.tell(Request::Write { ptr, bytes: 64 }))))
        }),
        Row::api(2, "read-only-again-writable", "the importer giving itself write access again", |stage| {
            view(stage, |importer, ptr| {
                importer.tell(Request::Allow { ptr, bytes: BYTES, read_only: false })?;
                Ok(outcome(&importer.tell(Request::Fill { ptr, value: memory::FILL, words: 16 })))
            })
        }),
    ]
}
