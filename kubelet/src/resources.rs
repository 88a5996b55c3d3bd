//! The devices of a pod's containers, as the kubelet's PodResources API tells them.
//!
//! Its answers name pods by namespace and name, not by UID: a pod that has the name of one that is gone may be told the devices of
//! that one for a moment. Whoever asks must know that the pod is the one it means ([`crate::pods`]), before and after.
//!
//! Of claims they tell more than a container has (seen with Kubernetes 1.37.2): all devices of a claim, also where the container has
//! one request of it only. What it can really reach, its device nodes say.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::limits;
use crate::pods::connect;
use crate::proto::podresources as wire;
use crate::proto::podresources::pod_resources_lister_client::PodResourcesListerClient;

/// Where the kubelet serves this, below its root.
pub const SOCKET: &str = "pod-resources/kubelet.sock";

/// The kubelet did not say which devices there are.
#[derive(Debug, thiserror::Error)]
pub enum ResourcesError {
    /// Nobody answers.
    #[error("connect to the kubelet's PodResources API at {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the transport said.
        source: tonic::transport::Error,
    },
    /// It tells of two pods of that name: one is gone, and nobody says which.
    #[error("the kubelet tells of {0} pods of that name")]
    SeveralOfThatName(usize),
    /// It answered with an error, or not in time.
    #[error("ask the kubelet's PodResources API")]
    Asked(#[from] Status),
}

/// What a container was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDevices {
    /// Devices of device plugins, by resource (`nvidia.com/gpu`): ids without the `::n` of a replica, each once.
    pub plugin: BTreeMap<String, Vec<String>>,
    /// Devices of claims (DRA).
    pub claimed: Vec<ClaimedDevice>,
}

/// A device of a ResourceClaim. Its UUID is an attribute of the device in its driver's ResourceSlices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedDevice {
    /// The claim's namespace.
    pub claim_namespace: String,
    /// The claim's name.
    pub claim: String,
    /// The driver: `gpu.nvidia.com`.
    pub driver: String,
    /// The pool, mostly the node's name.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// The share of a device that several claims have a part of.
    pub share: Option<String>,
    /// The names of CDI devices that came into the container for it. The kubelet (1.37.2) adds those of the claim's devices that it told
    /// before this one: only `device` says which it is.
    pub cdi: Vec<String>,
}

/// What a pod was given, by container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDevices {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// By the containers' names. Those that were given nothing are there, too.
    pub containers: BTreeMap<String, ContainerDevices>,
}

/// Asks the kubelet.
#[derive(Clone, Debug)]
pub struct Resources {
    client: PodResourcesListerClient<Channel>,
}

impl Resources {
    /// Connects to the kubelet. Where the connection is lost, the next question makes a new one.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn open(socket: PathBuf) -> Result<Self, ResourcesError> {
        let channel = connect(&socket).await;
        let channel = channel.map_err(|source| ResourcesError::Connect { path: socket, source })?;
        let client =
            PodResourcesListerClient::new(channel).max_decoding_message_size(limits::RESOURCES_BYTES);
        Ok(Self { client })
    }

    /// The devices of all pods of this node that run.
    ///
    /// # Errors
    /// The kubelet does not answer, or not in time.
    pub async fn list(&self) -> Result<Vec<PodDevices>, ResourcesError> {
        let asked = within_time(wire::ListPodResourcesRequest {});
        let answer = self.client.clone().list(asked).await?.into_inner();
        Ok(answer.pod_resources.into_iter().map(pod).collect())
    }

    /// The devices of one pod; none where the kubelet knows no such pod. A kubelet that cannot be asked for one pod (before
    /// Kubernetes 1.36 that is an option) is asked for all.
    ///
    /// # Errors
    /// The kubelet does not answer, or not in time.
    pub async fn of_pod(&self, namespace: &str, name: &str) -> Result<Option<PodDevices>, ResourcesError> {
        let asked =
            wire::GetPodResourcesRequest { pod_name: name.to_owned(), pod_namespace: namespace.to_owned() };
        match self.client.clone().get(within_time(asked)).await {
            Ok(answer) => Ok(answer.into_inner().pod_resources.map(pod)),
            // Where Get is switched off, or does not find the pod, the error is one without a code of its own.
            Err(error) if matches!(error.code(), Code::Unimplemented | Code::Unknown | Code::NotFound) => {
                let all = self.list().await?.into_iter();
                only(all.filter(|pod| pod.namespace == namespace && pod.name == name).collect())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The one that there is, if there is one.
fn only(mut pods: Vec<PodDevices>) -> Result<Option<PodDevices>, ResourcesError> {
    if pods.len() > 1 {
        return Err(ResourcesError::SeveralOfThatName(pods.len()));
    }
    Ok(pods.pop())
}

fn within_time<T>(asked: T) -> tonic::Request<T> {
    let mut asked = tonic::Request::new(asked);
    asked.set_timeout(limits::RESOURCES_TIME);
    asked
}

fn pod(told: wire::PodResources) -> PodDevices {
    let containers = told.containers.into_iter().map(|told| (told.name.clone(), container(told))).collect();
    PodDevices { namespace: told.namespace, name: told.name, containers }
}

fn container(told: wire::ContainerResources) -> ContainerDevices {
    let mut plugin = BTreeMap::<String, Vec<String>>::new();
    for devices in told.devices {
        let known = plugin.entry(devices.resource_name).or_default();
        for id in devices.device_ids {
            let id = without_replica(&id);
            if !known.iter().any(|known| known == id) {
                known.push(id.to_owned());
            }
        }
    }
    let claimed = told.dynamic_resources.into_iter().flat_map(claimed).collect();
    ContainerDevices { plugin, claimed }
}

fn claimed(told: wire::DynamicResource) -> impl Iterator<Item = ClaimedDevice> {
    let (claim_namespace, claim) = (told.claim_namespace, told.claim_name);
    told.claim_resources.into_iter().map(move |told| ClaimedDevice {
        claim_namespace: claim_namespace.clone(),
        claim: claim.clone(),
        driver: told.driver_name,
        pool: told.pool_name,
        device: told.device_name,
        share: told.share_id,
        cdi: told.cdi_devices.into_iter().map(|device| device.name).collect(),
    })
}

/// A device's id without what NVIDIA's device plugin adds where several containers share the device: `::` and a number.
#[must_use]
pub fn without_replica(id: &str) -> &str {
    match id.rsplit_once("::") {
        Some((device, replica))
            if !replica.is_empty() && replica.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            device
        }
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_pods_of_one_name_none_is_taken() {
        assert_eq!(only(Vec::new()).unwrap(), None);
        assert_eq!(only(vec![PodDevices::default()]).unwrap(), Some(PodDevices::default()));
        assert!(matches!(only(vec![PodDevices::default(); 2]), Err(ResourcesError::SeveralOfThatName(2))));
    }

    #[test]
    fn replicas_are_the_device_itself() {
        assert_eq!(without_replica("GPU-1::0"), "GPU-1");
        assert_eq!(without_replica("MIG-1::12"), "MIG-1");
        for whole in ["GPU-1", "GPU-1::", "GPU-1::a", "::", "a:1", ""] {
            assert_eq!(without_replica(whole), whole);
        }
    }

    #[test]
    fn a_container_has_each_device_once_and_its_claims_devices() {
        let devices = |ids: &[&str]| wire::ContainerDevices {
            resource_name: "nvidia.com/gpu".to_owned(),
            device_ids: ids.iter().map(|&id| id.to_owned()).collect(),
            topology: None,
        };
        let claim = wire::DynamicResource {
            claim_name: "both".to_owned(),
            claim_namespace: "default".to_owned(),
            claim_resources: vec![wire::ClaimResource {
                cdi_devices: vec![wire::CdiDevice { name: "k8s.gpu.nvidia.com/device=x".to_owned() }],
                driver_name: "gpu.nvidia.com".to_owned(),
                pool_name: "node".to_owned(),
                device_name: "gpu-0".to_owned(),
                share_id: None,
            }],
        };
        let told = wire::PodResources {
            name: "p".to_owned(),
            namespace: "default".to_owned(),
            containers: vec![
                wire::ContainerResources {
                    name: "app".to_owned(),
                    // One entry for each NUMA node.
                    devices: vec![devices(&["GPU-1::3", "GPU-2::0"]), devices(&["GPU-1::4"])],
                    dynamic_resources: vec![claim],
                    ..Default::default()
                },
                wire::ContainerResources { name: "side".to_owned(), ..Default::default() },
            ],
            ..Default::default()
        };
        let pod = pod(told);
        assert_eq!(pod.containers["app"].plugin["nvidia.com/gpu"], ["GPU-1", "GPU-2"]);
        let claimed = &pod.containers["app"].claimed[0];
        assert_eq!((claimed.claim.as_str(), claimed.device.as_str()), ("both", "gpu-0"));
        assert_eq!(claimed.cdi, ["k8s.gpu.nvidia.com/device=x"]);
        assert_eq!(pod.containers["side"], ContainerDevices::default());
    }
}
