//! GPUs and MIG instances as this process sees them.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

use cudarc::driver::sys::{
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocationType, CUuuid,
};

use crate::calls::call;
use crate::context::PrimaryContext;
use crate::load::Driver;
use crate::status::CudaError;
use gpu_handoff_protocol::DeviceUuid;

/// Longest device name that is read, in bytes.
const NAME_BYTES: i32 = 256;

/// A GPU or MIG instance that the driver shows this process.
///
/// The ordinal is this process's own numbering and means nothing elsewhere: other processes are told the UUID.
#[derive(Clone, Copy)]
pub struct Device {
    driver: Driver,
    ordinal: i32,
    uuid: DeviceUuid,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {})", self.ordinal, self.uuid)
    }
}

impl Device {
    pub(crate) fn at(driver: Driver, ordinal: i32) -> Result<Device, CudaError> {
        let mut device = 0;
        // SAFETY: the first argument points at an integer that lives through the call; any ordinal may be asked for.
        unsafe { call!(driver, cuDeviceGet(&raw mut device, ordinal)) }?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the first argument points at 16 bytes that live through the call; the device came from the driver.
        unsafe { call!(driver, cuDeviceGetUuid_v2(&raw mut uuid, device)) }?;
        let uuid = DeviceUuid::from_bytes(uuid.bytes.map(i8::cast_unsigned));
        Ok(Device { driver, ordinal: device, uuid })
    }

    /// The driver's name for this device on every process and machine.
    pub fn uuid(&self) -> DeviceUuid {
        self.uuid
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// The product name.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut name = [0_u8; NAME_BYTES as usize];
        // SAFETY: the pointer and the length describe one buffer that lives through the call; the driver writes a
        // terminated string no longer than the length.
        unsafe { call!(self.driver, cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES, self.ordinal)) }?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or(c"");
        Ok(text.to_string_lossy().into_owned())
    }

    /// Memory of the device, in bytes.
    pub fn total_memory(&self) -> Result<u64, CudaError> {
        let mut bytes = 0;
        // SAFETY: the first argument points at a word that lives through the call; the device came from the driver.
        unsafe { call!(self.driver, cuDeviceTotalMem_v2(&raw mut bytes, self.ordinal)) }?;
        Ok(bytes as u64)
    }

    /// What the size of a vmm allocation on this device must be a multiple of, in bytes (2 MiB on every GPU so far).
    pub fn vmm_granularity(&self) -> Result<u64, CudaError> {
        let properties = allocation_properties(self.ordinal, true);
        let mut bytes = 0;
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: both pointers point at values that live through the call, and the properties are fully initialised.
        unsafe {
            call!(self.driver, cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, least))
        }?;
        Ok((bytes as u64).max(1))
    }

    /// Retains the device's primary context, the one that the CUDA runtime uses, and makes it current on this thread.
    pub fn retain_primary_context(&self) -> Result<PrimaryContext, CudaError> {
        PrimaryContext::retain(self.driver, *self)
    }
}

/// Properties of device memory on `ordinal`, shareable by POSIX descriptor or not at all.
pub(crate) fn allocation_properties(ordinal: i32, exportable: bool) -> CUmemAllocationProp {
    let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
    let fields = properties.as_mut_ptr();
    // SAFETY: `fields` points at the zeroed value. The vendor asks for zero in what is not set, and zero is a value of
    // every field: an integer, a null pointer, or an enum that has 0; the ones that must differ are written here.
    unsafe {
        (*fields).type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        (*fields).location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        (*fields).location.id = ordinal;
        if exportable {
            (*fields).requestedHandleTypes =
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        }
        properties.assume_init()
    }
}
