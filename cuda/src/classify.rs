//! Which way of sharing a pointer's memory has, asked from the driver before anything is tried.

use cudarc::driver::sys::{CUpointer_attribute, CUpointer_attribute_enum as Attribute};

use crate::calls::call;
use crate::load::Driver;
use crate::status::{CudaError, Status};
use crate::vmm::POSIX_FD;

/// `CU_MEMORYTYPE_HOST`.
const HOST: u64 = 1;

/// What a device pointer points into, and so how it can be shared. Sizes and offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Vmm memory that can be exported as a descriptor.
    Vmm {
        /// Start of the mapping.
        base: u64,
        /// Size of the mapping.
        bytes: u64,
        /// Where in it the pointer is.
        offset: u64,
    },
    /// `cuMemAlloc` memory, of which there is a 64-byte handle.
    Legacy {
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
    /// Vmm memory that was made without the POSIX descriptor type.
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
                 expandable_segments off for these tensors, or use a version whose expandable segments can be exported"
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
    let Some((base, bytes)) = range else { return not(NotExportable::Other) };
    let offset = ptr - base;
    if flag(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)? {
        return Ok(Memory::Legacy { base, bytes, offset });
    }
    let types = word(driver, Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr)?.unwrap_or(0);
    if types & u64::from(POSIX_FD.0) != 0 {
        return Ok(Memory::Vmm { base, bytes, offset });
    }
    let vmm = crate::vmm::Handle::of_pointer(driver, ptr).is_ok();
    not(if vmm { NotExportable::VmmWithoutDescriptor } else { NotExportable::Other })
}

/// Start and size, in bytes, of the allocation or mapping that `ptr` is in.
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
