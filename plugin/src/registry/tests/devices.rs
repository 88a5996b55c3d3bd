//! Which GPUs a member may publish on, and have memory of.

use super::*;

#[test]
fn a_member_publishes_and_acquires_only_on_devices_that_it_holds() {
    let mut w = World::new(Policy::default());
    let held = |n| Holds::These(vec![DeviceUuid::from_bytes([n; 16])]);
    for (member, device) in [(10, 1), (11, 2)] {
        let facts = MemberFacts { holds: held(device), ..member_facts(member, "g") };
        w.tell(Input::MemberJoined(MemberId(member), facts));
    }
    let (on_one, on_two) = (w.open(10, 1), w.open(11, 1));
    w.publish(on_one, "w", descriptor()).unwrap();
    assert_eq!(code(w.publish(on_two, "v", descriptor())), Code::DeviceMismatch);
    assert_eq!(code(w.acquire(on_two, named("w", 0))), Code::NoPeerAccess);
}

#[test]
fn a_pod_of_which_nobody_says_what_it_holds_has_what_its_process_reaches() {
    let mut w = World::new(Policy::default());
    let [one, two] = [1, 2].map(|n| DeviceUuid::from_bytes([n; 16]));
    for member in [10, 11, 12] {
        let facts = MemberFacts { holds: Holds::WhatItReaches, ..member_facts(member, "g") };
        w.tell(Input::MemberJoined(MemberId(member), facts));
    }
    let on_one = w.open_reaching(10, 1, Some(vec![one]));
    let on_two = w.open_reaching(11, 1, Some(vec![two]));
    let unseen = w.open_reaching(12, 1, None);
    w.publish(on_one, "w", descriptor()).unwrap();
    assert_eq!(code(w.publish(on_two, "v", descriptor())), Code::DeviceMismatch);
    assert_eq!(code(w.publish(unseen, "v", descriptor())), Code::DeviceMismatch);
    assert_eq!(code(w.acquire(unseen, named("w", 0))), Code::GpuNotReachable);
    assert_eq!(code(w.acquire(on_two, named("w", 0))), Code::NoPeerAccess);
    // What becomes known is what counts from then on.
    w.tell(Input::MemberHolds(MemberId(10), Holds::These(vec![two])));
    assert_eq!(code(w.publish(on_one, "u", descriptor())), Code::DeviceMismatch);
    w.tell(Input::MemberHolds(MemberId(10), Holds::These(Vec::new())));
    let refusal = w.publish(on_one, "u", descriptor()).unwrap_err();
    assert!(refusal.remedy().contains("nvidia.com/gpu"), "{refusal}");
    w.tell(Input::MemberHolds(MemberId(12), Holds::These(vec![one])));
    w.publish(unseen, "u", descriptor()).unwrap();
}

#[test]
fn a_gpu_of_the_pods_other_container_is_out_of_reach_before_the_driver_says_so() {
    let mut w = World::new(Policy::default());
    let [one, two] = [1, 2].map(|n| DeviceUuid::from_bytes([n; 16]));
    let facts = MemberFacts { holds: Holds::These(vec![one, two]), ..member_facts(10, "g") };
    w.tell(Input::MemberJoined(MemberId(10), facts));
    let topology =
        crate::registry::Topology { gpus: vec![one, two], instances: Vec::new(), peers: vec![(one, two)] };
    w.tell(Input::Surveyed(topology));
    let producer = w.open(0, 1);
    w.publish(producer, "w", descriptor()).unwrap();
    let (has_it, lacks_it) =
        (w.open_reaching(10, 1, Some(vec![one, two])), w.open_reaching(10, 2, Some(vec![two])));
    assert_eq!(code(w.acquire(lacks_it, named("w", 0))), Code::GpuNotReachable);
    w.acquire(has_it, named("w", 0)).unwrap();
}
