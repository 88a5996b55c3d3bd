//! Which GPU a device of a claim is: its driver publishes that in ResourceSlices.

use std::collections::HashMap;

use gpu_handoff_kubelet::api::slices::Published;
use gpu_handoff_protocol::DeviceUuid;

use super::held::uuid;

/// Devices that drivers tell of, by driver, pool and name: the UUID of each that is a GPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Devices(HashMap<[String; 3], Option<DeviceUuid>>);

impl Devices {
    /// What drivers tell of.
    pub(super) fn of(published: Vec<Published>) -> Self {
        let one = |Published { driver, pool, device, uuid: id }| {
            ([driver, pool, device], id.as_deref().and_then(uuid))
        };
        Self(published.into_iter().map(one).collect())
    }

    /// What a device is; `None`: nobody tells of it.
    pub(super) fn get(&self, driver: &str, pool: &str, device: &str) -> Option<Option<DeviceUuid>> {
        self.0.get(&[driver, pool, device].map(str::to_owned)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_the_gpu_whose_uuid_its_driver_tells() {
        let gpu = "GPU-01010101-0101-0101-0101-010101010101";
        let published = [("gpu-0", Some(gpu)), ("odd", Some("7")), ("bare", None)].map(|(device, uuid)| {
            let [driver, pool] = ["gpu.nvidia.com", "node-1"].map(str::to_owned);
            Published { driver, pool, device: device.to_owned(), uuid: uuid.map(str::to_owned) }
        });
        let devices = Devices::of(published.into());
        let get = |name: &str| devices.get("gpu.nvidia.com", "node-1", name);
        assert_eq!(get("gpu-0"), Some(Some(gpu.parse().unwrap())));
        assert_eq!((get("odd"), get("bare"), get("none")), (Some(None), Some(None), None));
        assert_eq!(devices.get("gpu.nvidia.com", "node-2", "gpu-0"), None);
    }
}
