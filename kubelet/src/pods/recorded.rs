//! Pods as Kubernetes itself marshals them, and as both sources tell them: `tests/recorded/README.md`.

use std::time::{Duration, UNIX_EPOCH};

use prost::Message;

use super::facts::facts;
use super::from_kube;
use super::{ContainerKind, Phase, PodFacts, Qos};
use crate::proto::core;

fn from_kubelet() -> PodFacts {
    let bytes = include_bytes!("../../tests/recorded/member.pb");
    facts(core::Pod::decode(bytes.as_slice()).unwrap()).unwrap()
}

#[test]
fn a_pod_that_kubernetes_marshalled_is_read() {
    let pod = from_kubelet();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "member"));
    assert_eq!(pod.uid.len(), 36);
    let annotations: Vec<_> =
        pod.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(annotations, [("gpu-handoff.io/group", "g"), ("gpu-handoff.io/profile", "client")]);
    assert_eq!(pod.labels["app"], "web");
    assert_eq!(pod.service_account, "builder");
    assert_eq!((pod.host_network, pod.host_pid, pod.deletion), (false, false, None));
    assert_eq!((pod.phase, pod.qos), (Phase::Running, Qos::Guaranteed));
    let containers: Vec<_> = pod.containers.iter().map(|one| (one.name.as_str(), one.kind)).collect();
    let expected = [
        ("setup", ContainerKind::Init),
        ("gpu-handoff", ContainerKind::Sidecar),
        ("app", ContainerKind::App),
    ];
    assert_eq!(containers, expected);
    for container in &pod.containers {
        let id = container.container_id.as_deref().unwrap();
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
}

#[test]
fn everything_that_is_read_of_a_pod_is_where_kubernetes_puts_it() {
    let bytes = include_bytes!("../../tests/recorded/full.pb");
    let pod = facts(core::Pod::decode(bytes.as_slice()).unwrap()).unwrap();
    let text = include_str!("../../tests/recorded/full.json");
    assert_eq!(facts(from_kube::pod(serde_json::from_str(text).unwrap())).unwrap(), pod);

    assert_eq!((pod.host_network, pod.host_pid, pod.ended_by_kubelet), (true, true, true));
    assert_eq!(pod.deletion, Some(UNIX_EPOCH + Duration::from_secs(1_900_000_000)));
    assert_eq!((pod.phase, pod.qos), (Phase::Failed, Qos::Burstable));
    let containers = pod.containers.iter();
    let containers: Vec<_> = containers
        .map(|one| (one.name.as_str(), one.kind, one.container_id.as_deref(), one.restart_count))
        .collect();
    let expected = [
        ("setup", ContainerKind::Init, Some("5e"), 0),
        ("side", ContainerKind::Sidecar, Some("51"), 4),
        ("app", ContainerKind::App, Some("a0"), 3),
        ("second", ContainerKind::App, None, 0),
        ("debug", ContainerKind::Ephemeral, Some("de"), 0),
    ];
    assert_eq!(containers, expected);
}

#[test]
fn both_sources_tell_the_same() {
    let text = include_str!("../../tests/recorded/member.json");
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_str(text).unwrap();
    assert_eq!(facts(from_kube::pod(pod)).unwrap(), from_kubelet());
}
