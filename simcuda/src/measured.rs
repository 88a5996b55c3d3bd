//! Every answer that is a choice of the driver rather than a consequence of the simulation, in one table.
//!
//! A row either was measured on the real driver (the text names the table it stands in: "sharing 1" is section 1 of
//! the facts on CUDA sharing) or is a guess, marked so, for the conformance suite to check on a real GPU. Code
//! elsewhere never names a result code for such a case, it names a row.

use crate::error::CuResult;

/// Where a row's answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Observed on the real driver; names the facts' section.
    Measured(&'static str),
    /// Stated by the vendor's documentation of the call; not observed by us.
    Documented,
    /// A guess: to be checked on a real GPU.
    Unmeasured,
}

/// One row: a situation, the driver's answer, and how we know.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The situation, as the constant in this module is named.
    pub name: &'static str,
    /// What the call returns.
    pub code: CuResult,
    /// How we know.
    pub source: Source,
}

macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $source:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: CuResult = CuResult::$code;)*

        /// All rows, in the order of this file.
        pub const ANSWERS: &[Answer] = &[$(Answer { name: stringify!($name), code: CuResult::$code, source: $source },)*];
    };
}

use Source::{Documented, Measured, Unmeasured};

answers! {
    /// Any call in a child of `fork` whose parent had called `cuInit`.
    FORKED_CHILD = ERROR_NOT_INITIALIZED, Unmeasured;
    /// The rendezvous directory is missing: a container without the device node.
    NO_DIRECTORY = ERROR_NO_DEVICE, Unmeasured;
    /// A call that needs a context on a thread that has none.
    NO_CONTEXT = ERROR_INVALID_CONTEXT, Documented;
    /// A call on a thread whose current primary context was released by its last holder.
    DESTROYED_CONTEXT = ERROR_CONTEXT_IS_DESTROYED, Documented;
    /// A stream or event handle that is not one.
    UNKNOWN_HANDLE = ERROR_INVALID_HANDLE, Documented;

    /// `cuMemAlloc` of zero bytes.
    ALLOC_ZERO = ERROR_INVALID_VALUE, Documented;
    /// `cuMemFree` of an address that no `cuMemAlloc` of this process returned (0 included).
    FREE_UNKNOWN = ERROR_INVALID_VALUE, Unmeasured;
    /// A copy or memset that leaves its allocation, or touches no allocation.
    COPY_OUT_OF_RANGE = ERROR_INVALID_VALUE, Unmeasured;
    /// A copy or memset of a mapping before `cuMemSetAccess`.
    ACCESS_NOT_SET = ERROR_INVALID_VALUE, Unmeasured;
    /// A memset through a mapping with PROT_READ.
    ACCESS_READ_ONLY = ERROR_INVALID_VALUE, Measured("sharing 2");
    /// `cuMemGetAddressRange` of an address without memory.
    ADDRESS_RANGE_UNKNOWN = ERROR_NOT_FOUND, Unmeasured;
    /// `cuPointerGetAttribute` of an address without memory.
    POINTER_UNKNOWN = ERROR_INVALID_VALUE, Documented;
    /// An attribute that has no meaning for this memory.
    POINTER_ATTRIBUTE = ERROR_INVALID_VALUE, Unmeasured;

    /// `cuIpcGetMemHandle` on memory that does not come from `cuMemAlloc` (VMM, pool).
    IPC_GET_NOT_LEGACY = ERROR_INVALID_VALUE, Measured("sharing 2");
    /// `cuIpcGetMemHandle` on memory that was itself imported.
    IPC_GET_IMPORTED = ERROR_INVALID_VALUE, Unmeasured;
    /// A legacy memory handle whose PID word is the importer's own `getpid()`.
    IPC_OPEN_SAME_PID = ERROR_INVALID_CONTEXT, Measured("sharing 1");
    /// A legacy memory handle of a dead exporter (mapped elsewhere or not; only the latter was measured).
    IPC_OPEN_EXPORTER_DEAD = ERROR_INVALID_HANDLE, Measured("sharing 3");
    /// A legacy memory handle that names no exported memory: edited, never exported.
    IPC_OPEN_UNKNOWN = ERROR_INVALID_HANDLE, Unmeasured;
    /// A legacy memory handle of memory that its living exporter has freed.
    IPC_OPEN_FREED = ERROR_INVALID_HANDLE, Unmeasured;
    /// `cuIpcOpenMemHandle` with other flags than 0 or LAZY_ENABLE_PEER_ACCESS.
    IPC_OPEN_FLAGS = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuIpcCloseMemHandle` of an address that no open returned.
    IPC_CLOSE_UNKNOWN = ERROR_INVALID_VALUE, Unmeasured;

    /// An event with INTERPROCESS but without DISABLE_TIMING.
    EVENT_INTERPROCESS_TIMING = ERROR_INVALID_VALUE, Documented;
    /// `cuIpcGetEventHandle` of an event without INTERPROCESS, or of an imported one.
    EVENT_GET_NOT_INTERPROCESS = ERROR_INVALID_HANDLE, Unmeasured;
    /// An event handle whose PID word is the importer's own `getpid()`.
    EVENT_OPEN_SAME_PID = ERROR_INVALID_CONTEXT, Measured("sharing 1");
    /// An event handle whose file is not in this `/dev/shm`, or not readable by this UID.
    EVENT_OPEN_NO_FILE = ERROR_MAP_FAILED, Measured("sharing 1");

    /// `cuMemCreate` with a size that is 0 or not a multiple of the granularity.
    VMM_CREATE_SIZE = ERROR_INVALID_VALUE, Documented;
    /// `cuMemCreate` with a type, location type or flag that a device does not offer.
    VMM_CREATE_PROPERTY = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuMemCreate` for a device that does not exist.
    VMM_CREATE_DEVICE = ERROR_INVALID_DEVICE, Unmeasured;
    /// `cuMemCreate` or an import that asks for a handle type other than a file descriptor.
    VMM_HANDLE_TYPE = ERROR_NOT_SUPPORTED, Unmeasured;
    /// A generic allocation handle that is not one.
    VMM_UNKNOWN_HANDLE = ERROR_INVALID_VALUE, Unmeasured;
    /// An export of memory that was made without a handle type.
    VMM_EXPORT_NOT_EXPORTABLE = ERROR_INVALID_VALUE, Unmeasured;
    /// An import of a descriptor that is no GPU memory (memfd, pipe, socket, copy of the bytes) or not open.
    VMM_IMPORT_FOREIGN = ERROR_INVALID_VALUE, Unmeasured;
    /// A reservation with a bad size, alignment or flag.
    VMM_RESERVE_ARGUMENT = ERROR_INVALID_VALUE, Documented;
    /// `cuMemAddressFree` of a range that no reservation returned just so.
    VMM_FREE_UNKNOWN = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuMemAddressFree` of a reservation that still has mappings.
    VMM_FREE_MAPPED = ERROR_INVALID_VALUE, Unmeasured;
    /// A mapping longer than the memory.
    VMM_MAP_LARGER = ERROR_NOT_SUPPORTED, Measured("sharing 4");
    /// A mapping shorter than the memory.
    VMM_MAP_SMALLER = ERROR_NOT_SUPPORTED, Unmeasured;
    /// A mapping with an offset into the memory.
    VMM_MAP_OFFSET = ERROR_INVALID_VALUE, Unmeasured;
    /// A mapping at an address that is not (wholly) reserved, or not aligned.
    VMM_MAP_UNRESERVED = ERROR_INVALID_VALUE, Unmeasured;
    /// A mapping over another mapping.
    VMM_MAP_OCCUPIED = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuMemUnmap` of a range that does not consist of whole mappings.
    VMM_UNMAP_RANGE = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuMemSetAccess` of a range that does not consist of whole mappings.
    VMM_ACCESS_RANGE = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuMemSetAccess` with flags or a location that do not exist.
    VMM_ACCESS_ARGUMENT = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuMemRetainAllocationHandle` of an address without a mapping.
    VMM_RETAIN_UNKNOWN = ERROR_INVALID_VALUE, Unmeasured;

    /// A pool handle that is not one.
    POOL_UNKNOWN = ERROR_INVALID_VALUE, Unmeasured;
    /// A pool with properties that a device does not offer.
    POOL_PROPERTY = ERROR_INVALID_VALUE, Unmeasured;
    /// An export of a pool that was made without a handle type.
    POOL_EXPORT_NOT_EXPORTABLE = ERROR_INVALID_VALUE, Unmeasured;
    /// An import of a descriptor that is no pool.
    POOL_IMPORT_FOREIGN = ERROR_INVALID_VALUE, Unmeasured;
    /// Pointer data that belongs to another pool, or to no living allocation.
    POOL_IMPORT_POINTER = ERROR_INVALID_VALUE, Unmeasured;
    /// An allocation from an imported pool.
    POOL_ALLOC_IMPORTED = ERROR_INVALID_VALUE, Documented;

    /// A stream memory operation on a misaligned address or with unknown flags.
    STREAM_VALUE_ARGUMENT = ERROR_INVALID_VALUE, Documented;
}

#[cfg(test)]
mod tests {
    use super::{ANSWERS, Source};
    use std::collections::HashSet;

    #[test]
    fn every_row_has_its_own_name_and_is_an_error() {
        let names: HashSet<_> = ANSWERS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ANSWERS.len());
        assert!(ANSWERS.iter().all(|row| row.code.0 != 0 && row.code.name().is_some()));
        assert!(ANSWERS.iter().any(|row| row.source == Source::Unmeasured));
    }
}
