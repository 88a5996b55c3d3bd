//! The driver's functions with nothing in between, for the conformance suite: it has to see what the safe layer hides,
//! such as a second release, a call without a context, or an unmapped address.
//!
//! Not for anything else. Numbers go to the driver as they are, so a wrong one is the caller's experiment; each caller
//! runs in a process of its own that may crash. Only buffers of the host are real slices.

mod exit;
mod fork;
mod memory;
mod pool;
mod sharing;
mod stream;

pub use exit::at_exit;
pub use fork::ForkEnd;

use std::ptr;

use cudarc::driver::sys::{CUcontext, CUdevice_P2PAttribute, CUpointer_attribute_enum as Attribute};

use crate::calls::{Calls, call};
use crate::load::{LoadError, table};
use crate::status::{CudaError, Status};

/// The loaded library, not initialised unless someone called [`Raw::init`].
#[derive(Clone, Copy)]
pub struct Raw {
    calls: &'static Calls,
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Raw")
    }
}

/// Status alone or a value.
pub type Answer<T> = Result<T, Status>;

pub(crate) fn status<T>(outcome: Result<(), CudaError>, value: T) -> Answer<T> {
    outcome.map(|()| value).map_err(|error| error.status)
}

/// Attributes of a pointer that the suite asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerAttribute {
    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`: 1 host, 2 device, 3 array, 4 unified.
    MemoryType,
    /// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
    IsManaged,
    /// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
    DeviceOrdinal,
    /// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`.
    IsLegacyIpcCapable,
    /// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`.
    RangeStart,
    /// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`, in bytes.
    RangeSize,
    /// `CU_POINTER_ATTRIBUTE_MAPPED`.
    Mapped,
    /// `CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR`.
    MappingBase,
    /// `CU_POINTER_ATTRIBUTE_MAPPING_SIZE`, in bytes.
    MappingSize,
    /// `CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES`.
    AllowedHandleTypes,
    /// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`.
    MempoolHandle,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    BufferId,
}

/// Attributes of a pair of devices that the suite asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAttribute {
    /// `CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK`.
    Rank,
    /// `CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED`.
    Access,
    /// `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`.
    Atomics,
}

impl Raw {
    /// Opens the library without calling it.
    pub fn load() -> Result<Raw, LoadError> {
        Ok(Raw { calls: table()? })
    }

    pub(crate) fn calls(self) -> &'static Calls {
        self.calls
    }

    /// `cuInit`.
    pub fn init(self) -> Status {
        // SAFETY: flags must be 0.
        to_status(unsafe { call!(self, cuInit(0)) })
    }

    /// `cuDriverGetVersion`.
    pub fn version(self) -> Answer<i32> {
        let mut version = 0;
        // SAFETY: the argument points at an integer that lives through the call.
        let outcome = unsafe { call!(self, cuDriverGetVersion(&raw mut version)) };
        status(outcome, version)
    }

    /// `cuDeviceGetCount`.
    pub fn device_count(self) -> Answer<i32> {
        let mut count = 0;
        // SAFETY: the argument points at an integer that lives through the call.
        let outcome = unsafe { call!(self, cuDeviceGetCount(&raw mut count)) };
        status(outcome, count)
    }

    /// `cuDeviceGet`.
    pub fn device(self, ordinal: i32) -> Answer<i32> {
        let mut device = 0;
        // SAFETY: the first argument points at an integer that lives through the call.
        let outcome = unsafe { call!(self, cuDeviceGet(&raw mut device, ordinal)) };
        status(outcome, device)
    }

    /// `cuDeviceCanAccessPeer`.
    pub fn can_access_peer(self, device: i32, peer: i32) -> Answer<i32> {
        let mut can = 0;
        // SAFETY: the first argument points at an integer that lives through the call; the devices are numbers that the
        // driver checks.
        let outcome = unsafe { call!(self, cuDeviceCanAccessPeer(&raw mut can, device, peer)) };
        status(outcome, can)
    }

    /// `cuDeviceGetP2PAttribute`.
    pub fn peer_attribute(self, attribute: PeerAttribute, device: i32, peer: i32) -> Answer<i32> {
        let attribute = match attribute {
            PeerAttribute::Rank => CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK,
            PeerAttribute::Access => CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
            PeerAttribute::Atomics => CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
        };
        let mut value = 0;
        // SAFETY: as above.
        let outcome =
            unsafe { call!(self, cuDeviceGetP2PAttribute(&raw mut value, attribute, device, peer)) };
        status(outcome, value)
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub fn primary_retain(self, device: i32) -> Answer<usize> {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the first argument points at a handle that lives through the call.
        let outcome = unsafe { call!(self, cuDevicePrimaryCtxRetain(&raw mut context, device)) };
        status(outcome, context.expose_provenance())
    }

    /// `cuDevicePrimaryCtxRelease`.
    pub fn primary_release(self, device: i32) -> Status {
        // SAFETY: the device is a number that the driver checks.
        to_status(unsafe { call!(self, cuDevicePrimaryCtxRelease_v2(device)) })
    }

    /// `cuCtxGetCurrent`.
    pub fn current(self) -> Answer<usize> {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the argument points at a handle that lives through the call.
        let outcome = unsafe { call!(self, cuCtxGetCurrent(&raw mut context)) };
        status(outcome, context.expose_provenance())
    }

    /// `cuCtxSetCurrent`.
    pub fn set_current(self, context: usize) -> Status {
        // SAFETY: the experiment's caller says which context.
        to_status(unsafe { call!(self, cuCtxSetCurrent(ptr::with_exposed_provenance_mut(context))) })
    }

    /// `cuCtxPushCurrent`.
    pub fn push(self, context: usize) -> Status {
        // SAFETY: as above.
        to_status(unsafe { call!(self, cuCtxPushCurrent_v2(ptr::with_exposed_provenance_mut(context))) })
    }

    /// `cuCtxPopCurrent`.
    pub fn pop(self) -> Answer<usize> {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the argument points at a handle that lives through the call.
        let outcome = unsafe { call!(self, cuCtxPopCurrent_v2(&raw mut context)) };
        status(outcome, context.expose_provenance())
    }

    /// `cuCtxGetDevice`.
    pub fn context_device(self) -> Answer<i32> {
        let mut device = 0;
        // SAFETY: the argument points at an integer that lives through the call.
        let outcome = unsafe { call!(self, cuCtxGetDevice(&raw mut device)) };
        status(outcome, device)
    }

    /// `cuCtxSynchronize`.
    pub fn synchronize(self) -> Status {
        // SAFETY: the call has no arguments.
        to_status(unsafe { call!(self, cuCtxSynchronize()) })
    }

    /// `cuPointerGetAttribute`, as a word.
    pub fn pointer_attribute(self, attribute: PointerAttribute, ptr: u64) -> Answer<u64> {
        let attribute = match attribute {
            PointerAttribute::MemoryType => Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            PointerAttribute::IsManaged => Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            PointerAttribute::DeviceOrdinal => Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            PointerAttribute::IsLegacyIpcCapable => {
                Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
            }
            PointerAttribute::RangeStart => Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            PointerAttribute::RangeSize => Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            PointerAttribute::Mapped => Attribute::CU_POINTER_ATTRIBUTE_MAPPED,
            PointerAttribute::MappingBase => Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
            PointerAttribute::MappingSize => Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
            PointerAttribute::AllowedHandleTypes => Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
            PointerAttribute::MempoolHandle => Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
            PointerAttribute::BufferId => Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        };
        let mut value = 0_u64;
        // SAFETY: each of these attributes is at most eight bytes wide; the word lives through the call.
        let outcome = unsafe { call!(self, cuPointerGetAttribute((&raw mut value).cast(), attribute, ptr)) };
        status(outcome, value)
    }
}

pub(crate) fn to_status(outcome: Result<(), CudaError>) -> Status {
    outcome.map_or_else(|error| error.status, |()| Status::SUCCESS)
}
