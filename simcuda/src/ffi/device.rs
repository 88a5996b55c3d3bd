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
        driver()?.devices.gpu(device)?;
        name.set_text(device::NAME, length)
    }

    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: i32) {
        uuid.set(Uuid { bytes: device::uuid(driver()?.devices.gpu(device)?) })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: i32) {
        uuid.set(Uuid { bytes: device::uuid(driver()?.devices.gpu(device)?) })
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, length: i32, device: i32) {
        text.set_text(&device::pci_bus_id(driver()?.devices.gpu(device)?), length)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<std::ffi::c_char>) {
        let devices = &driver()?.devices;
        let wanted = text.text()?.to_string_lossy();
        let matches = |ordinal: &i32| devices.gpu(*ordinal).is_ok_and(|gpu| wanted.eq_ignore_ascii_case(&device::pci_bus_id(gpu)));
        let count = i32::try_from(devices.count()).unwrap_or(0);
        device.set((0..count).find(matches).ok_or(CuResult::ERROR_INVALID_DEVICE)?)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        let driver = driver()?;
        driver.devices.gpu(device)?;
        bytes.set(usize::try_from(driver.store.bytes_per_gpu()).unwrap_or(usize::MAX))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.set(device::attribute(driver()?.devices.gpu(device)?, attribute))
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let devices = &driver()?.devices;
        can.set(i32::from(device::can_access_peer(devices.gpu(device)?, devices.gpu(peer)?)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, from: i32, to: i32) {
        let devices = &driver()?.devices;
        value.set(device::p2p_attribute(attribute, devices.gpu(from)?, devices.gpu(to)?)?)
    }
}
