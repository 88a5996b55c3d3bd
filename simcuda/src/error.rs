//! The driver's result codes: number, name and text, as the vendor's header lists them.

use std::ffi::CStr;

/// A `CUresult`: a number, not a closed enum, because callers may hand any number to `cuGetErrorName`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CuResult(pub u32);

/// What every simulated call returns inside the crate; `Err` never holds `SUCCESS`.
pub(crate) type Result<T> = std::result::Result<T, CuResult>;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl CuResult {
            $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: Self = Self($code);)*
        }
        const TABLE: &[(u32, &CStr, &CStr)] = &[$(($code, c_name(concat!("CUDA_", stringify!($name), "\0")), $text),)*];
    };
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

impl CuResult {
    /// The vendor's name of this code, `CUDA_ERROR_INVALID_VALUE` for 1.
    pub fn name(self) -> Option<&'static CStr> {
        TABLE.iter().find(|row| row.0 == self.0).map(|row| row.1)
    }

    /// Every code with its name, as the header lists them.
    pub fn all() -> impl Iterator<Item = (&'static str, u32)> {
        TABLE.iter().filter_map(|row| Some((row.1.to_str().ok()?, row.0)))
    }

    /// A short text for this code.
    pub fn text(self) -> Option<&'static CStr> {
        TABLE.iter().find(|row| row.0 == self.0).map(|row| row.2)
    }
}

codes! {
    SUCCESS = 0, c"no error";
    ERROR_INVALID_VALUE = 1, c"invalid argument";
    ERROR_OUT_OF_MEMORY = 2, c"out of memory";
    ERROR_NOT_INITIALIZED = 3, c"initialization error";
    ERROR_DEINITIALIZED = 4, c"driver shutting down";
    ERROR_PROFILER_DISABLED = 5, c"profiler disabled";
    ERROR_PROFILER_NOT_INITIALIZED = 6, c"profiler not initialized";
    ERROR_PROFILER_ALREADY_STARTED = 7, c"profiler already started";
    ERROR_PROFILER_ALREADY_STOPPED = 8, c"profiler already stopped";
    ERROR_STUB_LIBRARY = 34, c"stub library";
    ERROR_CALL_REQUIRES_NEWER_DRIVER = 36, c"API call is not supported in the installed CUDA driver";
    ERROR_DEVICE_UNAVAILABLE = 46, c"device unavailable";
    ERROR_MULTICAST_RESOURCE_FULL = 47, c"multicast resource full";
    ERROR_NO_DEVICE = 100, c"no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, c"invalid device ordinal";
    ERROR_DEVICE_NOT_LICENSED = 102, c"device not licensed";
    ERROR_INVALID_IMAGE = 200, c"invalid image";
    ERROR_INVALID_CONTEXT = 201, c"invalid device context";
    ERROR_CONTEXT_ALREADY_CURRENT = 202, c"context already current";
    ERROR_MAP_FAILED = 205, c"mapping of buffer object failed";
    ERROR_UNMAP_FAILED = 206, c"unmapping of buffer object failed";
    ERROR_ARRAY_IS_MAPPED = 207, c"array is mapped";
    ERROR_ALREADY_MAPPED = 208, c"resource already mapped";
    ERROR_NO_BINARY_FOR_GPU = 209, c"no binary for gpu";
    ERROR_ALREADY_ACQUIRED = 210, c"already acquired";
    ERROR_NOT_MAPPED = 211, c"resource not mapped";
    ERROR_NOT_MAPPED_AS_ARRAY = 212, c"not mapped as array";
    ERROR_NOT_MAPPED_AS_POINTER = 213, c"not mapped as pointer";
    ERROR_ECC_UNCORRECTABLE = 214, c"ecc uncorrectable";
    ERROR_UNSUPPORTED_LIMIT = 215, c"unsupported limit";
    ERROR_CONTEXT_ALREADY_IN_USE = 216, c"context already in use";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, c"peer access is not supported between these two devices";
    ERROR_INVALID_PTX = 218, c"invalid ptx";
    ERROR_INVALID_GRAPHICS_CONTEXT = 219, c"invalid graphics context";
    ERROR_NVLINK_UNCORRECTABLE = 220, c"nvlink uncorrectable";
    ERROR_JIT_COMPILER_NOT_FOUND = 221, c"jit compiler not found";
    ERROR_UNSUPPORTED_PTX_VERSION = 222, c"unsupported ptx version";
    ERROR_JIT_COMPILATION_DISABLED = 223, c"jit compilation disabled";
    ERROR_UNSUPPORTED_EXEC_AFFINITY = 224, c"unsupported exec affinity";
    ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225, c"unsupported devside sync";
    ERROR_CONTAINED = 226, c"contained";
    ERROR_INSUFFICIENT_LOADER_VERSION = 227, c"insufficient loader version";
    ERROR_INVALID_SOURCE = 300, c"invalid source";
    ERROR_FILE_NOT_FOUND = 301, c"file not found";
    ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, c"shared object symbol not found";
    ERROR_SHARED_OBJECT_INIT_FAILED = 303, c"shared object init failed";
    ERROR_OPERATING_SYSTEM = 304, c"OS call failed or operation not supported on this OS";
    ERROR_INVALID_HANDLE = 400, c"invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, c"the operation cannot be performed in the present state";
    ERROR_LOSSY_QUERY = 402, c"lossy query";
    ERROR_NOT_FOUND = 500, c"named symbol not found";
    ERROR_NOT_READY = 600, c"device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, c"an illegal memory access was encountered";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, c"launch out of resources";
    ERROR_LAUNCH_TIMEOUT = 702, c"launch timeout";
    ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703, c"launch incompatible texturing";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, c"peer access already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, c"peer access not enabled";
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708, c"primary context active";
    ERROR_CONTEXT_IS_DESTROYED = 709, c"context is destroyed";
    ERROR_ASSERT = 710, c"assert";
    ERROR_TOO_MANY_PEERS = 711, c"too many peers";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, c"host memory already registered";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, c"host memory not registered";
    ERROR_HARDWARE_STACK_ERROR = 714, c"hardware stack error";
    ERROR_ILLEGAL_INSTRUCTION = 715, c"illegal instruction";
    ERROR_MISALIGNED_ADDRESS = 716, c"misaligned address";
    ERROR_INVALID_ADDRESS_SPACE = 717, c"invalid address space";
    ERROR_INVALID_PC = 718, c"invalid pc";
    ERROR_LAUNCH_FAILED = 719, c"launch failed";
    ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, c"cooperative launch too large";
    ERROR_TENSOR_MEMORY_LEAK = 721, c"tensor memory leak";
    ERROR_NOT_PERMITTED = 800, c"operation not permitted";
    ERROR_NOT_SUPPORTED = 801, c"operation not supported";
    ERROR_SYSTEM_NOT_READY = 802, c"system not ready";
    ERROR_SYSTEM_DRIVER_MISMATCH = 803, c"system driver mismatch";
    ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, c"compat not supported on device";
    ERROR_MPS_CONNECTION_FAILED = 805, c"mps connection failed";
    ERROR_MPS_RPC_FAILURE = 806, c"mps rpc failure";
    ERROR_MPS_SERVER_NOT_READY = 807, c"mps server not ready";
    ERROR_MPS_MAX_CLIENTS_REACHED = 808, c"mps max clients reached";
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809, c"mps max connections reached";
    ERROR_MPS_CLIENT_TERMINATED = 810, c"mps client terminated";
    ERROR_CDP_NOT_SUPPORTED = 811, c"cdp not supported";
    ERROR_CDP_VERSION_MISMATCH = 812, c"cdp version mismatch";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, c"stream capture unsupported";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, c"stream capture invalidated";
    ERROR_STREAM_CAPTURE_MERGE = 902, c"stream capture merge";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, c"stream capture unmatched";
    ERROR_STREAM_CAPTURE_UNJOINED = 904, c"stream capture unjoined";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, c"stream capture isolation";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, c"stream capture implicit";
    ERROR_CAPTURED_EVENT = 907, c"captured event";
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, c"stream capture wrong thread";
    ERROR_TIMEOUT = 909, c"timeout";
    ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910, c"graph exec update failure";
    ERROR_EXTERNAL_DEVICE = 911, c"external device";
    ERROR_INVALID_CLUSTER_SIZE = 912, c"invalid cluster size";
    ERROR_FUNCTION_NOT_LOADED = 913, c"function not loaded";
    ERROR_INVALID_RESOURCE_TYPE = 914, c"invalid resource type";
    ERROR_INVALID_RESOURCE_CONFIGURATION = 915, c"invalid resource configuration";
    ERROR_KEY_ROTATION = 916, c"key rotation";
    ERROR_STREAM_DETACHED = 917, c"stream detached";
    ERROR_GRAPH_RECAPTURE_FAILURE = 918, c"graph recapture failure";
    ERROR_FABRIC_NOT_READY = 919, c"fabric not ready";
    ERROR_UNKNOWN = 999, c"unknown error";
}
