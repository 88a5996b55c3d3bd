//! Which GPU a device of a claim is: its driver publishes that in ResourceSlices.

use std::collections::HashMap;

use gpu_handoff_protocol::DeviceUuid;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::ListParams;
use kube::{Api, Client};

use super::held::uuid;
use crate::limits;

/// The attribute in which drivers of GPUs give the UUID.
const UUID: &str = "uuid";

/// Devices that drivers tell of, by driver, pool and name: the UUID of each that is a GPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Devices(HashMap<[String; 3], Option<DeviceUuid>>);

impl Devices {
    /// What a device is; `None`: nobody tells of it.
    pub(super) fn get(&self, driver: &str, pool: &str, device: &str) -> Option<Option<DeviceUuid>> {
        self.0.get(&[driver, pool, device].map(str::to_owned)).copied()
    }

    fn add(&mut self, slice: ResourceSlice) {
        let (driver, pool) = (slice.spec.driver, slice.spec.pool.name);
        for device in slice.spec.devices.into_iter().flatten() {
            let uuid = uuid_of(&driver, &device);
            self.0.insert([driver.clone(), pool.clone(), device.name], uuid);
        }
    }

    #[cfg(test)]
    pub(super) fn of(devices: &[(&str, &str, &str, Option<&str>)]) -> Self {
        let one = |(driver, pool, device, id): &(&str, &str, &str, Option<&str>)| {
            ([*driver, *pool, *device].map(str::to_owned), id.and_then(uuid))
        };
        Self(devices.iter().map(one).collect())
    }
}

/// A name without a domain is of the driver's own.
fn uuid_of(driver: &str, device: &Device) -> Option<DeviceUuid> {
    let attributes = device.attributes.as_ref()?;
    let attribute = attributes.get(UUID).or_else(|| attributes.get(&format!("{driver}/{UUID}")))?;
    uuid(attribute.string.as_deref()?)
}

/// The devices of this node.
pub(super) async fn read(client: &Client, node: &str) -> Result<Devices, String> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let mut of_node =
        ListParams::default().fields(&format!("spec.nodeName={node}")).limit(limits::SLICES_PAGE);
    let mut devices = Devices::default();
    for _ in 0..limits::SLICES_PAGES {
        let list = slices.list(&of_node).await;
        let list =
            list.map_err(|e| format!("the API server does not tell the ResourceSlices of this node: {e}"))?;
        list.items.into_iter().for_each(|slice| devices.add(slice));
        match list.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => of_node = of_node.continue_token(&next),
            None => return Ok(devices),
        }
    }
    Err("this node has more ResourceSlices than are read".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_device_is_the_gpu_of_its_attribute() {
        let uuid = "GPU-01010101-0101-0101-0101-010101010101";
        let slice = json!({ "metadata": {}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "node-1",
            "pool": { "name": "node-1", "generation": 1, "resourceSliceCount": 1 },
            "devices": [
                { "name": "gpu-0", "attributes": { "uuid": { "string": uuid }, "index": { "int": 0 } } },
                { "name": "gpu-1", "attributes": { "gpu.nvidia.com/uuid": { "string": uuid } } },
                { "name": "odd", "attributes": { "uuid": { "string": "7" } } },
                { "name": "bare" },
            ],
        }});
        let mut devices = Devices::default();
        devices.add(serde_json::from_value(slice).unwrap());
        let get = |name: &str| devices.get("gpu.nvidia.com", "node-1", name);
        for gpu in ["gpu-0", "gpu-1"] {
            assert_eq!(get(gpu), Some(Some(uuid.parse().unwrap())));
        }
        assert_eq!((get("odd"), get("bare"), get("none")), (Some(None), Some(None), None));
        assert_eq!(devices.get("gpu.nvidia.com", "node-2", "gpu-0"), None);
    }
}
