//! The table of driver functions, each declared once: its vendor name, its arguments, and the least driver that has it.
//!
//! For each entry the macro makes a field with our own function type, whose result is the integer [`Status`], the code
//! that looks the symbol up, and an assertion at compile time that the arguments are those of the vendor's generated
//! binding. "Least driver" is the toolkit version that the vendor's `cudaTypedefs.h` writes into the function's type
//! name (`PFN_cuMemCreate_v10020`: CUDA 10.2), and the driver branch that the toolkit's release notes name for it.

#![allow(non_snake_case, reason = "the functions keep the vendor's names")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUevent, CUhostFn,
    CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPoolProps,
    CUmemPoolPtrExportData, CUmemoryPool, CUpointer_attribute, CUresult, CUstream, CUstreamCaptureStatus,
    CUuuid, cuuint64_t,
};

use crate::load::{LoadError, Since};
use crate::status::Status;

/// Calls a function of the table by its vendor name and gives `Result<(), CudaError>`.
///
/// The expansion is the foreign call itself, so the caller writes the `unsafe` block and says why it is sound.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        ($driver.calls().$name)($($argument),*).ok(stringify!($name))
    };
}
pub(crate) use call;

/// A device address where the vendor's signature has a pointer. The driver looks it up and does not follow it.
pub(crate) fn address(ptr: u64) -> *mut c_void {
    // Lossless on the 64-bit machines that have this driver.
    std::ptr::without_provenance_mut(usize::try_from(ptr).unwrap_or(usize::MAX))
}

/// As `call!`, for a function that the driver may lack.
macro_rules! call_extra {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        match $driver.calls().extra.$name {
            Some(function) => function($($argument),*),
            None => $crate::status::Status::SYMBOL_MISSING,
        }
        .ok(stringify!($name))
    };
}
pub(crate) use call_extra;

macro_rules! table {
    (
        required { $($need:ident($($need_type:ty),*) since $need_since:ident;)+ }
        extra { $($may:ident($($may_type:ty),*) since $may_since:ident;)+ }
    ) => {
        /// Functions that loading insists on, and those that may be absent.
        pub(crate) struct Calls {
            $(pub(crate) $need: unsafe extern "C" fn($($need_type),*) -> Status,)+
            pub(crate) extra: Extra,
        }

        /// Functions that a driver may lack: newer ones, and those that only the conformance suite calls.
        pub(crate) struct Extra {
            $(pub(crate) $may: Option<unsafe extern "C" fn($($may_type),*) -> Status>,)+
        }

        impl Calls {
            /// Looks every function up once.
            pub(crate) fn look_up(library: &libloading::Library) -> Result<Calls, LoadError> {
                Ok(Calls {
                    $($need: {
                        let name = concat!(stringify!($need), "\0");
                        // SAFETY: the symbol, where the library has it, is the vendor's function of this name, and the
                        // assertion below holds this type's arguments to the vendor's binding. Its result is a 32-bit
                        // enum in C, for which the transparent integer newtype is the same in the ABI.
                        match unsafe { library.get(name.as_bytes()) } {
                            Ok(symbol) => *symbol,
                            Err(source) => {
                                let symbol = stringify!($need);
                                return Err(LoadError::Symbol { symbol, since: Since::$need_since, source });
                            }
                        }
                    },)+
                    extra: Extra {
                        $($may: {
                            let name = concat!(stringify!($may), "\0");
                            // SAFETY: as above.
                            unsafe { library.get(name.as_bytes()) }.ok().map(|symbol| *symbol)
                        },)+
                    },
                })
            }

            /// Every symbol of the table with the least driver that has it, required ones first.
            pub(crate) const SYMBOLS: &'static [(&'static str, Since, bool)] = &[
                $((stringify!($need), Since::$need_since, true),)+
                $((stringify!($may), Since::$may_since, false),)+
            ];
        }

        $(const _: unsafe fn($($need_type),*) -> CUresult = sys::$need;)+
        $(const _: unsafe fn($($may_type),*) -> CUresult = sys::$may;)+
    };
}

table! {
    required {
        cuInit(c_uint) since CUDA_2_0;
        cuDriverGetVersion(*mut c_int) since CUDA_2_2;
        cuDeviceGetCount(*mut c_int) since CUDA_2_0;
        cuDeviceGet(*mut CUdevice, c_int) since CUDA_2_0;
        cuDeviceGetName(*mut c_char, c_int, CUdevice) since CUDA_2_0;
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice) since CUDA_11_4;
        cuDeviceGetUuid(*mut CUuuid, CUdevice) since CUDA_9_2;
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice) since CUDA_4_1;
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice) since CUDA_2_0;
        cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice) since CUDA_4_0;
        cuDeviceGetP2PAttribute(*mut c_int, CUdevice_P2PAttribute, CUdevice, CUdevice) since CUDA_8_0;
        cuDeviceTotalMem_v2(*mut usize, CUdevice) since CUDA_3_2;
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice) since CUDA_7_0;
        cuDevicePrimaryCtxRelease_v2(CUdevice) since CUDA_11_0;
        cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int) since CUDA_7_0;
        cuCtxGetCurrent(*mut CUcontext) since CUDA_4_0;
        cuCtxSetCurrent(CUcontext) since CUDA_4_0;
        cuCtxPushCurrent_v2(CUcontext) since CUDA_4_0;
        cuCtxPopCurrent_v2(*mut CUcontext) since CUDA_4_0;
        cuCtxGetDevice(*mut CUdevice) since CUDA_2_0;
        cuCtxSynchronize() since CUDA_2_0;
        cuMemAlloc_v2(*mut CUdeviceptr, usize) since CUDA_3_2;
        cuMemFree_v2(CUdeviceptr) since CUDA_3_2;
        cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr) since CUDA_3_2;
        cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong) since CUDA_10_2;
        cuMemRelease(CUmemGenericAllocationHandle) since CUDA_10_2;
        cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void) since CUDA_11_0;
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong) since CUDA_10_2;
        cuMemAddressFree(CUdeviceptr, usize) since CUDA_10_2;
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong) since CUDA_10_2;
        cuMemUnmap(CUdeviceptr, usize) since CUDA_10_2;
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize) since CUDA_10_2;
        cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong) since CUDA_10_2;
        cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType) since CUDA_10_2;
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags) since CUDA_10_2;
        cuMemGetAllocationPropertiesFromHandle(*mut CUmemAllocationProp, CUmemGenericAllocationHandle) since CUDA_10_2;
        cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr) since CUDA_4_0;
        cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr) since CUDA_4_1;
        cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint) since CUDA_11_0;
        cuIpcCloseMemHandle(CUdeviceptr) since CUDA_4_1;
        cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize) since CUDA_3_2;
        cuMemcpyHtoD_v2(CUdeviceptr, *const c_void, usize) since CUDA_3_2;
        cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, usize) since CUDA_3_2;
        cuMemsetD32_v2(CUdeviceptr, c_uint, usize) since CUDA_3_2;
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) since CUDA_3_2;
        cuStreamCreate(*mut CUstream, c_uint) since CUDA_2_0;
        cuStreamDestroy_v2(CUstream) since CUDA_4_0;
        cuStreamSynchronize(CUstream) since CUDA_2_0;
        cuStreamQuery(CUstream) since CUDA_2_0;
        cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus) since CUDA_10_0;
        cuLaunchHostFunc(CUstream, CUhostFn, *mut c_void) since CUDA_10_0;
    }
    extra {
        cuStreamWriteValue64_v2(CUstream, CUdeviceptr, cuuint64_t, c_uint) since CUDA_11_7;
        cuStreamWaitValue64_v2(CUstream, CUdeviceptr, cuuint64_t, c_uint) since CUDA_11_7;
        cuMemGetInfo_v2(*mut usize, *mut usize) since CUDA_3_2;
        cuEventCreate(*mut CUevent, c_uint) since CUDA_2_0;
        cuEventDestroy_v2(CUevent) since CUDA_4_0;
        cuEventRecord(CUevent, CUstream) since CUDA_2_0;
        cuEventSynchronize(CUevent) since CUDA_2_0;
        cuIpcGetEventHandle(*mut CUipcEventHandle, CUevent) since CUDA_4_1;
        cuIpcOpenEventHandle(*mut CUevent, CUipcEventHandle) since CUDA_4_1;
        cuMemAllocManaged(*mut CUdeviceptr, usize, c_uint) since CUDA_6_0;
        cuMemAllocHost_v2(*mut *mut c_void, usize) since CUDA_3_2;
        cuMemFreeHost(*mut c_void) since CUDA_2_0;
        cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps) since CUDA_11_2;
        cuMemPoolDestroy(CUmemoryPool) since CUDA_11_2;
        cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream) since CUDA_11_2;
        cuMemFreeAsync(CUdeviceptr, CUstream) since CUDA_11_2;
        cuMemPoolImportFromShareableHandle(*mut CUmemoryPool, *mut c_void, CUmemAllocationHandleType, c_ulonglong) since CUDA_11_2;
        cuMemPoolExportPointer(*mut CUmemPoolPtrExportData, CUdeviceptr) since CUDA_11_2;
        cuMemPoolImportPointer(*mut CUdeviceptr, CUmemoryPool, *mut CUmemPoolPtrExportData) since CUDA_11_2;
        cuMemPoolSetAccess(CUmemoryPool, *const CUmemAccessDesc, usize) since CUDA_11_2;
        cuEventQuery(CUevent) since CUDA_2_0;
        cuMemPoolExportToShareableHandle(*mut c_void, CUmemoryPool, CUmemAllocationHandleType, c_ulonglong) since CUDA_11_2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_symbol_twice() {
        let mut names: Vec<_> = Calls::SYMBOLS.iter().map(|(name, ..)| *name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn nothing_required_is_newer_than_the_documented_least_driver() {
        for (name, since, required) in Calls::SYMBOLS {
            assert!(!required || *since <= Since::LEAST, "{name} needs {since}");
        }
    }
}
