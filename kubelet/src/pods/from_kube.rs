//! A pod as the API server's client has it becomes one as the kubelet sends it, so that one reading serves both.

use k8s_openapi::api::core::v1 as kube;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::proto::core;

/// What the kubelet puts into the mirror of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether it is the mirror of a static pod, or says so.
pub(super) fn is_mirror(pod: &kube::Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR))
}

pub(super) fn pod(pod: kube::Pod) -> core::Pod {
    core::Pod {
        metadata: Some(metadata(pod.metadata)),
        spec: pod.spec.map(spec),
        status: pod.status.map(status),
    }
}

fn metadata(metadata: ObjectMeta) -> core::ObjectMeta {
    core::ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        deletion_timestamp: metadata
            .deletion_timestamp
            .map(|time| core::Time { seconds: Some(time.0.as_second()), nanos: None }),
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata.annotations.unwrap_or_default(),
    }
}

fn spec(spec: kube::PodSpec) -> core::PodSpec {
    let ephemeral = spec.ephemeral_containers.unwrap_or_default().into_iter().map(|container| {
        let common = core::EphemeralContainerCommon { name: Some(container.name) };
        core::EphemeralContainer { ephemeral_container_common: Some(common) }
    });
    core::PodSpec {
        containers: spec.containers.into_iter().map(container).collect(),
        service_account_name: spec.service_account_name,
        host_network: spec.host_network,
        host_pid: spec.host_pid,
        init_containers: spec.init_containers.unwrap_or_default().into_iter().map(container).collect(),
        ephemeral_containers: ephemeral.collect(),
    }
}

fn container(container: kube::Container) -> core::Container {
    core::Container { name: Some(container.name), restart_policy: container.restart_policy }
}

fn status(status: kube::PodStatus) -> core::PodStatus {
    let conditions = status.conditions.unwrap_or_default().into_iter().map(|condition| core::PodCondition {
        r#type: Some(condition.type_),
        status: Some(condition.status),
        reason: condition.reason,
    });
    let statuses = |statuses: Option<Vec<kube::ContainerStatus>>| {
        let one = |status: kube::ContainerStatus| core::ContainerStatus {
            name: Some(status.name),
            restart_count: Some(status.restart_count),
            container_id: status.container_id,
        };
        statuses.unwrap_or_default().into_iter().map(one).collect()
    };
    core::PodStatus {
        phase: status.phase,
        conditions: conditions.collect(),
        container_statuses: statuses(status.container_statuses),
        qos_class: status.qos_class,
        init_container_statuses: statuses(status.init_container_statuses),
        ephemeral_container_statuses: statuses(status.ephemeral_container_statuses),
    }
}
