//! Devices that drivers of claims (DRA) publish in ResourceSlices.

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::Api;
use kube::api::ListParams;

use super::{ApiServer, AskError};
use crate::limits;

/// The attribute in which drivers of GPUs give the UUID.
const UUID: &str = "uuid";

/// A device that a driver tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The driver: `gpu.nvidia.com`.
    pub driver: String,
    /// The pool, mostly the node's name.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// What the driver says is its UUID.
    pub uuid: Option<String>,
}

impl ApiServer {
    /// The devices of a node.
    ///
    /// # Errors
    /// It does not tell, or of more than are read.
    pub async fn published(&self, node: &str) -> Result<Vec<Published>, AskError> {
        let slices: Api<ResourceSlice> = Api::all(self.client());
        let mut of_node =
            ListParams::default().fields(&format!("spec.nodeName={node}")).limit(limits::SLICES_PAGE);
        let mut devices = Vec::new();
        for _ in 0..limits::SLICES_PAGES {
            let list = slices.list(&of_node).await;
            let what = " the ResourceSlices of this node";
            let list = list.map_err(|why| AskError::Away { what, why: Box::new(why) })?;
            devices.extend(list.items.into_iter().flat_map(of));
            match list.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => of_node = of_node.continue_token(&next),
                None => return Ok(devices),
            }
        }
        Err(AskError::Overlong("this node has more ResourceSlices than are read"))
    }
}

/// The devices of a slice.
fn of(slice: ResourceSlice) -> impl Iterator<Item = Published> {
    let (driver, pool) = (slice.spec.driver, slice.spec.pool.name);
    slice.spec.devices.into_iter().flatten().map(move |device| {
        let uuid = uuid_of(&driver, &device);
        Published { driver: driver.clone(), pool: pool.clone(), device: device.name, uuid }
    })
}

/// A name without a domain is of the driver's own.
fn uuid_of(driver: &str, device: &Device) -> Option<String> {
    let attributes = device.attributes.as_ref()?;
    let attribute = attributes.get(UUID).or_else(|| attributes.get(&format!("{driver}/{UUID}")))?;
    attribute.string.clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Answer;
    use super::*;

    #[test]
    fn a_devices_uuid_is_its_attribute() {
        let uuid = "GPU-01010101-0101-0101-0101-010101010101";
        let slice = json!({ "metadata": {}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "node-1",
            "pool": { "name": "node-1", "generation": 1, "resourceSliceCount": 1 },
            "devices": [
                { "name": "gpu-0", "attributes": { "uuid": { "string": uuid }, "index": { "int": 0 } } },
                { "name": "gpu-1", "attributes": { "gpu.nvidia.com/uuid": { "string": uuid } } },
                { "name": "other", "attributes": { "example.com/uuid": { "string": uuid } } },
                { "name": "odd", "attributes": { "uuid": { "int": 7 } } },
                { "name": "bare" },
            ],
        }});
        let devices: Vec<_> = of(serde_json::from_value(slice).unwrap()).collect();
        assert!(devices.iter().all(|one| one.driver == "gpu.nvidia.com" && one.pool == "node-1"));
        let told: Vec<_> = devices.iter().map(|one| (one.device.as_str(), one.uuid.as_deref())).collect();
        let expected =
            [("gpu-0", Some(uuid)), ("gpu-1", Some(uuid)), ("other", None), ("odd", None), ("bare", None)];
        assert_eq!(told, expected);
    }

    /// So many pages, a device in each.
    fn pages(last: u32) -> ApiServer {
        let page = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        ApiServer::answering(move |asked| {
            assert_eq!(
                (asked.method.as_str(), asked.path.as_str()),
                ("GET", "/apis/resource.k8s.io/v1/resourceslices")
            );
            let number = page.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            let next = if number < last { number.to_string() } else { String::new() };
            let slice = json!({ "metadata": {}, "spec": { "driver": "d", "nodeName": "n",
                "pool": { "name": "p", "generation": 1, "resourceSliceCount": last },
                "devices": [{ "name": number.to_string() }] } });
            let body = json!({ "kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1",
                "metadata": { "continue": next }, "items": [slice] });
            std::future::ready(Answer { status: 200, body })
        })
    }

    #[tokio::test]
    async fn all_pages_are_read_and_of_too_many_none_is_taken_for_all() {
        let devices = pages(3).published("n").await.unwrap();
        assert_eq!(devices.iter().map(|one| one.device.as_str()).collect::<Vec<_>>(), ["1", "2", "3"]);
        let refused = pages(limits::SLICES_PAGES + 1).published("n").await.unwrap_err();
        assert!(matches!(refused, AskError::Overlong(_)), "{refused}");
        let away = ApiServer::answering(|_| {
            let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "so", "code": 403 });
            std::future::ready(Answer { status: 403, body })
        });
        let why = away.published("n").await.unwrap_err().to_string();
        assert!(
            why.starts_with("the API server does not tell the ResourceSlices of this node: ")
                && why.contains("so"),
            "{why}"
        );
    }
}
