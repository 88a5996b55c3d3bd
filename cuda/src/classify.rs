//! Which way of sharing a pointer's memory has, asked from the driver before anything is tried.

use cudarc::driver::sys::{CUpointer_attribute, CUpointer_attribute_enum as Attribute};

use crate::calls::call;
use crate::device::Device;
use crate::load::Driver;
use crate::status::{CudaError, Status};
use crate::vmm::{Handle, POSIX_FD};

/// `CU_MEMORYTYPE_HOST`.
const HOST: u64 = 1;

/// What a device pointer points into, and so how it can be shared. Sizes and offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Vmm memory that can be exported as a descriptor. Where several handles are mapped side by side, as allocators do
    /// whose segments grow, it is the one that the pointer is in: a descriptor stands for that one alone.
    Vmm {
        /// The device that the memory is on.
        device: Device,
        /// Start of the mapping.
        base: u64,
        /// Size of the mapping.
        bytes: u64,
        /// Where in it the pointer is.
        offset: u64,
    },
    /// `cuMemAlloc` memory, of which there is a 64-byte handle.
    Legacy {
        /// The device that the memory is on.
        device: Device,
        /// Start of the allocation.
        base: u64,
        /// Size of the allocation.
        bytes: u64,
        /// Where in it the pointer is.
        offset: u64,
    },
    /// Neither.
    NotExportable {
        /// Start and size of the allocation, where the driver says.
        range: Option<(u64, u64)>,
        /// The reason.
        why: NotExportable,
    },
}

/// Why memory cannot be shared as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotExportable {
    /// Vmm memory that was made without the POSIX descriptor type, or that another process made: the driver exports no
    /// import again, and does not tell the two apart.
    VmmWithoutDescriptor,
    /// Unified ("managed") memory.
    Managed,
    /// Host memory that the driver knows: pinned or registered.
    Host,
    /// Memory of a stream-ordered pool (`cudaMallocAsync`).
    Pool,
    /// Nothing that the driver of this process knows: a plain host pointer, freed memory, another process's pointer.
    UnknownPointer,
    /// Device memory that is none of these and that the driver does not call shareable.
    Other,
}

impl NotExportable {
    /// What the owner of the memory can do about it.
    pub const fn remedy(self) -> &'static str {
        match self {
            NotExportable::VmmWithoutDescriptor => {
                "allocate it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR in requestedHandleTypes; in PyTorch leave \
                 expandable_segments off for these tensors, or use a version whose expandable segments can be exported; \
                 if it was imported, re-publishing is not possible from an importer: let its owner publish it"
            }
            NotExportable::Managed => {
                "copy it into device memory first (cudaMalloc): managed memory moves between host and devices and the \
                 driver exports none of it"
            }
            NotExportable::Host => {
                "copy it to the device first; memory of the host is shared between pods without this component"
            }
            NotExportable::Pool => {
                "allocate it with cudaMalloc; in PyTorch do not set the allocator's backend to cudaMallocAsync"
            }
            NotExportable::UnknownPointer => {
                "pass the device pointer of live memory of this process (in PyTorch: tensor.data_ptr() of a CUDA tensor)"
            }
            NotExportable::Other => {
                "allocate it with cudaMalloc, or with cuMemCreate and a descriptor handle type"
            }
        }
    }
}

/// Says how the memory that `ptr` points into can be shared. Works with or without a current context.
pub fn classify(driver: Driver, ptr: u64) -> Result<Memory, CudaError> {
    let Some(kind) = word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr)? else {
        return Ok(Memory::NotExportable { range: None, why: NotExportable::UnknownPointer });
    };
    // A driver that does not know an attribute answers like one that does not know the pointer: then it is no proof.
    let flag = |attribute| Ok(word(driver, attribute, ptr)?.is_some_and(|value| value & 0xff != 0));
    let range = known_range(driver, ptr)?;
    let not = |why| Ok(Memory::NotExportable { range, why });
    if flag(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED)? {
        return not(NotExportable::Managed);
    }
    if low_half(kind) == HOST {
        return not(NotExportable::Host);
    }
    if word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr)?.is_some_and(|pool| pool != 0) {
        return not(NotExportable::Pool);
    }
    let (Some((base, bytes)), Some(device)) = (range, device_of(driver, ptr)?) else {
        return not(NotExportable::Other);
    };
    if flag(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)? {
        return Ok(Memory::Legacy { device, base, bytes, offset: ptr - base });
    }
    let types = word(driver, Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr)?.unwrap_or(0);
    match (types & u64::from(POSIX_FD.0) != 0, Handle::of_pointer(driver, ptr)) {
        (true, Ok(handle)) => {
            let (base, bytes) = extent_of(&handle, device, ptr)?;
            Ok(Memory::Vmm { device, base, bytes, offset: ptr - base })
        }
        (false, Ok(_)) => not(NotExportable::VmmWithoutDescriptor),
        (_, Err(_)) => not(NotExportable::Other),
    }
}

/// The visible device that the memory at `ptr` is on.
fn device_of(driver: Driver, ptr: u64) -> Result<Option<Device>, CudaError> {
    let ordinal = word(driver, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr)?;
    let ordinal = ordinal.and_then(|ordinal| i32::try_from(low_half(ordinal)).ok());
    ordinal.map(|ordinal| Device::at(driver, ordinal)).transpose()
}

/// Start and size, in bytes, of the mapping of `handle` that `ptr` is in.
///
/// The range that the driver gives for a pointer takes in neighbouring mappings of other handles (measured). Which part
/// belongs to this handle shows in which handle the driver retains at its addresses. One handle that is mapped twice
/// side by side reads as one mapping of twice the size, which an inspection of the descriptor refuses.
pub(crate) fn extent_of(handle: &Handle, device: Device, ptr: u64) -> Result<(u64, u64), CudaError> {
    let driver = handle.driver();
    let (base, bytes) = range_of(driver, ptr)?;
    let is_ours =
        |address| Handle::of_pointer(driver, address).is_ok_and(|other| other.raw() == handle.raw());
    if (is_ours(base) && is_ours(base + bytes - 1)) || !is_ours(ptr) {
        return Ok((base, bytes));
    }
    let granule = device.vmm_granularity()?;
    let here = (ptr - base) / granule;
    let before = reach(here, |granules| is_ours(base + (here - granules) * granule));
    let behind = reach((bytes - 1) / granule - here, |granules| is_ours(base + (here + granules) * granule));
    Ok((base + (here - before) * granule, (before + 1 + behind) * granule))
}

/// The largest number in `0..=limit` for which `holds`, given that it holds for 0 and for none above one that it fails for.
fn reach(limit: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut good, mut bad) = (0, limit + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        *(if holds(middle) { &mut good } else { &mut bad }) = middle;
    }
    good
}

/// Start and size, in bytes, of the allocation or of the neighbouring mappings that `ptr` is in.
pub(crate) fn range_of(driver: Driver, ptr: u64) -> Result<(u64, u64), CudaError> {
    known_range(driver, ptr)?.ok_or(CudaError::invalid("cuPointerGetAttribute"))
}

fn known_range(driver: Driver, ptr: u64) -> Result<Option<(u64, u64)>, CudaError> {
    let base = word(driver, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr)?;
    let bytes = word(driver, Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr)?;
    Ok(base.zip(bytes).filter(|&(base, bytes)| base <= ptr && ptr - base < bytes))
}

/// Is `[ptr, ptr + bytes)` within one allocation on a device?
pub(crate) fn is_device_range(driver: Driver, ptr: u64, bytes: u64) -> Result<bool, CudaError> {
    let kind = word(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr)?;
    let within = known_range(driver, ptr)?.is_some_and(|(base, size)| bytes <= size - (ptr - base));
    Ok(within && kind.is_some_and(|kind| low_half(kind) != HOST))
}

/// One attribute of a pointer as a word; `None` if the driver does not know the pointer or the attribute.
fn word(driver: Driver, attribute: CUpointer_attribute, ptr: u64) -> Result<Option<u64>, CudaError> {
    let mut value = 0_u64;
    // SAFETY: the attributes asked for here are at most eight bytes wide, and the first argument points at eight zeroed
    // bytes that live through the call. The driver looks the pointer up and does not follow it.
    match unsafe { call!(driver, cuPointerGetAttribute((&raw mut value).cast(), attribute, ptr)) } {
        Ok(()) => Ok(Some(value)),
        Err(error) if matches!(error.status, Status::INVALID_VALUE | Status::NOT_SUPPORTED) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Attributes narrower than a word fill its low bytes on the machines that have this driver.
fn low_half(word: u64) -> u64 {
    word & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::reach;

    #[test]
    fn the_reach_is_found_wherever_it_ends() {
        for limit in 0..40 {
            for truth in 0..=limit {
                assert_eq!(reach(limit, |n| n <= truth), truth);
            }
        }
    }
}
