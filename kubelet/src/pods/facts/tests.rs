//! From a pod to what is needed of it.

use super::*;

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn pod() -> core::Pod {
    let container = |name: &str, restart: Option<&str>| core::Container {
        name: text(name),
        restart_policy: restart.map(str::to_owned),
    };
    let status = |name: &str, id: &str, restarts| core::ContainerStatus {
        name: text(name),
        restart_count: Some(restarts),
        container_id: text(id),
    };
    core::Pod {
        metadata: Some(core::ObjectMeta {
            name: text("web-0"),
            namespace: text("default"),
            uid: text("8c0dd3e6-0d3c-4f0c-9d9e-6c6f3a0a1b2c"),
            deletion_timestamp: Some(core::Time { seconds: Some(1_900_000_000), nanos: None }),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            annotations: [("gpu-handoff.io/group", "g"), ("gpu-handoff.iox/group", "x"), ("other", "y")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        }),
        spec: Some(core::PodSpec {
            containers: vec![container("app", None), container("same", None)],
            service_account_name: text("builder"),
            host_pid: Some(true),
            init_containers: vec![container("setup", None), container("side", Some("Always"))],
            ephemeral_containers: vec![core::EphemeralContainer {
                ephemeral_container_common: Some(core::EphemeralContainerCommon { name: text("debug") }),
            }],
            ..Default::default()
        }),
        status: Some(core::PodStatus {
            phase: text("Running"),
            qos_class: text("Burstable"),
            container_statuses: vec![status("app", "containerd://a1", 3), status("same", "", 0)],
            init_container_statuses: vec![status("side", "containerd://51de", 1)],
            ..Default::default()
        }),
    }
}

#[test]
fn what_is_needed_of_a_pod() {
    let facts = facts(pod()).unwrap();
    assert_eq!(
        facts.annotations.into_iter().collect::<Vec<_>>(),
        [("gpu-handoff.io/group".into(), "g".into())]
    );
    assert_eq!((facts.host_network, facts.host_pid), (false, true));
    assert_eq!(facts.deletion, Some(UNIX_EPOCH + Duration::from_secs(1_900_000_000)));
    assert_eq!((facts.phase, facts.qos, facts.ended_by_kubelet), (Phase::Running, Qos::Burstable, false));
    assert_eq!(facts.service_account, "builder");
    let containers = facts.containers.iter();
    let containers: Vec<_> =
        containers.map(|c| (c.name.as_str(), c.kind, c.container_id.as_deref(), c.restart_count)).collect();
    assert_eq!(
        containers,
        [
            ("setup", ContainerKind::Init, None, 0),
            ("side", ContainerKind::Sidecar, Some("51de"), 1),
            ("app", ContainerKind::App, Some("a1"), 3),
            ("same", ContainerKind::App, None, 0),
            ("debug", ContainerKind::Ephemeral, None, 0),
        ]
    );
    assert!(!facts.truncated);
}

#[test]
fn an_end_by_the_kubelet_shows_and_what_is_only_announced_does_not() {
    let condition = |kind: &str, status: &str, reason: &str| {
        let mut pod = pod();
        let condition = core::PodCondition { r#type: text(kind), status: text(status), reason: text(reason) };
        pod.status.as_mut().unwrap().conditions.push(condition);
        facts(pod).unwrap().ended_by_kubelet
    };
    assert!(condition("DisruptionTarget", "True", "TerminationByKubelet"));
    assert!(!condition("DisruptionTarget", "False", "TerminationByKubelet"));
    assert!(!condition("Ready", "True", "TerminationByKubelet"));
    for announced in
        ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC", ""]
    {
        assert!(!condition("DisruptionTarget", "True", announced), "{announced}");
    }
}

#[test]
fn a_pod_without_a_name_is_none() {
    for change in [
        |metadata: &mut core::ObjectMeta| metadata.uid = None,
        |metadata: &mut core::ObjectMeta| metadata.uid = text("../x"),
        |metadata: &mut core::ObjectMeta| metadata.name = text("a/b"),
        |metadata: &mut core::ObjectMeta| metadata.namespace = text(""),
    ] {
        let mut pod = pod();
        change(pod.metadata.as_mut().unwrap());
        assert!(facts(pod).is_err());
    }
    assert!(facts(core::Pod::default()).is_err());
}

#[test]
fn what_is_too_much_is_left_out_and_said() {
    let mut large = pod();
    let annotations = &mut large.metadata.as_mut().unwrap().annotations;
    annotations.insert("gpu-handoff.io/a".to_owned(), "x".repeat(limits::ANNOTATIONS_BYTES));
    let facts_of_large = facts(large).unwrap();
    assert!(facts_of_large.truncated);
    assert_eq!(facts_of_large.annotations["gpu-handoff.io/group"], "g");

    let mut many = pod();
    let labels = &mut many.metadata.as_mut().unwrap().labels;
    labels.extend((0..limits::LABELS).map(|which| (which.to_string(), String::new())));
    let facts_of_many = facts(many).unwrap();
    assert!(facts_of_many.truncated);
    assert_eq!(facts_of_many.labels.len(), limits::LABELS);

    let mut crowded = pod();
    let containers = &mut crowded.spec.as_mut().unwrap().containers;
    containers.resize(limits::CONTAINERS, core::Container { name: text("c"), restart_policy: None });
    assert!(facts(crowded).unwrap().truncated);
}
