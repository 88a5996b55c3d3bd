//! What the policy says of pods that come and start.

use super::*;

#[tokio::test]
async fn the_policy_says_what_holds_where_the_pod_does_not_and_frees_whom_the_one_before_held_back() {
    let policy = |rule: &str| {
        let text = format!("version: gpu-handoff.io/v1\nnamespaces: {{team: {{on-failure: {rule}}}}}\n");
        Arc::new(Policy::read(&text).unwrap())
    };
    let mut ground = asking_ground();
    let nobody = || Elsewhere::Pods(Vec::new());
    ground.takes_part("first", UID, 1, nobody()).await;
    ground.changes();
    ground.policy.send_replace(policy("start"));
    ground.takes_part("second", OTHER, 2, nobody()).await;
    assert_eq!(ground.changes(), ["holds", "containers"]);
    assert_eq!(ground.told(), ["TakesPart", "TakesPart", "GpuNotReachable"]);
    // Only its sidecar is there so far.
    ground.policy.send_replace(policy("always-block"));
    ground.membership.weigh_all().await.unwrap();
    assert_eq!(ground.changes(), ["held back GPU_NOT_REACHABLE"; 2], "both: neither runs yet");
    ground.policy.send_replace(policy("start"));
    ground.membership.weigh_all().await.unwrap();
    assert_eq!(ground.changes(), ["free"; 2]);
}

#[tokio::test]
async fn a_pod_that_asks_for_what_its_namespace_may_not_has_no_slot() {
    for (annotations, terms, said) in [
        (&[("group", "g")][..], "profiles: []", "profile: wanted none, found client"),
        (
            &[("group", "g"), ("on-failure", "start")],
            "on-failure: always-block",
            "on-failure: wanted block, found start",
        ),
    ] {
        let mut ground = ground();
        let text = format!("version: gpu-handoff.io/v1\nnamespaces: {{team: {{{terms}}}}}\n");
        ground.policy.send_replace(Arc::new(Policy::read(&text).unwrap()));
        ground.hear(added(pod(annotations))).await;
        match ground.ask(ground.publish("csi-1")).await {
            Some(Err(Refusal::Invalid(found))) => assert!(found.contains(said), "{found}"),
            other => panic!("{terms}: {other:?}"),
        }
        assert_eq!(ground.told(), ["SlotRefused"]);
        ground.policy.send_replace(Arc::default());
        assert_eq!(ground.ask(ground.publish("csi-1")).await, Some(Ok(())));
    }
}
