//! Every answer that is a choice of the driver rather than a consequence of the simulation, in one table.
//!
//! A row either was measured on the real driver (the text names the measurement) or is a guess, marked so, for the
//! conformance suite to check on a real GPU. Code elsewhere never names a result code for such a case, it names a row.

use crate::error::CuResult;

/// Where a row's answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Observed on the real driver; names the measurement.
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

/// `tests/answers-h200.txt`: what `tests/probes/answers.cu` printed on an H200 with driver 580.159.04.
const ASKED: Source = Measured("answers, H200 580.159.04");
/// `docs/measurements/conformance-h200.json`: the conformance suite on the same machine.
const CONFORMANCE: Source = Measured("conformance, H200 580.159.04");

/// Section 7 of the measured facts, two H200 with the same driver; which of an import's calls it is was not noted.
const TWO_GPUS: Source = Measured("two GPUs, H200 580.159.04");

answers! {
    /// Any call in a child of `fork` whose parent had called `cuInit`.
    FORKED_CHILD = ERROR_NOT_INITIALIZED, ASKED;
    /// The rendezvous directory is missing: a container without any device node.
    NO_DIRECTORY = ERROR_NO_DEVICE, Unmeasured;
    /// `CUDA_VISIBLE_DEVICES`, or the device nodes that are there, leave no GPU (the latter not measured).
    NO_VISIBLE_GPU = ERROR_NO_DEVICE, Documented;
    /// `CUDA_VISIBLE_DEVICES` names a GPU twice.
    NAMED_TWICE = ERROR_INVALID_DEVICE, TWO_GPUS;
    /// A call that needs a context on a thread that has none.
    NO_CONTEXT = ERROR_INVALID_CONTEXT, ASKED;
    /// A call on a thread whose current primary context was released by its last holder. Making such a context current is no
    /// error: measured for `cuCtxPushCurrent`, taken to hold for `cuCtxSetCurrent` too.
    DESTROYED_CONTEXT = ERROR_CONTEXT_IS_DESTROYED, ASKED;
    /// A stream or event handle that is not one.
    UNKNOWN_HANDLE = ERROR_INVALID_HANDLE, Documented;

    /// `cuMemAlloc` of zero bytes.
    ALLOC_ZERO = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemFree` of an address that no `cuMemAlloc` of this process returned. 0 is no error, and neither is the lack of a
    /// context.
    FREE_UNKNOWN = ERROR_INVALID_VALUE, ASKED;
    /// A copy or memset that leaves its allocation, or touches no allocation.
    COPY_OUT_OF_RANGE = ERROR_INVALID_VALUE, ASKED;
    /// A copy or memset of a mapping before `cuMemSetAccess`.
    ACCESS_NOT_SET = ERROR_INVALID_VALUE, ASKED;
    /// A memset through a mapping with PROT_READ.
    ACCESS_READ_ONLY = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemGetAddressRange` of an address without memory.
    ADDRESS_RANGE_UNKNOWN = ERROR_NOT_FOUND, ASKED;
    /// `cuPointerGetAttribute` of an address without memory.
    POINTER_UNKNOWN = ERROR_INVALID_VALUE, ASKED;
    /// An attribute that has no meaning for this memory.
    POINTER_ATTRIBUTE = ERROR_INVALID_VALUE, Unmeasured;

    /// `cuIpcGetMemHandle` on memory that does not come from `cuMemAlloc` (VMM, pool).
    IPC_GET_NOT_LEGACY = ERROR_INVALID_VALUE, ASKED;
    /// `cuIpcGetMemHandle` on memory that was itself imported.
    IPC_GET_IMPORTED = ERROR_INVALID_VALUE, ASKED;
    /// `cuIpcGetMemHandle` on an address without memory: freed, or the host's.
    IPC_GET_UNKNOWN = ERROR_INVALID_VALUE, CONFORMANCE;
    /// A legacy memory handle whose PID word is the importer's own `getpid()`.
    IPC_OPEN_SAME_PID = ERROR_INVALID_CONTEXT, ASKED;
    /// A legacy memory handle of a dead exporter (mapped elsewhere or not), or whose client word names no process.
    IPC_OPEN_EXPORTER_DEAD = ERROR_INVALID_HANDLE, ASKED;
    /// A legacy memory handle that names no exported memory of its living exporter: edited, never exported, noise. Which words
    /// the driver looks at was measured for the size at 16 and the counter at 40: not at these.
    IPC_OPEN_UNKNOWN = ERROR_INVALID_VALUE, ASKED;
    /// A legacy memory handle of memory that its living exporter has freed.
    IPC_OPEN_FREED = ERROR_INVALID_VALUE, ASKED;
    /// `cuIpcOpenMemHandle` with any other flags than LAZY_ENABLE_PEER_ACCESS, 0 included.
    IPC_OPEN_FLAGS = ERROR_INVALID_VALUE, ASKED;
    /// `cuIpcOpenMemHandle` of memory of a GPU whose device node this process cannot open.
    IPC_OPEN_NO_NODE = ERROR_INVALID_VALUE, TWO_GPUS;
    /// `cuIpcOpenMemHandle` in a context of a GPU that does not reach the memory's.
    IPC_OPEN_NO_PEER = ERROR_PEER_ACCESS_UNSUPPORTED, Unmeasured;
    /// `cuIpcOpenMemHandle` of memory of another MIG instance.
    IPC_OPEN_OTHER_INSTANCE = ERROR_INVALID_VALUE, Unmeasured;
    /// `cuIpcCloseMemHandle` of an address that no open returned.
    IPC_CLOSE_UNKNOWN = ERROR_INVALID_VALUE, ASKED;

    /// An event with INTERPROCESS but without DISABLE_TIMING.
    EVENT_INTERPROCESS_TIMING = ERROR_INVALID_VALUE, ASKED;
    /// `cuIpcGetEventHandle` of an event without INTERPROCESS, or of an imported one (the latter not measured).
    EVENT_GET_NOT_INTERPROCESS = ERROR_INVALID_HANDLE, ASKED;
    /// An event handle whose PID word is the importer's own `getpid()`.
    EVENT_OPEN_SAME_PID = ERROR_INVALID_CONTEXT, ASKED;
    /// An event handle whose file is not in this `/dev/shm`, or not readable by this UID.
    EVENT_OPEN_NO_FILE = ERROR_MAP_FAILED, ASKED;
    /// Waiting for a record of a process that died before its stream came to it. What the driver does is not known; an error is
    /// chosen over a wait without end.
    EVENT_RECORDER_DEAD = ERROR_INVALID_HANDLE, Unmeasured;

    /// `cuMemCreate` with a size that is 0 or not a multiple of the granularity.
    VMM_CREATE_SIZE = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemCreate` with a type, location type or flag that a device does not offer.
    VMM_CREATE_PROPERTY = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemCreate` for a device that does not exist.
    VMM_CREATE_DEVICE = ERROR_INVALID_DEVICE, ASKED;
    /// `cuMemCreate` or an export that asks for a handle type other than a file descriptor.
    VMM_HANDLE_TYPE = ERROR_INVALID_VALUE, ASKED;
    /// An import that asks for a handle type other than a file descriptor.
    VMM_IMPORT_HANDLE_TYPE = ERROR_NOT_SUPPORTED, ASKED;
    /// Handle 0, and a second release. Any other use of a handle that is not one ends in SIGSEGV, as it does in the driver
    /// (measured for a map and an export of a released handle and for the properties of one that never was).
    VMM_UNKNOWN_HANDLE = ERROR_INVALID_VALUE, ASKED;
    /// An export of memory that was made without a handle type, or that was imported: an import has none.
    VMM_EXPORT_NOT_EXPORTABLE = ERROR_INVALID_VALUE, ASKED;
    /// An import of a descriptor that is no GPU memory (memfd, pipe, socket, copy of the bytes) or not open.
    VMM_IMPORT_FOREIGN = ERROR_UNKNOWN, ASKED;
    /// An import of memory of a GPU whose device node this process cannot open. An import of a pool ends in SIGSEGV then, inside the
    /// driver.
    VMM_IMPORT_NO_NODE = ERROR_INVALID_DEVICE, TWO_GPUS;
    /// An import of memory of another MIG instance.
    VMM_IMPORT_OTHER_INSTANCE = ERROR_INVALID_DEVICE, Unmeasured;
    /// An import of descriptor number 0, whatever it is: the call takes it for a null pointer.
    VMM_IMPORT_ZERO = ERROR_INVALID_VALUE, CONFORMANCE;
    /// An import of a pool's descriptor.
    VMM_IMPORT_OTHER_KIND = ERROR_NOT_SUPPORTED, ASKED;
    /// A reservation with a bad size, alignment or flag.
    VMM_RESERVE_ARGUMENT = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemAddressFree` of a range that no reservation returned just so.
    VMM_FREE_UNKNOWN = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemAddressFree` of a reservation that still has mappings.
    VMM_FREE_MAPPED = ERROR_INVALID_VALUE, ASKED;
    /// A mapping of 0 bytes.
    VMM_MAP_ZERO = ERROR_INVALID_VALUE, CONFORMANCE;
    /// A mapping longer than the memory.
    VMM_MAP_LARGER = ERROR_NOT_SUPPORTED, ASKED;
    /// A mapping shorter than the memory.
    VMM_MAP_SMALLER = ERROR_NOT_SUPPORTED, ASKED;
    /// A mapping with an offset into the memory.
    VMM_MAP_OFFSET = ERROR_NOT_SUPPORTED, ASKED;
    /// A mapping at an address that is not (wholly) reserved, or not aligned.
    VMM_MAP_UNRESERVED = ERROR_INVALID_VALUE, ASKED;
    /// A mapping over another mapping.
    VMM_MAP_OCCUPIED = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemUnmap` of a range that cuts a mapping or is not reserved; reserved addresses with nothing mapped are no error.
    VMM_UNMAP_RANGE = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemSetAccess` of a range that does not consist of whole mappings.
    VMM_ACCESS_RANGE = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemSetAccess` for a GPU that does not reach the memory's.
    VMM_ACCESS_NO_PEER = ERROR_INVALID_DEVICE, Unmeasured;
    /// `cuMemSetAccess` with flags or a location that do not exist.
    VMM_ACCESS_ARGUMENT = ERROR_INVALID_VALUE, ASKED;
    /// `cuMemRetainAllocationHandle` of an address without a mapping.
    VMM_RETAIN_UNKNOWN = ERROR_INVALID_VALUE, ASKED;

    /// A pool handle that is not one.
    POOL_UNKNOWN = ERROR_INVALID_VALUE, Unmeasured;
    /// A pool with properties that a device does not offer.
    POOL_PROPERTY = ERROR_INVALID_VALUE, Unmeasured;
    /// An export of a pool that was made without a handle type.
    POOL_EXPORT_NOT_EXPORTABLE = ERROR_INVALID_VALUE, ASKED;
    /// An import of a descriptor that is neither a pool nor other GPU memory.
    POOL_IMPORT_FOREIGN = ERROR_UNKNOWN, ASKED;
    /// An import of a VMM memory's descriptor as a pool, or with another handle type (the latter not measured).
    POOL_IMPORT_OTHER_KIND = ERROR_NOT_SUPPORTED, ASKED;
    /// An import of a pool of another MIG instance.
    POOL_IMPORT_OTHER_INSTANCE = ERROR_INVALID_DEVICE, Unmeasured;
    /// Pointer data that belongs to another pool, or to no living allocation.
    POOL_IMPORT_POINTER = ERROR_INVALID_VALUE, ASKED;
    /// An allocation from an imported pool.
    POOL_ALLOC_IMPORTED = ERROR_INVALID_VALUE, ASKED;

    /// Any call of a process that sees a GPU which is lost. The code that the vendor lists for a device that cannot be used; what is
    /// answered in which order when a GPU falls off the bus was not measured.
    GPU_LOST = ERROR_DEVICE_UNAVAILABLE, Unmeasured;
    /// Any call from a host function of a stream. The vendor says that such a call may answer so; not observed.
    CALL_IN_HOST_FUNCTION = ERROR_NOT_PERMITTED, Documented;
    /// A stream memory operation on a misaligned address or with unknown flags.
    STREAM_VALUE_ARGUMENT = ERROR_INVALID_VALUE, ASKED;
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
