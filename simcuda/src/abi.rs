//! The vendor's structures and constants that the simulated calls take, in our own words; a test compares sizes,
//! offsets and values with the vendor's header.

use std::ffi::c_void;

/// `CUipcMemHandle`, `CUipcEventHandle`, `CUmemPoolPtrExportData`: 64 opaque bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IpcHandle {
    pub(crate) bytes: [u8; 64],
}

/// `CUuuid`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Uuid {
    pub(crate) bytes: [u8; 16],
}

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemLocation {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: MemLocation,
    pub(crate) win32: *mut c_void,
    pub(crate) alloc_flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub(crate) location: MemLocation,
    pub(crate) flags: u32,
}

/// `CUmemPoolProps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: MemLocation,
    pub(crate) win32: *mut c_void,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

pub(crate) const ALLOCATION_TYPE_PINNED: u32 = 1;
pub(crate) const LOCATION_TYPE_DEVICE: u32 = 1;
pub(crate) const HANDLE_TYPE_NONE: u32 = 0;
pub(crate) const HANDLE_TYPE_POSIX_FD: u32 = 1;
pub(crate) const ACCESS_NONE: u32 = 0;
pub(crate) const ACCESS_READ: u32 = 1;
pub(crate) const ACCESS_READ_WRITE: u32 = 3;
pub(crate) const GRANULARITY_RECOMMENDED: u32 = 1;
pub(crate) const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
pub(crate) const MEMORY_TYPE_DEVICE: u32 = 2;
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
pub(crate) const STREAM_LEGACY: usize = 1;
pub(crate) const STREAM_PER_THREAD: usize = 2;
pub(crate) const EVENT_BLOCKING_SYNC: u32 = 1;
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;
pub(crate) const EVENT_INTERPROCESS: u32 = 4;
pub(crate) const WAIT_VALUE_GEQ: u32 = 0;
pub(crate) const WAIT_VALUE_EQ: u32 = 1;
pub(crate) const WAIT_VALUE_AND: u32 = 2;
pub(crate) const WAIT_VALUE_NOR: u32 = 3;
pub(crate) const WAIT_VALUE_FLUSH: u32 = 1 << 30;
pub(crate) const WRITE_VALUE_NO_MEMORY_BARRIER: u32 = 1;
pub(crate) const CAPTURE_NONE: u32 = 0;

/// `CUpointer_attribute`.
pub(crate) mod pointer_attribute {
    pub(crate) const CONTEXT: u32 = 1;
    pub(crate) const MEMORY_TYPE: u32 = 2;
    pub(crate) const DEVICE_POINTER: u32 = 3;
    pub(crate) const SYNC_MEMOPS: u32 = 6;
    pub(crate) const BUFFER_ID: u32 = 7;
    pub(crate) const IS_MANAGED: u32 = 8;
    pub(crate) const DEVICE_ORDINAL: u32 = 9;
    pub(crate) const IS_LEGACY_CUDA_IPC_CAPABLE: u32 = 10;
    pub(crate) const RANGE_START_ADDR: u32 = 11;
    pub(crate) const RANGE_SIZE: u32 = 12;
    pub(crate) const MAPPED: u32 = 13;
    pub(crate) const ALLOWED_HANDLE_TYPES: u32 = 14;
    pub(crate) const IS_GPU_DIRECT_RDMA_CAPABLE: u32 = 15;
    pub(crate) const ACCESS_FLAGS: u32 = 16;
    pub(crate) const MEMPOOL_HANDLE: u32 = 17;
    pub(crate) const MAPPING_SIZE: u32 = 18;
    pub(crate) const MAPPING_BASE_ADDR: u32 = 19;
}

/// `CUdevice_attribute`: those with an answer other than 0.
pub(crate) mod device_attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 1;
    pub(crate) const WARP_SIZE: u32 = 10;
    pub(crate) const MULTIPROCESSOR_COUNT: u32 = 16;
    pub(crate) const CAN_MAP_HOST_MEMORY: u32 = 19;
    pub(crate) const PCI_BUS_ID: u32 = 33;
    pub(crate) const ASYNC_ENGINE_COUNT: u32 = 40;
    pub(crate) const UNIFIED_ADDRESSING: u32 = 41;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
    pub(crate) const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: u32 = 102;
    pub(crate) const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: u32 = 103;
    pub(crate) const MEMORY_POOLS_SUPPORTED: u32 = 115;
    pub(crate) const MEMPOOL_SUPPORTED_HANDLE_TYPES: u32 = 119;
    pub(crate) const CAN_USE_64_BIT_STREAM_MEM_OPS: u32 = 122;
    pub(crate) const CAN_USE_STREAM_WAIT_VALUE_NOR: u32 = 123;
    pub(crate) const IPC_EVENT_SUPPORTED: u32 = 125;
}

/// `CUdevice_P2PAttribute`.
pub(crate) mod p2p_attribute {
    pub(crate) const PERFORMANCE_RANK: u32 = 1;
    pub(crate) const ACCESS_SUPPORTED: u32 = 2;
    pub(crate) const NATIVE_ATOMIC_SUPPORTED: u32 = 3;
    pub(crate) const CUDA_ARRAY_ACCESS_SUPPORTED: u32 = 4;
}
