//! What a stranger's descriptor really is: imported without a context, looked at, and let go.

use std::os::fd::BorrowedFd;

use crate::device::Device;
use crate::load::Driver;
use crate::status::{CudaError, Status};
use crate::vmm::{Handle, Mapped, Range};
use gpu_handoff_protocol::DeviceUuid;

/// Granularity that is assumed for memory of a GPU that this process does not see, in bytes.
const ASSUMED_GRANULARITY: u64 = 2 << 20;
/// No larger claim is tried, in bytes: more than any device has.
const LARGEST: u64 = 1 << 44;
/// The largest power of two that is tried where the claim was wrong, in bytes.
const LARGEST_GUESS: u64 = 1 << 38;

/// What a descriptor was found to be. Dropping it lets the memory go, which takes the driver about as long again as
/// finding out: whoever waits for the answer can have it before.
#[derive(Debug)]
pub struct Inspection {
    /// The device that the memory is on; `None` if this process does not see it.
    pub device: Option<DeviceUuid>,
    /// Size of the memory in bytes, proven.
    pub bytes: u64,
    /// Unmapped first, then the handle is released: the order of the fields.
    _trial: Trial,
    _handle: Handle,
}

/// Why a descriptor is not what was claimed.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The driver does not take the descriptor for device memory.
    #[error("import the descriptor: it is not device memory that this driver can import")]
    NotGpuMemory(#[source] CudaError),
    /// It is memory of a GPU whose device node this process does not have.
    #[error("import the descriptor: its GPU is not reachable from this process")]
    GpuNotReachable(#[source] CudaError),
    /// The memory has another size.
    #[error("check the size of the memory: {claimed} bytes were claimed, {}", found(*actual))]
    SizeMismatch {
        /// What was claimed, in bytes.
        claimed: u64,
        /// What it is, in bytes, where that could be found.
        ///
        /// The driver maps an allocation as a whole or not at all, with one answer for too much and too little, so no
        /// search leads to its size. The claim rounded up to the granularity and the powers of two are tried; for the
        /// rest this is `None`.
        actual: Option<u64>,
    },
    /// The GPU is lost: it fell off the bus, or the driver has given it up.
    #[error("inspect the descriptor: the GPU is lost")]
    GpuLost(#[source] CudaError),
    /// The driver had no room to look at the descriptor: no memory, or no range of addresses that is large enough. It is as good
    /// as before.
    #[error("inspect the descriptor: the driver has no room for that")]
    OutOfMemory(#[source] CudaError),
    /// The driver failed for a reason that says nothing about the descriptor.
    #[error("inspect the descriptor")]
    Cuda(#[source] CudaError),
}

impl InspectError {
    /// What the driver answered that says nothing about the descriptor.
    fn of_driver(error: CudaError) -> Self {
        match error.status {
            Status::DEVICE_UNAVAILABLE
            | Status::ECC_UNCORRECTABLE
            | Status::NVLINK_UNCORRECTABLE
            | Status::CONTAINED => Self::GpuLost(error),
            Status::OUT_OF_MEMORY => Self::OutOfMemory(error),
            _ => Self::Cuda(error),
        }
    }
}

fn found(actual: Option<u64>) -> String {
    actual.map_or_else(|| "another size was found".to_owned(), |bytes| format!("{bytes} were found"))
}

/// What it takes to prove the size of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeProof {
    /// The claimed size can be mapped and one a granule larger cannot: holds whatever the driver does with parts.
    Thorough,
    /// The claimed size can be mapped: enough where the driver was seen to refuse to map a part of an allocation.
    WholeOnly,
}

impl SizeProof {
    /// What it takes on this driver: tries to map a part of an allocation of its own. Needs no context.
    pub fn of_driver(driver: Driver, device: Device) -> Result<SizeProof, CudaError> {
        let granule = device.vmm_granularity()?;
        let two = crate::vmm::VmmAllocation::create(driver, device, granule.saturating_mul(2))?;
        let handle = two.handle();
        match (Probe { driver, handle, granularity: granule }).map(granule) {
            Ok(None) => Ok(SizeProof::WholeOnly),
            Ok(Some(_)) => Ok(SizeProof::Thorough),
            Err(InspectError::Cuda(error) | InspectError::OutOfMemory(error)) => Err(error),
            Err(_) => Ok(SizeProof::Thorough),
        }
    }
}

/// Imports the descriptor, asks which device the memory is on, and proves its size by trial mappings. Needs no context;
/// everything is released again on every path, at the latest with what this gives.
pub fn inspect(
    driver: Driver,
    fd: BorrowedFd<'_>,
    claimed_bytes: u64,
    proof: SizeProof,
) -> Result<Inspection, InspectError> {
    let handle = Handle::import(driver, fd).map_err(import_error)?;
    let ordinal = handle.properties().map_err(InspectError::of_driver)?.device;
    let device = match ordinal {
        None => {
            return Err(InspectError::NotGpuMemory(CudaError::invalid(
                "cuMemGetAllocationPropertiesFromHandle",
            )));
        }
        Some(ordinal) if ordinal < 0 => None,
        Some(ordinal) => Some(driver.device_at(ordinal).map_err(InspectError::of_driver)?),
    };
    let granularity = match device {
        Some(device) => device.vmm_granularity().map_err(InspectError::of_driver)?,
        None => ASSUMED_GRANULARITY,
    };
    let probe = Probe { driver, handle: &handle, granularity };
    if let Some(trial) = probe.is_exactly(claimed_bytes, proof)? {
        let device = device.map(|device| device.uuid());
        return Ok(Inspection { device, bytes: claimed_bytes, _trial: trial, _handle: handle });
    }
    Err(InspectError::SizeMismatch { claimed: claimed_bytes, actual: probe.guessed_size(claimed_bytes)? })
}

/// Codes that are about the driver's or the device's own state and not about the descriptor. The driver calls a descriptor
/// of anything else UNKNOWN (999), and one of a memory pool NOT_SUPPORTED.
fn import_error(error: CudaError) -> InspectError {
    match error.status {
        Status::INVALID_DEVICE => InspectError::GpuNotReachable(error),
        Status::OUT_OF_MEMORY
        | Status::NOT_INITIALIZED
        | Status::DEINITIALIZED
        | Status::NO_DEVICE
        | Status::DEVICE_UNAVAILABLE
        | Status::ECC_UNCORRECTABLE
        | Status::NVLINK_UNCORRECTABLE
        | Status::CONTAINED
        | Status::ILLEGAL_ADDRESS
        | Status::LAUNCH_FAILED
        | Status::SYSTEM_NOT_READY
        | Status::SYSTEM_DRIVER_MISMATCH => InspectError::of_driver(error),
        _ => InspectError::NotGpuMemory(error),
    }
}

/// Trial mappings of one handle. Granules are units of the granularity.
struct Probe<'a> {
    driver: Driver,
    handle: &'a Handle,
    granularity: u64,
}

/// A mapping that is not used. Unmapped first, then the addresses are freed: the order of the fields.
#[derive(Debug)]
struct Trial {
    _mapped: Mapped,
    _range: Range,
}

impl Probe<'_> {
    /// Maps `bytes` of the memory, if that can be done.
    fn map(&self, bytes: u64) -> Result<Option<Trial>, InspectError> {
        let size = usize::try_from(bytes).map_err(|_| InspectError::Cuda(CudaError::invalid("cuMemMap")))?;
        let range = Range::reserve(self.driver, size).map_err(InspectError::of_driver)?;
        match range.map(self.handle, size) {
            Ok(mapped) => Ok(Some(Trial { _mapped: mapped, _range: range })),
            Err(error) if matches!(error.status, Status::NOT_SUPPORTED | Status::INVALID_VALUE) => Ok(None),
            Err(error) => Err(InspectError::of_driver(error)),
        }
    }

    /// The trial that proves that the memory has this size.
    fn is_exactly(&self, bytes: u64, proof: SizeProof) -> Result<Option<Trial>, InspectError> {
        if bytes == 0 || bytes > LARGEST || !bytes.is_multiple_of(self.granularity) {
            return Ok(None);
        }
        let trial = self.map(bytes)?;
        let is_a_part = || Ok(self.map(bytes + self.granularity)?.is_some());
        match proof {
            SizeProof::Thorough if trial.is_some() && is_a_part()? => Ok(None),
            _ => Ok(trial),
        }
    }

    /// The true size, if it is among the likely ones: at most 19 trials.
    fn guessed_size(&self, claimed: u64) -> Result<Option<u64>, InspectError> {
        for bytes in guesses(claimed, self.granularity) {
            if self.is_exactly(bytes, SizeProof::Thorough)?.is_some() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// Sizes to try after a wrong claim: what its exporter may have meant, then the powers of two.
fn guesses(claimed: u64, granularity: u64) -> impl Iterator<Item = u64> {
    let rounded = claimed.checked_next_multiple_of(granularity).filter(|&rounded| rounded != claimed);
    let doubled = std::iter::successors(Some(granularity), |bytes| bytes.checked_mul(2));
    rounded.into_iter().chain(doubled.take_while(|&bytes| bytes <= LARGEST_GUESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likely_sizes_are_few_and_begin_with_the_rounded_claim() {
        const MIB: u64 = 1 << 20;
        let of = |claimed| guesses(claimed, 2 * MIB).collect::<Vec<_>>();
        assert_eq!(of(3 * MIB)[..3], [4 * MIB, 2 * MIB, 4 * MIB]);
        assert_eq!(of(6 * MIB)[..2], [2 * MIB, 4 * MIB]);
        assert_eq!((of(u64::MAX).len(), of(0).last()), (18, Some(&LARGEST_GUESS)));
    }

    #[test]
    fn a_state_of_the_driver_is_not_blamed_on_the_descriptor() {
        let error = |status| import_error(CudaError { call: "cuMemImportFromShareableHandle", status });
        assert!(matches!(error(Status::OUT_OF_MEMORY), InspectError::OutOfMemory(_)));
        assert!(matches!(error(Status::LAUNCH_FAILED), InspectError::Cuda(_)));
        for foreign in [Status::UNKNOWN, Status::NOT_SUPPORTED, Status::INVALID_VALUE] {
            assert!(matches!(error(foreign), InspectError::NotGpuMemory(_)), "{foreign}");
        }
        assert!(matches!(error(Status::INVALID_DEVICE), InspectError::GpuNotReachable(_)));
    }

    #[test]
    fn a_mismatch_says_both_sizes() {
        let error = InspectError::SizeMismatch { claimed: 2, actual: Some(4) };
        assert_eq!(error.to_string(), "check the size of the memory: 2 bytes were claimed, 4 were found");
    }
}
