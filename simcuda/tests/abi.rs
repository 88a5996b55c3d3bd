//! Symbols and error names, against the vendor's header. Sizes and constants are checked by a unit test, `src/header_check.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::process::Command;

/// Calls as the vendor's header types them: taking each address checks that the library exports the symbol it renames to.
const CALLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetByPCIBusId",
    "cuDeviceTotalMem",
    "cuDeviceGetAttribute",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxSetFlags",
    "cuDevicePrimaryCtxGetState",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetDevice",
    "cuCtxGetApiVersion",
    "cuCtxSynchronize",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemGetInfo",
    "cuMemGetAddressRange",
    "cuMemsetD8",
    "cuMemsetD32",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuMemcpy",
    "cuMemcpyAsync",
    "cuMemcpyDtoH",
    "cuMemcpyHtoD",
    "cuMemcpyDtoD",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoDAsync",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcCloseMemHandle",
    "cuIpcGetEventHandle",
    "cuIpcOpenEventHandle",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuLaunchHostFunc",
    "cuStreamWriteValue32",
    "cuStreamWriteValue64",
    "cuStreamWaitValue32",
    "cuStreamWaitValue64",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetAccess",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAccess",
    "cuMemPoolGetAccess",
    "cuMemPoolSetAttribute",
    "cuMemPoolGetAttribute",
    "cuMemPoolTrimTo",
    "cuMemPoolExportToShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolExportPointer",
    "cuMemPoolImportPointer",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuGetProcAddress",
];

#[test]
fn symbols_and_error_names_are_the_vendors() {
    let header = match common::header() {
        Ok(header) => header,
        Err(reason) => return common::skip(&reason),
    };
    let machine = common::Machine::new();
    let mut source = "#include <cuda.h>\n#include <cstdio>\n#include <cstring>\nint main() {\n".to_owned();
    for call in CALLS {
        source += &format!("if (!(void *)&{call}) return 1;\n");
    }
    // Every code of the header has the vendor's name here, and a call looked up by name is the exported one.
    source += "const char *n;\n";
    for (name, code) in gpu_handoff_simcuda::CuResult::all() {
        source += &format!(
            "if ({name} != {code} || cuGetErrorName({name}, &n) || strcmp(n, \"{name}\")) return 2;\n"
        );
    }
    source += "void *f; CUdriverProcAddressQueryResult q;\n";
    source += "if (cuGetProcAddress(\"cuMemAlloc\", &f, 12000, 0, &q) || f != (void *)&cuMemAlloc || q) return 3;\n";
    source +=
        "if (!cuGetProcAddress(\"cuNoSuchCall\", &f, 12000, 0, &q) || f || q != 1) return 4;\nreturn 0; }\n";
    let dir = machine.meeting("abi");
    fs::write(dir.join("abi.cc"), source).unwrap();
    let mut compiler = Command::new("g++");
    compiler
        .args(["-std=c++17", "-w", "-I"])
        .arg(header)
        .arg("-o")
        .arg(dir.join("abi"))
        .arg(dir.join("abi.cc"));
    let compiled = compiler.arg("-L").arg(machine.lib()).arg("-lcuda").output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let status = machine.command(&[], &dir.join("abi")).status().unwrap();
    assert_eq!(status.code(), Some(0));
}
