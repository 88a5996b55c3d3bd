//! Does this node's driver keep the exporter's process number where it was seen, and only there?
//!
//! The layout of a legacy handle is not documented, so its process number may be rewritten only after a test on the
//! driver in use: an exporter and an importer, each process 1 of a PID namespace of its own. The importer must be refused
//! with `CUDA_ERROR_INVALID_CONTEXT` as the handle is, and must open it and read the right bytes once the number differs.
//!
//! This module has the two halves, which know nothing of namespaces, and the decision. Who starts the children connects
//! the exporter's output with the importer's input, reads the importer's [`Outcomes`] as a line, and lets the exporter
//! go by closing its input.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use crate::device::Device;
use crate::legacy::{HANDLE_BYTES, LegacyAllocation, LegacyHandle, LegacyMapping};
use crate::load::Driver;
use crate::ops;
use crate::status::{CudaError, Status};

/// Size of the memory that is handed over, in bytes: more than one granule, so that it has a block of its own.
const BYTES: u64 = 4 << 20;
/// What is added to the process number.
const PID_SHIFT: u32 = 100_000;
/// A handle and the word that the memory is filled with.
const MESSAGE_BYTES: usize = HANDLE_BYTES + 4;

/// Proof that on this driver the process number in a legacy handle can be rewritten. Only a test that went well gives one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PidWordProof(());

impl PidWordProof {
    /// The decision: a proof only if the handle as given was refused for the equal process number, and the changed one
    /// opened the right memory. If the handle as given is accepted, this driver needs no cure and gets none.
    pub fn from_outcomes(as_given: Status, with_word_changed: Status, data_ok: bool) -> Option<PidWordProof> {
        let proven = as_given == Status::INVALID_CONTEXT && with_word_changed == Status::SUCCESS && data_ok;
        proven.then_some(PidWordProof(()))
    }

    /// The proof of somebody who ran the test elsewhere: a client has it from the welcome of its node, which tested the
    /// same driver. Call it only when the node has said so.
    pub const fn vouched_by_node() -> PidWordProof {
        PidWordProof(())
    }
}

/// What the importing half saw. Its text form is one line, to be sent to whoever started the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcomes {
    /// What opening the handle as it came answered.
    pub as_given: Status,
    /// What opening it with another process number answered.
    pub with_word_changed: Status,
    /// Whether the bytes read through the second were the exporter's.
    pub data_ok: bool,
}

impl Outcomes {
    /// The proof that these outcomes are, if they are one.
    pub fn proof(&self) -> Option<PidWordProof> {
        PidWordProof::from_outcomes(self.as_given, self.with_word_changed, self.data_ok)
    }
}

/// `pid-word 201 0 1`.
impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid-word {} {} {}", self.as_given.0, self.with_word_changed.0, u8::from(self.data_ok))
    }
}

impl FromStr for Outcomes {
    type Err = SelfTestError;

    fn from_str(line: &str) -> Result<Self, SelfTestError> {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("pid-word") {
            return Err(SelfTestError::NotOutcomes);
        }
        let mut number = || words.next().and_then(|word| word.parse().ok()).ok_or(SelfTestError::NotOutcomes);
        let (as_given, with_word_changed, data_ok): (u32, u32, u32) = (number()?, number()?, number()?);
        if words.next().is_some() || data_ok > 1 {
            return Err(SelfTestError::NotOutcomes);
        }
        Ok(Outcomes {
            as_given: Status(as_given),
            with_word_changed: Status(with_word_changed),
            data_ok: data_ok == 1,
        })
    }
}

/// Why a half of the test could not be run. None of these says anything about the driver's handles.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// A driver call outside what is tested failed.
    #[error("prepare the test of the process number in legacy handles")]
    Cuda(#[from] CudaError),
    /// The other half or the starter went away.
    #[error("talk to the other half of the test of legacy handles")]
    Io(#[from] io::Error),
    /// The halves have different process numbers, so nothing would be tested.
    #[error(
        "test the process number in legacy handles: the exporter is {exporter} and the importer {importer}, not equal"
    )]
    DifferentPids {
        /// The number in the handle.
        exporter: u32,
        /// This process's own.
        importer: u32,
    },
    /// A line that the importing half did not write.
    #[error("read the outcomes of the test of legacy handles: not a line of that kind")]
    NotOutcomes,
}

/// The exporting half: makes memory on `device`, fills it, writes its handle to `out`, and holds it until `hold` ends.
///
/// Runs in a process of its own, which the driver is loaded for.
pub fn export_half(
    driver: Driver,
    device: Device,
    out: &mut impl Write,
    hold: &mut impl Read,
) -> Result<(), SelfTestError> {
    let _context = device.retain_primary_context()?;
    let memory = LegacyAllocation::create(driver, BYTES)?;
    let fill = std::process::id().rotate_left(16) ^ 0xC0FF_EE42;
    ops::memset_d32(driver, memory.ptr(), fill, BYTES / 4)?;
    ops::synchronize(driver)?;
    let mut message = [0; MESSAGE_BYTES];
    message[..HANDLE_BYTES].copy_from_slice(LegacyHandle::export(driver, memory.ptr())?.as_bytes());
    message[HANDLE_BYTES..].copy_from_slice(&fill.to_le_bytes());
    out.write_all(&message)?;
    out.flush()?;
    while hold.read(&mut [0; 16])? > 0 {}
    Ok(())
}

/// The importing half: reads a handle from `input` and tries it as it is and with another process number.
///
/// Runs in a process of its own with the exporter's process number.
pub fn import_half(driver: Driver, device: Device, input: &mut impl Read) -> Result<Outcomes, SelfTestError> {
    let _context = device.retain_primary_context()?;
    let mut handle = [0; HANDLE_BYTES];
    input.read_exact(&mut handle)?;
    let mut fill = [0; 4];
    input.read_exact(&mut fill)?;
    let handle = LegacyHandle::from_bytes(handle);
    let (exporter, importer) = (handle.pid_word(), std::process::id());
    if exporter != importer {
        return Err(SelfTestError::DifferentPids { exporter, importer });
    }
    let as_given =
        LegacyMapping::open(driver, &handle).map_or_else(|error| error.status, |_| Status::SUCCESS);
    let changed = handle.with_unproven_pid_word(importer + PID_SHIFT);
    let (with_word_changed, data_ok) = match LegacyMapping::open(driver, &changed) {
        Err(error) => (error.status, false),
        Ok(mapping) => (Status::SUCCESS, holds(driver, mapping.ptr(), fill)?),
    };
    Ok(Outcomes { as_given, with_word_changed, data_ok })
}

/// Are the first and the last word at `ptr` the exporter's?
fn holds(driver: Driver, ptr: u64, fill: [u8; 4]) -> Result<bool, CudaError> {
    let mut word = [0; 4];
    for offset in [0, BYTES - 4] {
        ops::read(driver, ptr + offset, &mut word)?;
        if word != fill {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refused_then_opened_then_right_is_proof() {
        let proof = |given, changed, data| PidWordProof::from_outcomes(given, changed, data).is_some();
        assert!(proof(Status::INVALID_CONTEXT, Status::SUCCESS, true));
        assert!(!proof(Status::INVALID_CONTEXT, Status::SUCCESS, false));
        assert!(!proof(Status::SUCCESS, Status::SUCCESS, true), "nothing to cure");
        assert!(!proof(Status::INVALID_VALUE, Status::SUCCESS, true), "refused for another reason");
        assert!(!proof(Status::INVALID_CONTEXT, Status::INVALID_HANDLE, false));
    }

    #[test]
    fn outcomes_survive_their_line() {
        let outcomes = Outcomes { as_given: Status(201), with_word_changed: Status::SUCCESS, data_ok: true };
        assert_eq!(outcomes.to_string(), "pid-word 201 0 1");
        assert_eq!(outcomes.to_string().parse::<Outcomes>().unwrap(), outcomes);
        for wrong in ["", "pid-word", "pid-word 1 2", "pid-word 1 2 3", "pid-word 1 2 1 1", "other 1 2 1"] {
            assert!(wrong.parse::<Outcomes>().is_err(), "{wrong:?}");
        }
    }
}
