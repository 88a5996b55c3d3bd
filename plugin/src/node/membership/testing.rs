//! A pod for tests.

use std::collections::BTreeMap;

use gpu_handoff_kubelet::csi::{PodName, Publish};
use gpu_handoff_kubelet::pods::{ContainerFacts, ContainerKind, Phase, PodFacts, Qos};

use super::Volume;

pub(in crate::node) const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

/// A volume of a pod that is a member.
pub(in crate::node) fn volume(id: &str) -> Volume {
    let publish = Publish {
        volume: id.to_owned(),
        pod: PodName { namespace: "team".into(), name: "producer".into(), uid: UID.into() },
        service_account: "default".to_owned(),
        name: "slot".to_owned(),
        target: "/nowhere".into(),
    };
    Volume::of(&publish, &pod(&[("group", "g")])).unwrap().0
}

/// With these annotations of ours.
pub(in crate::node) fn pod(annotations: &[(&str, &str)]) -> PodFacts {
    let container = ContainerFacts {
        name: "app".to_owned(),
        kind: ContainerKind::App,
        container_id: Some("a".repeat(64)),
        restart_count: 0,
    };
    PodFacts {
        namespace: "team".to_owned(),
        name: "producer".to_owned(),
        uid: UID.to_owned(),
        annotations: annotations
            .iter()
            .map(|(key, value)| (format!("gpu-handoff.io/{key}"), (*value).to_owned()))
            .collect(),
        labels: BTreeMap::from([("job".to_owned(), "train".to_owned())]),
        service_account: "default".to_owned(),
        host_network: false,
        host_pid: false,
        deletion: None,
        ended_by_kubelet: false,
        phase: Phase::Pending,
        containers: vec![container],
        qos: Qos::BestEffort,
        truncated: false,
    }
}
