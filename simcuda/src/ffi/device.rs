//! Initialization and devices.

use super::{In, Out, calls};
use crate::abi::Uuid;
use crate::device;
use crate::driver::{driver, initialize};
use crate::error::CuResult;

calls! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        initialize()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(device::DRIVER_VERSION)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        driver()?.devices.gpu(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        let devices = driver()?.devices.count();
        count.set(i32::try_from(devices).unwrap_or(i32::MAX))
    }

    fn cuDeviceGetName(name: Out<u8>, length: i32, device: i32) {
        name.set_text(&driver()?.devices.named(device)?.1, length)
    }

    /// The first version knows no MIG instances: it tells the GPU.
    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: i32) {
        uuid.set(Uuid { bytes: driver()?.devices.named(device)?.0.gpu_uuid() })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: i32) {
        uuid.set(Uuid { bytes: driver()?.devices.named(device)?.0.uuid() })
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, length: i32, device: i32) {
        text.set_text(&driver()?.devices.named(device)?.0.pci_bus_id(), length)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<std::ffi::c_char>) {
        let devices = &driver()?.devices;
        let wanted = text.text()?.to_string_lossy();
        let matches = |ordinal: &i32| {
            devices.named(*ordinal).is_ok_and(|(device, _)| wanted.eq_ignore_ascii_case(&device.pci_bus_id()))
        };
        let count = i32::try_from(devices.count()).unwrap_or(0);
        device.set((0..count).find(matches).ok_or(CuResult::ERROR_INVALID_DEVICE)?)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        let driver = driver()?;
        let capacity = driver.store.capacity(driver.devices.gpu(device)?);
        bytes.set(usize::try_from(capacity).unwrap_or(usize::MAX))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.set(driver()?.devices.attribute(device, attribute)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let devices = &driver()?.devices;
        can.set(i32::from(devices.can_access_peer(devices.gpu(device)?, devices.gpu(peer)?)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, from: i32, to: i32) {
        let devices = &driver()?.devices;
        value.set(devices.p2p_attribute(attribute, devices.gpu(from)?, devices.gpu(to)?)?)
    }
}
