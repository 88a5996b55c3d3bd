//! What one pod may do.

use std::time::Duration;

use gpu_handoff_protocol::{BufferFacts, Code, Kind, Lifetime, Refusal};

use super::{Pod, facts, policy};
use crate::{Asks, Devices, Held, OnFailure, Orphans, Policy, Profile, Quota, Unadjusted, Usage};

fn publish(policy: &Policy, pod: &str, held: &Held, kind: Kind) -> Result<(), Refusal> {
    policy.may_publish(&Pod::new(pod).party(), held, &facts(kind))
}

fn code(outcome: Result<(), Refusal>) -> Option<Code> {
    outcome.err().map(|refusal| refusal.code())
}

#[test]
fn legacy_is_denied_until_one_line_allows_it() {
    let none = Held::default();
    let refusal = publish(&Policy::default(), "ml g", &none, Kind::Legacy).unwrap_err();
    assert!(
        refusal
            .to_string()
            .starts_with("refused: POLICY_DENIED (legacy: wanted within-namespace, found deny)")
    );
    assert_eq!(publish(&policy("legacy: within-namespace\n"), "ml g", &none, Kind::Legacy), Ok(()));
    let one = policy("namespaces: {ml: {legacy: within-namespace}, web: {}}\n");
    assert_eq!(publish(&one, "ml g", &none, Kind::Legacy), Ok(()));
    assert_eq!(code(publish(&one, "web g", &none, Kind::Legacy)), Some(Code::PolicyDenied));
    assert_eq!(code(publish(&one, "ml web/g", &none, Kind::Legacy)), Some(Code::PolicyDenied));
    assert!(one.has_legacy() && !Policy::default().has_legacy());
    let but_one = policy("legacy: within-namespace\nnamespaces: {ml: {legacy: deny}}\n");
    assert_eq!(code(publish(&but_one, "ml g", &none, Kind::Legacy)), Some(Code::PolicyDenied));
}

#[test]
fn kinds_profiles_and_devices_are_granted_by_namespace() {
    let policy =
        policy("kinds: [vmm]\nnamespaces: {ml: {kinds: [timeline], profiles: [torch], devices: group}}\n");
    let none = Held::default();
    for (pod, kind, granted) in [
        ("web g", Kind::Vmm, true),
        ("web g", Kind::Timeline, false),
        ("ml g", Kind::Vmm, false),
        ("ml g", Kind::Timeline, true),
    ] {
        let wanted = (!granted).then_some(Code::PolicyDenied);
        assert_eq!(code(publish(&policy, pod, &none, kind)), wanted, "{pod} {kind:?}");
    }
    let denied = |pod, profile, devices| {
        let asks = Asks { profile, shares: false, devices, on_failure: None };
        let refusals = policy.denied_of(&Pod::new(pod).party(), asks);
        refusals.iter().map(|refusal| refusal.compared()[0].what.clone()).collect::<Vec<_>>()
    };
    for (namespace, profile, granted) in [
        ("web g", Profile::Client, true),
        ("web g", Profile::Torch, false),
        ("ml g", Profile::Client, false),
        ("ml g", Profile::Torch, true),
    ] {
        let found = denied(namespace, profile, Devices::Own);
        assert_eq!(found.is_empty(), granted, "{namespace} {profile} {found:?}");
    }
    for (namespace, profile, most) in
        [("web g", Profile::Client, Devices::Own), ("ml g", Profile::Torch, Devices::Group)]
    {
        for devices in Devices::ALL {
            assert_eq!(denied(namespace, profile, *devices).is_empty(), *devices <= most);
        }
    }
    assert_eq!(denied("web g", Profile::Torch, Devices::Node), ["profile", "devices"], "all that is wrong");
}

#[test]
fn what_is_shared_beside_buffers_takes_a_profile_that_brings_it_and_stays_within_a_namespace() {
    let policy = policy(
        "namespaces: {ml: {profiles: [client, torch]}, web: {profiles: [client]}, hpc: {profiles: [client, nccl]}}\n",
    );
    let denied = |pod: &str, profile, shares| {
        let asks = Asks { profile, shares, devices: Devices::Own, on_failure: None };
        let refusals = policy.denied_of(&Pod::new(pod).party(), asks);
        assert!(refusals.iter().all(|refusal| refusal.code() == Code::PolicyDenied));
        refusals
            .iter()
            .map(|refusal| refusal.compared()[0].clone())
            .map(|c| (c.what, c.found))
            .collect::<Vec<_>>()
    };
    let [parts, guest] = [
        ("profile".to_owned(), "client with parts of torch or nccl".to_owned()),
        ("group".to_owned(), "data/g".to_owned()),
    ];
    for (pod, profile, shares, wanted) in [
        ("ml g", Profile::Client, true, &[][..]),
        ("hpc g", Profile::Client, true, &[]),
        ("ml g", Profile::Torch, true, &[]),
        ("web g", Profile::Client, false, &[]),
        ("web g", Profile::Client, true, std::slice::from_ref(&parts)),
        ("other g", Profile::Client, true, std::slice::from_ref(&parts)),
        // Buffers are exchanged with others where rules say so; nothing else is.
        ("ml data/g", Profile::Client, false, &[]),
        ("ml data/g", Profile::Client, true, std::slice::from_ref(&guest)),
        ("ml data/g", Profile::Torch, true, std::slice::from_ref(&guest)),
        ("web data/g", Profile::Client, true, &[parts.clone(), guest.clone()]),
        // All of its parts were set back: it is granted the profile, and shares nothing.
        ("ml data/g", Profile::Torch, false, &[]),
    ] {
        assert_eq!(denied(pod, profile, shares), wanted, "{pod} {profile} {shares}");
    }
}

fn asks(on_failure: Option<OnFailure>) -> Asks {
    Asks { profile: Profile::Client, shares: false, devices: Devices::Own, on_failure }
}

#[test]
fn a_failed_start_is_as_the_pod_asks_within_what_its_namespace_may() {
    let (start, block) = (Some(OnFailure::Start), Some(OnFailure::Block));
    let policy =
        policy("on-failure: start\nnamespaces: {ml: {on-failure: always-block}, web: {on-failure: block}}\n");
    for (namespace, asked, wanted) in [
        ("ml", None, OnFailure::Block),
        ("ml", block, OnFailure::Block),
        // It was let in by another policy.
        ("ml", start, OnFailure::Block),
        ("web", None, OnFailure::Block),
        ("web", start, OnFailure::Start),
        ("other", None, OnFailure::Start),
        ("other", block, OnFailure::Block),
    ] {
        let pod = Pod::new(&format!("{namespace} g"));
        assert_eq!(policy.on_failure_of(&pod.namespace, asked), wanted, "{namespace} {asked:?}");
        let is_denied = namespace == "ml" && asked == start;
        assert_eq!(
            !policy.denied_of(&pod.party(), asks(asked)).is_empty(),
            is_denied,
            "{namespace} {asked:?}"
        );
    }
    let of_default = |asked| Policy::default().on_failure_of(&Pod::new("ml g").namespace, asked);
    assert_eq!((of_default(None), of_default(start)), (OnFailure::Block, OnFailure::Start));
    let [refusal] = &policy.denied_of(&Pod::new("ml g").party(), asks(start))[..] else { panic!() };
    let text = refusal.to_string();
    assert!(text.starts_with("refused: POLICY_DENIED (on-failure: wanted block, found start)"), "{text}");
    assert!(text.contains("`namespaces.ml.on-failure: block`"), "{text}");
}

#[test]
fn quotas_are_inclusive_and_of_the_pod_and_of_its_group() {
    let limits = "{buffers: 2, bytes: 25, leases: 1, descriptors: 1}";
    let none = Usage::default();
    for (key, what) in [("quota", ""), ("group-quota", " of the group")] {
        let policy = policy(&format!("{key}: {limits}\n"));
        let held = |buffers, bytes, leases, descriptors| {
            let usage = Usage { buffers, bytes, leases, descriptors, ..none };
            if key == "quota" { Held { pod: usage, group: none } } else { Held { pod: none, group: usage } }
        };
        let refused = |held, kind| publish(&policy, "ml g", &held, kind).unwrap_err().to_string();
        assert_eq!(publish(&policy, "ml g", &held(1, 15, 0, 0), Kind::Vmm), Ok(()));
        assert!(
            refused(held(2, 0, 0, 0), Kind::Vmm)
                .starts_with(&format!("refused: QUOTA_BUFFERS (buffers{what}: "))
        );
        assert!(
            refused(held(0, 16, 0, 0), Kind::Vmm)
                .starts_with(&format!("refused: QUOTA_BYTES (bytes{what}: "))
        );
        let descriptors = refused(held(0, 0, 0, 1), Kind::Vmm);
        assert!(
            descriptors.starts_with(&format!("refused: QUOTA_DESCRIPTORS (descriptors{what}: ")),
            "{descriptors}"
        );
        let pod = Pod::new("ml g");
        assert_eq!(policy.may_hold(&pod.party(), &held(1, 0, 0, 0), 1), Ok(()));
        assert_eq!(code(policy.may_hold(&pod.party(), &held(1, 0, 0, 0), 2)), Some(Code::QuotaBuffers));
        assert_eq!(policy.may_lease(&pod.party(), &held(0, 0, 0, 0), 1), Ok(()));
        assert_eq!(code(policy.may_lease(&pod.party(), &held(0, 0, 1, 0), 1)), Some(Code::QuotaLeases));
        assert_eq!(
            code(policy.may_lease(&pod.party(), &held(0, 0, 0, 0), u64::MAX)),
            Some(Code::QuotaLeases)
        );
    }
}

#[test]
fn namespaces_and_groups_say_only_what_is_otherwise() {
    let policy = policy(
        "quota: {buffers: 10, leases: 10}\ngroup-quota: {buffers: 100}\nretire-deadline: 5s\nnamespaces:\n  ml:\n    \
         quota: {buffers: 20}\n    orphans: evict\n    unadjusted: report\n    retire-deadline: 1s\n    groups:\n      big: {quota: {leases: 30}, \
         group-quota: {buffers: 300}}\n",
    );
    let quota = |pod: &str| {
        let pod = Pod::new(pod);
        let (own, group) = (policy.quota_of(&pod.party()), policy.group_quota_of(&pod.group));
        (own.buffers, own.leases, group.buffers)
    };
    assert_eq!(quota("web big"), (10, 10, 100));
    assert_eq!(quota("ml small"), (20, 10, 100));
    assert_eq!(quota("ml big"), (20, 30, 300));
    // A guest has its own namespace's terms, and counts for the group.
    assert_eq!(quota("web ml/big"), (10, 10, 300));
    assert_eq!(quota("ml web/big"), (20, 10, 100));
    let (ml, web) = (Pod::new("ml g").namespace, Pod::new("web g").namespace);
    assert_eq!((policy.orphans_of(&ml), policy.orphans_of(&web)), (Orphans::Evict, Orphans::Report));
    assert_eq!(
        (policy.unadjusted_of(&ml), policy.unadjusted_of(&web)),
        (Unadjusted::Report, Unadjusted::Kill)
    );
    assert!(policy.evicts() && !Policy::default().evicts());
    let seconds = |namespace| policy.retire_deadline_of(namespace);
    assert_eq!((seconds(&ml), seconds(&web)), (Duration::from_secs(1), Duration::from_secs(5)));
}

#[test]
fn pod_lifetime_needs_a_grant_of_bytes() {
    let lasting = |kind| BufferFacts { lifetime: Lifetime::Pod, ..facts(kind) };
    let pod = Pod::new("ml g");
    let held =
        |bytes| Held { pod: Usage { pod_lifetime_bytes: bytes, ..Usage::default() }, ..Held::default() };
    let refusal = Policy::default().may_publish(&pod.party(), &held(0), &lasting(Kind::Vmm)).unwrap_err();
    assert!(
        refusal
            .to_string()
            .starts_with("refused: POLICY_DENIED (bytes of lifetime pod: wanted at most 0, found 10)")
    );
    let granted = policy("legacy: within-namespace\nnamespaces: {ml: {pod-lifetime-bytes: 25}}\n");
    assert_eq!(granted.may_publish(&pod.party(), &held(15), &lasting(Kind::Vmm)), Ok(()));
    for (held, kind) in [(held(16), Kind::Vmm), (held(u64::MAX), Kind::Vmm), (held(0), Kind::Legacy)] {
        let outcome = granted.may_publish(&pod.party(), &held, &lasting(kind));
        assert_eq!(code(outcome), Some(Code::PolicyDenied), "{held:?} {kind:?}");
    }
}

#[test]
fn the_page_of_refusals_shows_the_quotas_that_hold_where_nothing_is_said() {
    let (policy, quota, pod) = (Policy::default(), Quota::default(), Pod::new("ml weights"));
    let full = Usage { buffers: quota.buffers, leases: quota.leases, ..Usage::default() };
    let nearly = Usage { bytes: quota.bytes - (1 << 30), ..Usage::default() };
    let held = |pod| Held { pod, group: pod };
    let large = BufferFacts { allocation_size: 2 << 30, ..facts(Kind::Vmm) };
    let refusals = [
        policy.may_publish(&pod.party(), &held(full), &facts(Kind::Vmm)),
        policy.may_publish(&pod.party(), &held(nearly), &large),
        policy.may_lease(&pod.party(), &held(full), 1),
        policy.may_publish(&pod.party(), &held(Usage::default()), &facts(Kind::Legacy)),
    ];
    let page = include_str!("../../../docs/refusals.md");
    for refusal in refusals.map(|outcome| outcome.unwrap_err().to_string()) {
        let (example, _) = refusal.split_once("; remedy").unwrap();
        assert!(page.contains(&format!("    {example}\n")), "{example}");
    }
    // What the node counts by itself.
    for (code, limit) in
        [(Code::TooManyRequests, quota.requests), (Code::TooManyConnections, quota.connections)]
    {
        let mut examples = page.lines().filter(|line| line.starts_with(&format!("    refused: {code} (")));
        let example = examples.next().unwrap();
        assert!(example.contains(&format!("wanted at most {limit}")), "{example}");
    }
}
