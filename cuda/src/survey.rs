//! Which devices the driver shows this process and which of them reach each other, found without making a context.
//!
//! A survey is what a process that never calls CUDA again needs to know of the machine. It can be sent as JSON.
//!
//! A process sees one MIG instance at most, and with one no whole GPU (the vendor's rule): instances are surveyed one by one,
//! each in a process whose `CUDA_VISIBLE_DEVICES` names it.

use serde::{Deserialize, Serialize};

use crate::device::{Attribute, Device};
use crate::load::Driver;
use crate::status::{CudaError, Status};
use gpu_handoff_protocol::DeviceUuid;

/// All that the driver shows this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Version of the CUDA interface that the driver implements: 13000 for CUDA 13.0.
    pub cuda_version: i32,
    /// The devices, in the driver's order.
    pub devices: Vec<SurveyedDevice>,
    /// One entry for each ordered pair of different devices.
    pub links: Vec<Link>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedDevice {
    /// The device: of a MIG instance, the instance's own.
    pub uuid: DeviceUuid,
    /// The GPU that it is, or is an instance of.
    pub gpu: DeviceUuid,
    /// Whether it is a MIG instance.
    pub mig: bool,
    /// Where the GPU is, as the kernel writes it: `0000:1b:00.0`.
    pub pci_bus_id: String,
    /// The product name.
    pub name: String,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Whether its memory can be shared by descriptor.
    pub vmm: bool,
    /// Whether its streams can write and wait for 64-bit words, as timelines need.
    pub timeline: bool,
}

/// What one device can do with another's memory. The driver knows one right for reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The device that reads and writes.
    pub from: DeviceUuid,
    /// The device whose memory it is.
    pub to: DeviceUuid,
    /// Whether it may.
    pub access: bool,
    /// Whether atomic operations work across, too.
    pub atomics: bool,
}

impl Survey {
    /// Looks at every visible device and every pair of them.
    pub fn take(driver: Driver) -> Result<Survey, CudaError> {
        let devices = driver.devices()?;
        let mut links = Vec::new();
        for from in &devices {
            for to in devices.iter().filter(|to| *to != from) {
                links.push(Link {
                    from: from.uuid(),
                    to: to.uuid(),
                    access: peer(from, to, PeerAttribute::Access)? && from.can_access_peer(to)?,
                    atomics: peer(from, to, PeerAttribute::NativeAtomics)?,
                });
            }
        }
        let devices = devices.iter().map(look_at).collect::<Result<_, _>>()?;
        Ok(Survey { cuda_version: driver.version()?, devices, links })
    }

    /// Whether each of the two can read and write the other's memory. A device reaches itself.
    pub fn reach_each_other(&self, one: DeviceUuid, other: DeviceUuid) -> bool {
        let reaches =
            |from, to| self.links.iter().any(|link| (link.from, link.to, link.access) == (from, to, true));
        one == other || (reaches(one, other) && reaches(other, one))
    }

    /// What was found of a device.
    pub fn device(&self, uuid: DeviceUuid) -> Option<&SurveyedDevice> {
        self.devices.iter().find(|device| device.uuid == uuid)
    }
}

fn look_at(device: &Device) -> Result<SurveyedDevice, CudaError> {
    let (gpu, name) = (device.gpu_uuid()?, device.name()?);
    Ok(SurveyedDevice {
        uuid: device.uuid(),
        gpu,
        // There is no attribute for it. An instance has a UUID of its own, and the vendor's names of instances say so.
        mig: gpu != device.uuid() || name.contains(" MIG "),
        pci_bus_id: device.pci_bus_id()?,
        name,
        memory_bytes: device.total_memory()?,
        vmm: device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
            != 0,
        timeline: device.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)? != 0,
    })
}

/// One attribute of a pair; a pair that the driver has no link for has none.
fn peer(from: &Device, to: &Device, attribute: PeerAttribute) -> Result<bool, CudaError> {
    match from.peer_attribute(to, attribute) {
        Ok(value) => Ok(value != 0),
        Err(error) if matches!(error.status, Status::INVALID_DEVICE | Status::NOT_SUPPORTED) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What is asked of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerAttribute {
    Access,
    NativeAtomics,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(last: u8) -> DeviceUuid {
        DeviceUuid::from_bytes([last; 16])
    }

    fn survey(links: &[(u8, u8)]) -> Survey {
        let link = |&(from, to)| Link { from: uuid(from), to: uuid(to), access: true, atomics: false };
        Survey { cuda_version: 13000, devices: Vec::new(), links: links.iter().map(link).collect() }
    }

    #[test]
    fn two_devices_reach_each_other_if_each_reaches_the_other() {
        let links = survey(&[(0, 1), (1, 0), (0, 2)]);
        assert!(links.reach_each_other(uuid(0), uuid(1)));
        assert!(!links.reach_each_other(uuid(0), uuid(2)), "one way");
        assert!(!links.reach_each_other(uuid(1), uuid(2)), "no way");
        assert!(links.reach_each_other(uuid(7), uuid(7)), "itself");
        let mut without = survey(&[(0, 1), (1, 0)]);
        without.links[1].access = false;
        assert!(!without.reach_each_other(uuid(0), uuid(1)));
    }
}
