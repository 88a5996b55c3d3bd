//! The GPUs of a pod by the kubelet's answer. Pure.

use std::collections::BTreeSet;

use gpu_handoff_kubelet::pods::PodFacts;
use gpu_handoff_kubelet::resources::{ClaimedDevice, PodDevices};
use gpu_handoff_protocol::DeviceUuid;

use super::Unknown;
use super::slices::Devices;

/// What ids of devices of ours begin with, as device plugins and drivers name them.
const BEGINNINGS: [&str; 2] = ["GPU-", "MIG-"];

/// Resources whose devices are GPUs, whatever their ids look like.
const GPU_RESOURCES: &str = "nvidia.com/";

/// A GPU's UUID, if a device's id is one.
pub(super) fn uuid(id: &str) -> Option<DeviceUuid> {
    BEGINNINGS.iter().any(|beginning| id.starts_with(beginning)).then(|| id.parse().ok())?
}

/// All devices of claims.
pub(super) fn claimed(told: &PodDevices) -> Vec<&ClaimedDevice> {
    told.containers.values().flat_map(|container| &container.claimed).collect()
}

/// The GPUs of all containers together, in order; an error says what is not known.
pub(super) fn by(pod: &PodFacts, told: &PodDevices, known: &Devices) -> Result<Vec<DeviceUuid>, Unknown> {
    let is_of_pod = |name: &String| pod.containers.iter().any(|container| container.name == *name);
    if let Some(stranger) = told.containers.keys().find(|name| !is_of_pod(name)) {
        let why = format!("the kubelet tells of another pod of that name: of its container {stranger:?}");
        return Err(Unknown::Yet(why));
    }
    let mut held = BTreeSet::new();
    for container in told.containers.values() {
        for (resource, ids) in &container.plugin {
            for id in ids {
                match uuid(id) {
                    Some(uuid) => drop(held.insert(uuid)),
                    None if resource.starts_with(GPU_RESOURCES) => {
                        // A running pod is given nothing else.
                        let why = format!("device {id:?} of {resource} is no GPU's UUID");
                        return Err(Unknown::ForGood(why));
                    }
                    None => {}
                }
            }
        }
        for device in &container.claimed {
            match known.get(&device.driver, &device.pool, &device.device) {
                Some(uuid) => held.extend(uuid),
                None => {
                    let ClaimedDevice { claim, driver, pool, device, .. } = device;
                    return Err(Unknown::Yet(format!(
                        "no ResourceSlice of {driver} tells of device {device} of pool {pool}, which claim {claim} has"
                    )));
                }
            }
        }
    }
    Ok(held.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpu_handoff_kubelet::api::slices::Published;
    use gpu_handoff_kubelet::resources::ContainerDevices;

    use super::*;
    use crate::node::membership::testing::pod;

    const ONE: &str = "GPU-01010101-0101-0101-0101-010101010101";
    const MIG: &str = "MIG-02020202-0202-0202-0202-020202020202";

    fn told(containers: &[(&str, ContainerDevices)]) -> PodDevices {
        let containers = containers.iter().map(|(name, devices)| ((*name).to_owned(), devices.clone()));
        PodDevices { namespace: "team".into(), name: "producer".into(), containers: containers.collect() }
    }

    fn plugin(resource: &str, ids: &[&str]) -> ContainerDevices {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        ContainerDevices { plugin: BTreeMap::from([(resource.to_owned(), ids)]), claimed: Vec::new() }
    }

    fn claim(driver: &str, device: &str) -> ContainerDevices {
        let claimed = ClaimedDevice {
            claim_namespace: "team".into(),
            claim: "shared".into(),
            driver: driver.into(),
            pool: "node-1".into(),
            device: device.into(),
            share: None,
            cdi: Vec::new(),
        };
        ContainerDevices { plugin: BTreeMap::new(), claimed: vec![claimed] }
    }

    fn published((driver, device, uuid): (&str, &str, Option<&str>)) -> Published {
        let [driver, pool, device] = [driver, "node-1", device].map(str::to_owned);
        Published { driver, pool, device, uuid: uuid.map(str::to_owned) }
    }

    fn by(told: &PodDevices, known: &Devices) -> Result<Vec<DeviceUuid>, Unknown> {
        super::by(&pod(&[]), told, known)
    }

    #[test]
    fn a_pod_holds_what_any_of_its_containers_was_given() {
        let devices = [("gpu.nvidia.com", "gpu-0", Some(ONE)), ("nic.example.com", "eth0", None)];
        let known = Devices::of(devices.map(published).into());
        let [one, mig] = [ONE, MIG].map(|id| id.parse().unwrap());
        let held = |containers: &[(&str, ContainerDevices)]| by(&told(containers), &known).unwrap();
        assert_eq!(held(&[("app", plugin("nvidia.com/gpu", &[ONE, MIG]))]), [one, mig]);
        assert_eq!(held(&[("app", claim("gpu.nvidia.com", "gpu-0"))]), [one]);
        // What is no GPU is none, by whomever it was given.
        assert_eq!(held(&[("app", plugin("rdma/hca", &["mlx5_0", "7"]))]), []);
        assert_eq!(held(&[("app", claim("nic.example.com", "eth0"))]), []);
        assert_eq!(held(&[("app", ContainerDevices::default())]), []);
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let known = Devices::default();
        let why = |container: &str, devices| by(&told(&[(container, devices)]), &known).unwrap_err();
        let is = |why: Unknown, part: &str, yet: bool| {
            assert!(why.to_string().contains(part) && matches!(why, Unknown::Yet(_)) == yet, "{why}");
        };
        is(why("app", plugin("nvidia.com/gpu", &["0"])), "no GPU's UUID", false);
        is(why("app", claim("gpu.nvidia.com", "gpu-0")), "no ResourceSlice", true);
        // A pod that had the name before.
        is(why("train", plugin("nvidia.com/gpu", &[ONE])), "another pod", true);
    }
}
