//! The driver's answers as an integer newtype, the error they become, and the record of errors met while dropping.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a driver call answered: a `CUresult` as the number it is, so that a code that this build has never heard of
/// is still a value.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u32);

macro_rules! codes {
    ($($name:ident = $code:literal),+ $(,)?) => {
        impl Status {
            $(#[doc = concat!("`CUDA_ERROR_", stringify!($name), "`")] pub const $name: Status = Status($code);)+

            /// The vendor's name of this code; `None` for one that this build does not know.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    Status::SUCCESS => Some("CUDA_SUCCESS"),
                    Status::SYMBOL_MISSING => Some("SYMBOL_MISSING"),
                    $(Status::$name => Some(concat!("CUDA_ERROR_", stringify!($name))),)+
                    _ => None,
                }
            }
        }
    };
}

// Names and numbers of the header `cuda.h` of CUDA 13.
codes! {
    INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, DEINITIALIZED = 4, PROFILER_DISABLED = 5,
    PROFILER_NOT_INITIALIZED = 6, PROFILER_ALREADY_STARTED = 7, PROFILER_ALREADY_STOPPED = 8,
    STUB_LIBRARY = 34, CALL_REQUIRES_NEWER_DRIVER = 36, DEVICE_UNAVAILABLE = 46,
    MULTICAST_RESOURCE_FULL = 47, NO_DEVICE = 100, INVALID_DEVICE = 101, DEVICE_NOT_LICENSED = 102,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, CONTEXT_ALREADY_CURRENT = 202, MAP_FAILED = 205,
    UNMAP_FAILED = 206, ARRAY_IS_MAPPED = 207, ALREADY_MAPPED = 208, NO_BINARY_FOR_GPU = 209,
    ALREADY_ACQUIRED = 210, NOT_MAPPED = 211, NOT_MAPPED_AS_ARRAY = 212, NOT_MAPPED_AS_POINTER = 213,
    ECC_UNCORRECTABLE = 214, UNSUPPORTED_LIMIT = 215, CONTEXT_ALREADY_IN_USE = 216,
    PEER_ACCESS_UNSUPPORTED = 217, INVALID_PTX = 218, INVALID_GRAPHICS_CONTEXT = 219,
    NVLINK_UNCORRECTABLE = 220, JIT_COMPILER_NOT_FOUND = 221, UNSUPPORTED_PTX_VERSION = 222,
    JIT_COMPILATION_DISABLED = 223, UNSUPPORTED_EXEC_AFFINITY = 224, UNSUPPORTED_DEVSIDE_SYNC = 225,
    CONTAINED = 226, INSUFFICIENT_LOADER_VERSION = 227, INVALID_SOURCE = 300, FILE_NOT_FOUND = 301,
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, SHARED_OBJECT_INIT_FAILED = 303, OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400, ILLEGAL_STATE = 401, LOSSY_QUERY = 402, NOT_FOUND = 500, NOT_READY = 600,
    ILLEGAL_ADDRESS = 700, LAUNCH_OUT_OF_RESOURCES = 701, LAUNCH_TIMEOUT = 702,
    LAUNCH_INCOMPATIBLE_TEXTURING = 703, PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705, PRIMARY_CONTEXT_ACTIVE = 708, CONTEXT_IS_DESTROYED = 709,
    ASSERT = 710, TOO_MANY_PEERS = 711, HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713, HARDWARE_STACK_ERROR = 714, ILLEGAL_INSTRUCTION = 715,
    MISALIGNED_ADDRESS = 716, INVALID_ADDRESS_SPACE = 717, INVALID_PC = 718, LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, TENSOR_MEMORY_LEAK = 721, NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801, SYSTEM_NOT_READY = 802, SYSTEM_DRIVER_MISMATCH = 803,
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, MPS_CONNECTION_FAILED = 805, MPS_RPC_FAILURE = 806,
    MPS_SERVER_NOT_READY = 807, MPS_MAX_CLIENTS_REACHED = 808, MPS_MAX_CONNECTIONS_REACHED = 809,
    MPS_CLIENT_TERMINATED = 810, CDP_NOT_SUPPORTED = 811, CDP_VERSION_MISMATCH = 812,
    STREAM_CAPTURE_UNSUPPORTED = 900, STREAM_CAPTURE_INVALIDATED = 901, STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903, STREAM_CAPTURE_UNJOINED = 904, STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, STREAM_CAPTURE_WRONG_THREAD = 908,
    TIMEOUT = 909, GRAPH_EXEC_UPDATE_FAILURE = 910, EXTERNAL_DEVICE = 911, INVALID_CLUSTER_SIZE = 912,
    FUNCTION_NOT_LOADED = 913, INVALID_RESOURCE_TYPE = 914, INVALID_RESOURCE_CONFIGURATION = 915,
    KEY_ROTATION = 916, STREAM_DETACHED = 917, GRAPH_RECAPTURE_FAILURE = 918, FABRIC_NOT_READY = 919,
    UNKNOWN = 999,
}

impl Status {
    /// The call did what was asked.
    pub const SUCCESS: Status = Status(0);
    /// Not the driver's: the loaded driver has no such function, and it was not one of those that loading insists on.
    pub const SYMBOL_MISSING: Status = Status(u32::MAX);

    /// The status as a result, with the name of the call that gave it.
    pub const fn ok(self, call: &'static str) -> Result<(), CudaError> {
        if self.0 == 0 { Ok(()) } else { Err(CudaError { call, status: self }) }
    }
}

/// `OK`, `CUDA_ERROR_INVALID_CONTEXT (201)`, or `unknown code (12345)`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.name()) {
            (Status::SUCCESS, _) => f.write_str("OK"),
            (Status::SYMBOL_MISSING, _) => f.write_str("not in this driver"),
            (_, Some(name)) => write!(f, "{name} ({})", self.0),
            (_, None) => write!(f, "unknown code ({})", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A driver call that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call} answered {status}")]
pub struct CudaError {
    /// The vendor's name of the function.
    pub call: &'static str,
    /// What it answered.
    pub status: Status,
}

impl CudaError {
    /// The error that `call` would have given for an argument that this crate refuses before the driver sees it.
    pub(crate) const fn invalid(call: &'static str) -> CudaError {
        CudaError { call, status: Status::INVALID_VALUE }
    }
}

/// What runs when a drop failed.
pub type DropHook = fn(&CudaError);

static DROP_ERRORS: AtomicU64 = AtomicU64::new(0);
static LAST_DROP_ERROR: Mutex<Option<CudaError>> = Mutex::new(None);
static DROP_HOOK: OnceLock<DropHook> = OnceLock::new();

/// Number of driver calls that failed inside a drop since the process started.
pub fn drop_errors() -> u64 {
    DROP_ERRORS.load(Ordering::Relaxed)
}

/// The most recent error that a drop met.
pub fn last_drop_error() -> Option<CudaError> {
    *LAST_DROP_ERROR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `hook` called for each error met in a drop, on the thread that drops. The first hook stays; `false` says that
/// there was one already.
pub fn on_drop_error(hook: DropHook) -> bool {
    DROP_HOOK.set(hook).is_ok()
}

/// Records the outcome of a call made in a drop, where nobody can be given an error.
pub(crate) fn note_drop(outcome: Result<(), CudaError>) {
    let Err(error) = outcome else { return };
    DROP_ERRORS.fetch_add(1, Ordering::Relaxed);
    *LAST_DROP_ERROR.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    if let Some(hook) = DROP_HOOK.get() {
        hook(&error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_reads_as_its_name_and_number() {
        assert_eq!(Status::SUCCESS.to_string(), "OK");
        assert_eq!(Status(201).to_string(), "CUDA_ERROR_INVALID_CONTEXT (201)");
        assert_eq!(Status(4242).to_string(), "unknown code (4242)");
        assert_eq!(Status(4242).name(), None);
    }

    #[test]
    fn names_agree_with_the_vendors_enum() {
        use cudarc::driver::sys::CUresult as R;
        for code in [
            R::CUDA_ERROR_INVALID_VALUE,
            R::CUDA_ERROR_MAP_FAILED,
            R::CUDA_ERROR_UNKNOWN,
            R::CUDA_ERROR_NOT_SUPPORTED,
        ] {
            assert_eq!(Status(code as u32).name(), Some(format!("{code:?}").as_str()));
        }
    }

    #[test]
    fn an_error_names_its_call_and_no_more() {
        let error = Status::MAP_FAILED.ok("cuIpcOpenEventHandle");
        assert_eq!(
            error.map_err(|e| e.to_string()),
            Err("cuIpcOpenEventHandle answered CUDA_ERROR_MAP_FAILED (205)".into())
        );
    }

    #[test]
    fn a_failed_drop_is_counted() {
        let before = drop_errors();
        note_drop(Ok(()));
        note_drop(Err(CudaError { call: "cuMemUnmap", status: Status::UNKNOWN }));
        assert_eq!(drop_errors(), before + 1);
        assert_eq!(last_drop_error().map(|e| e.call), Some("cuMemUnmap"));
    }
}
