//! GPUs and MIG instances as this process sees them.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

pub(crate) use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::{
    CUdevice_P2PAttribute, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocationType, CUuuid,
};

use crate::calls::call;
use crate::context::PrimaryContext;
use crate::load::Driver;
use crate::status::CudaError;
use crate::survey::PeerAttribute;
use gpu_handoff_protocol::DeviceUuid;

/// Longest device name that is read, in bytes.
const NAME_BYTES: i32 = 256;
/// Longest PCI bus id that is read, in bytes.
const PCI_BUS_ID_BYTES: i32 = 32;

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
    /// That of this thread's current context.
    pub(crate) fn current(driver: Driver) -> Result<Device, CudaError> {
        let mut device = 0;
        // SAFETY: the argument points at an integer that lives through the call; without a context the driver says so.
        unsafe { call!(driver, cuCtxGetDevice(&raw mut device)) }?;
        Device::at(driver, device)
    }

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

    /// The UUID of the GPU: of a MIG instance, that of the GPU which it is an instance of.
    pub fn gpu_uuid(&self) -> Result<DeviceUuid, CudaError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the first argument points at 16 bytes that live through the call; the device came from the driver. This is the
        // first version of the call, which knows no instances.
        unsafe { call!(self.driver, cuDeviceGetUuid(&raw mut uuid, self.ordinal)) }?;
        Ok(DeviceUuid::from_bytes(uuid.bytes.map(i8::cast_unsigned)))
    }

    /// Where the GPU is on the PCI bus, in lower case, as the kernel writes it: `0000:1b:00.0`.
    pub fn pci_bus_id(&self) -> Result<String, CudaError> {
        let mut text = [0_u8; PCI_BUS_ID_BYTES as usize];
        // SAFETY: the pointer and the length describe one buffer that lives through the call; the driver writes a terminated
        // string no longer than the length.
        unsafe {
            call!(self.driver, cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), PCI_BUS_ID_BYTES, self.ordinal))
        }?;
        Ok(CStr::from_bytes_until_nul(&text).unwrap_or(c"").to_string_lossy().to_ascii_lowercase())
    }

    /// An attribute of the device.
    pub(crate) fn attribute(&self, attribute: Attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: the first argument points at an integer that lives through the call; the device came from the driver.
        unsafe { call!(self.driver, cuDeviceGetAttribute(&raw mut value, attribute, self.ordinal)) }?;
        Ok(value)
    }

    /// Whether a context on this device could be given access to memory of `peer`.
    pub(crate) fn can_access_peer(&self, peer: &Device) -> Result<bool, CudaError> {
        let mut can = 0;
        // SAFETY: the first argument points at an integer that lives through the call; both devices came from the driver.
        unsafe { call!(self.driver, cuDeviceCanAccessPeer(&raw mut can, self.ordinal, peer.ordinal)) }?;
        Ok(can != 0)
    }

    /// An attribute of this device's way to `peer`.
    pub(crate) fn peer_attribute(&self, peer: &Device, attribute: PeerAttribute) -> Result<i32, CudaError> {
        let attribute = match attribute {
            PeerAttribute::Access => CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
            PeerAttribute::NativeAtomics => {
                CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
            }
        };
        let mut value = 0;
        // SAFETY: the first argument points at an integer that lives through the call; both devices came from the driver.
        unsafe {
            call!(self.driver, cuDeviceGetP2PAttribute(&raw mut value, attribute, self.ordinal, peer.ordinal))
        }?;
        Ok(value)
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
