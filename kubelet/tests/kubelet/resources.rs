//! The kubelet's half of questions about devices.

use std::collections::VecDeque;
use std::sync::Mutex;

use gpu_handoff_kubelet::resources::{Resources, ResourcesError};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::fake::Served;
use crate::fake::wire::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use crate::fake::wire::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources,
};

/// Answers with its pods; `Get` with these errors first, where there are any.
struct Kubelet {
    pods: Vec<PodResources>,
    errors: Mutex<VecDeque<Status>>,
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        Ok(Response::new(ListPodResourcesResponse { pod_resources: self.pods.clone() }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Err(Status::internal("nobody asks this"))
    }

    async fn get(
        &self,
        asked: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        if let Some(error) = self.errors.lock().unwrap().pop_front() {
            return Err(error);
        }
        let asked = asked.into_inner();
        let is = |pod: &&PodResources| pod.name == asked.pod_name && pod.namespace == asked.pod_namespace;
        let pod = self.pods.iter().find(is).cloned();
        // As the kubelet says it.
        let pod = pod.ok_or_else(|| Status::unknown("pod not found"))?;
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(pod) }))
    }
}

fn pod(name: &str, device: &str) -> PodResources {
    PodResources {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        containers: vec![ContainerResources {
            name: "app".to_owned(),
            devices: vec![ContainerDevices {
                resource_name: "nvidia.com/gpu".to_owned(),
                device_ids: vec![device.to_owned()],
                topology: None,
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn kubelet(errors: impl IntoIterator<Item = Status>) -> PodResourcesListerServer<Kubelet> {
    let pods = vec![pod("a", "GPU-1::7"), pod("b", "GPU-2")];
    PodResourcesListerServer::new(Kubelet { pods, errors: Mutex::new(errors.into_iter().collect()) })
}

#[tokio::test]
async fn the_devices_of_one_pod_and_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pod-resources/kubelet.sock");
    let errors =
        [Status::unimplemented("older"), Status::unknown("switched off"), Status::internal("broken")];
    let served = Served::at(&socket, Server::builder().add_service(kubelet(errors)));
    let resources = Resources::open(socket.clone()).await.unwrap();
    assert_eq!(resources.list().await.unwrap().len(), 2);
    // By the list, twice.
    for _ in 0..2 {
        let a = resources.of_pod("default", "a").await.unwrap().unwrap();
        assert_eq!(a.containers["app"].plugin["nvidia.com/gpu"], ["GPU-1"]);
    }
    // An error that is one.
    assert!(matches!(resources.of_pod("default", "a").await, Err(ResourcesError::Asked(_))));
    let b = resources.of_pod("default", "b").await.unwrap().unwrap();
    assert_eq!(b.containers["app"].plugin["nvidia.com/gpu"], ["GPU-2"]);
    assert_eq!(resources.of_pod("other", "b").await.unwrap(), None);

    // The kubelet restarts.
    drop(served);
    let _served = Served::at(&socket, Server::builder().add_service(kubelet([])));
    crate::fake::soon(async { while resources.list().await.is_err() {} }).await;
}

#[tokio::test]
async fn a_kubelet_that_is_away_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Resources::open(folder.path().join("none.sock")).await.unwrap_err();
    assert!(error.to_string().contains("none.sock"), "{error}");
}
