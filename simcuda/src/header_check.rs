//! Sizes, offsets and constants of `abi`, checked by the compiler against the vendor's header.
//!
//! Needs g++ and `SIMCUDA_CUDA_H`, a directory with `cuda.h` (PyPI package `nvidia-cuda-runtime` has it). Where they are missing the test
//! says so; with `GPU_HANDOFF_TESTS=all` that is a failure.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use crate::abi::{self, AccessDesc, AllocationProp, IpcHandle, MemLocation, PoolProps, Uuid};

const LAYOUT: &[(&str, usize)] = &[
    ("sizeof(CUipcMemHandle)", size_of::<IpcHandle>()),
    ("sizeof(CUipcEventHandle)", size_of::<IpcHandle>()),
    ("sizeof(CUmemPoolPtrExportData)", size_of::<IpcHandle>()),
    ("sizeof(CUuuid)", size_of::<Uuid>()),
    ("sizeof(CUmemLocation)", size_of::<MemLocation>()),
    ("offsetof(CUmemLocation, id)", offset_of!(MemLocation, id)),
    ("sizeof(CUmemAllocationProp)", size_of::<AllocationProp>()),
    ("offsetof(CUmemAllocationProp, requestedHandleTypes)", offset_of!(AllocationProp, handle_types)),
    ("offsetof(CUmemAllocationProp, location)", offset_of!(AllocationProp, location)),
    ("offsetof(CUmemAllocationProp, win32HandleMetaData)", offset_of!(AllocationProp, win32)),
    ("offsetof(CUmemAllocationProp, allocFlags)", offset_of!(AllocationProp, alloc_flags)),
    ("sizeof(CUmemAccessDesc)", size_of::<AccessDesc>()),
    ("offsetof(CUmemAccessDesc, flags)", offset_of!(AccessDesc, flags)),
    ("sizeof(CUmemPoolProps)", size_of::<PoolProps>()),
    ("offsetof(CUmemPoolProps, handleTypes)", offset_of!(PoolProps, handle_types)),
    ("offsetof(CUmemPoolProps, location)", offset_of!(PoolProps, location)),
    ("offsetof(CUmemPoolProps, win32SecurityAttributes)", offset_of!(PoolProps, win32)),
    ("offsetof(CUmemPoolProps, maxSize)", offset_of!(PoolProps, max_size)),
    ("offsetof(CUmemPoolProps, usage)", offset_of!(PoolProps, usage)),
    ("sizeof(CUdeviceptr)", size_of::<u64>()),
    ("sizeof(CUmemGenericAllocationHandle)", size_of::<u64>()),
    ("sizeof(CUdevice)", size_of::<i32>()),
    ("sizeof(CUcontext)", size_of::<usize>()),
];

const CONSTANTS: &[(&str, u32)] = &[
    ("CU_MEM_ALLOCATION_TYPE_PINNED", abi::ALLOCATION_TYPE_PINNED),
    ("CU_MEM_LOCATION_TYPE_DEVICE", abi::LOCATION_TYPE_DEVICE),
    ("CU_MEM_HANDLE_TYPE_NONE", abi::HANDLE_TYPE_NONE),
    ("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", abi::HANDLE_TYPE_POSIX_FD),
    ("CU_MEM_ACCESS_FLAGS_PROT_NONE", abi::ACCESS_NONE),
    ("CU_MEM_ACCESS_FLAGS_PROT_READ", abi::ACCESS_READ),
    ("CU_MEM_ACCESS_FLAGS_PROT_READWRITE", abi::ACCESS_READ_WRITE),
    ("CU_MEM_ALLOC_GRANULARITY_RECOMMENDED", abi::GRANULARITY_RECOMMENDED),
    ("CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", abi::IPC_LAZY_ENABLE_PEER_ACCESS),
    ("CU_MEMORYTYPE_DEVICE", abi::MEMORY_TYPE_DEVICE),
    ("CU_STREAM_NON_BLOCKING", abi::STREAM_NON_BLOCKING),
    ("CU_EVENT_BLOCKING_SYNC", abi::EVENT_BLOCKING_SYNC),
    ("CU_EVENT_DISABLE_TIMING", abi::EVENT_DISABLE_TIMING),
    ("CU_EVENT_INTERPROCESS", abi::EVENT_INTERPROCESS),
    ("CU_STREAM_WAIT_VALUE_GEQ", abi::WAIT_VALUE_GEQ),
    ("CU_STREAM_WAIT_VALUE_EQ", abi::WAIT_VALUE_EQ),
    ("CU_STREAM_WAIT_VALUE_AND", abi::WAIT_VALUE_AND),
    ("CU_STREAM_WAIT_VALUE_NOR", abi::WAIT_VALUE_NOR),
    ("CU_STREAM_WAIT_VALUE_FLUSH", abi::WAIT_VALUE_FLUSH),
    ("CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER", abi::WRITE_VALUE_NO_MEMORY_BARRIER),
    ("CU_STREAM_CAPTURE_STATUS_NONE", abi::CAPTURE_NONE),
    ("CU_POINTER_ATTRIBUTE_CONTEXT", abi::pointer_attribute::CONTEXT),
    ("CU_POINTER_ATTRIBUTE_MEMORY_TYPE", abi::pointer_attribute::MEMORY_TYPE),
    ("CU_POINTER_ATTRIBUTE_DEVICE_POINTER", abi::pointer_attribute::DEVICE_POINTER),
    ("CU_POINTER_ATTRIBUTE_SYNC_MEMOPS", abi::pointer_attribute::SYNC_MEMOPS),
    ("CU_POINTER_ATTRIBUTE_BUFFER_ID", abi::pointer_attribute::BUFFER_ID),
    ("CU_POINTER_ATTRIBUTE_IS_MANAGED", abi::pointer_attribute::IS_MANAGED),
    ("CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL", abi::pointer_attribute::DEVICE_ORDINAL),
    ("CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE", abi::pointer_attribute::IS_LEGACY_CUDA_IPC_CAPABLE),
    ("CU_POINTER_ATTRIBUTE_RANGE_START_ADDR", abi::pointer_attribute::RANGE_START_ADDR),
    ("CU_POINTER_ATTRIBUTE_RANGE_SIZE", abi::pointer_attribute::RANGE_SIZE),
    ("CU_POINTER_ATTRIBUTE_MAPPED", abi::pointer_attribute::MAPPED),
    ("CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES", abi::pointer_attribute::ALLOWED_HANDLE_TYPES),
    ("CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE", abi::pointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE),
    ("CU_POINTER_ATTRIBUTE_ACCESS_FLAGS", abi::pointer_attribute::ACCESS_FLAGS),
    ("CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE", abi::pointer_attribute::MEMPOOL_HANDLE),
    ("CU_POINTER_ATTRIBUTE_MAPPING_SIZE", abi::pointer_attribute::MAPPING_SIZE),
    ("CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR", abi::pointer_attribute::MAPPING_BASE_ADDR),
    ("CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK", abi::device_attribute::MAX_THREADS_PER_BLOCK),
    ("CU_DEVICE_ATTRIBUTE_WARP_SIZE", abi::device_attribute::WARP_SIZE),
    ("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", abi::device_attribute::MULTIPROCESSOR_COUNT),
    ("CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY", abi::device_attribute::CAN_MAP_HOST_MEMORY),
    ("CU_DEVICE_ATTRIBUTE_PCI_BUS_ID", abi::device_attribute::PCI_BUS_ID),
    ("CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT", abi::device_attribute::ASYNC_ENGINE_COUNT),
    ("CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING", abi::device_attribute::UNIFIED_ADDRESSING),
    ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", abi::device_attribute::COMPUTE_CAPABILITY_MAJOR),
    (
        "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        abi::device_attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        abi::device_attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    ),
    ("CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED", abi::device_attribute::MEMORY_POOLS_SUPPORTED),
    (
        "CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES",
        abi::device_attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
        abi::device_attribute::CAN_USE_64_BIT_STREAM_MEM_OPS,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR",
        abi::device_attribute::CAN_USE_STREAM_WAIT_VALUE_NOR,
    ),
    ("CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED", abi::device_attribute::IPC_EVENT_SUPPORTED),
    ("CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK", abi::p2p_attribute::PERFORMANCE_RANK),
    ("CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED", abi::p2p_attribute::ACCESS_SUPPORTED),
    ("CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED", abi::p2p_attribute::NATIVE_ATOMIC_SUPPORTED),
    ("CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED", abi::p2p_attribute::CUDA_ARRAY_ACCESS_SUPPORTED),
];

/// The vendor's header, or why it cannot be compiled against.
fn header() -> Result<PathBuf, String> {
    let dir = std::env::var_os("SIMCUDA_CUDA_H").map(PathBuf::from);
    let dir = dir.ok_or("SIMCUDA_CUDA_H does not name a directory with the vendor's cuda.h")?;
    let compiler = Command::new("g++").arg("--version").output();
    compiler.map(|_| dir).map_err(|error| format!("g++ does not run: {error}"))
}

#[test]
fn layouts_and_constants_are_the_vendors() {
    let header = match header() {
        Ok(header) => header,
        Err(reason) => {
            let all = std::env::var("GPU_HANDOFF_TESTS").is_ok_and(|which| which == "all");
            assert!(!all, "GPU_HANDOFF_TESTS=all, but: {reason}");
            let line = format!("SKIPPED: layouts_and_constants_are_the_vendors: {reason}\n");
            return std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
        }
    };
    let mut source = "#include <cuda.h>\n#include <cstddef>\n".to_owned();
    let constants = CONSTANTS.iter().map(|&(name, value)| (name, usize::try_from(value).unwrap()));
    for (expression, value) in LAYOUT.iter().copied().chain(constants) {
        writeln!(source, "static_assert((size_t)({expression}) == {value}ull, \"{expression}\");").unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("check.cc");
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("g++");
    let compiled =
        compiler.args(["-std=c++17", "-fsyntax-only", "-I"]).arg(header).arg(file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
