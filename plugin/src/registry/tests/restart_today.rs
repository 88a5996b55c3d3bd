//! What was allowed before a restart and is not after it.

use gpu_handoff_protocol::message::Reattached;

use super::restarts::{Killed, bare, buffer_receipt, killed, lease_receipt, with_memory};
use super::*;
use crate::registry::Shown;

fn killed_with_policies(before: Policy, carrier: Carrier, after: Policy) -> (Killed, SessionId, SessionId) {
    let mut w = World::new(before);
    let (producer, consumer) = (w.open(0, 1), w.open(1, 2));
    let id = w.publish(producer, "weights", carrier).unwrap().id;
    let grant = w.acquire(consumer, named("weights", 0)).unwrap();
    let of = |w: &World, s: SessionId| w.registry.sessions[&s].facts.process;
    let (producer, consumer) = (of(&w, producer), of(&w, consumer));
    let (buffer, lease) = (buffer_receipt(&w, 0, id), lease_receipt(&w, 1, consumer, &grant));
    w.restart_with(after);
    let (p, c) = (w.open_as(0, 1, producer), w.open_as(1, 2, consumer));
    (Killed { w, producer, consumer, buffer, lease, id, lease_id: grant.lease }, p, c)
}

#[test]
fn a_buffer_that_the_policy_does_not_allow_any_more_ends_and_says_so() {
    let legacy = || Carrier::Legacy([7; 64]);
    let lax = || Policy { legacy: LegacyRule::WithinNamespace, ..Policy::default() };
    // Offered by its sidecar, and its lease claimed first.
    let (Killed { mut w, lease, buffer, id, lease_id, .. }, _, c) =
        killed_with_policies(lax(), legacy(), Policy::default());
    assert_eq!(w.claim(c, bare(&lease)), Ok(Reattached::Restored));
    assert_eq!(code(w.offer(0, bare(&buffer))), Code::PolicyDenied);
    assert_eq!(w.registry.buffers[&id].ending.map(|e| e.reason()), Some(EndReason::NotAllowed));
    assert_eq!(w.release(c, lease_id), Ok(()));
    assert_eq!((w.registry.counts(), w.registry.members[&MemberId(0)].usage.buffers), ((0, 0, 2), 0));
    // Claimed by its process, and its lease after that.
    let (Killed { mut w, lease, buffer, id, .. }, p, c) =
        killed_with_policies(lax(), legacy(), Policy::default());
    assert_eq!(code(w.claim(p, bare(&buffer))), Code::PolicyDenied);
    let (outcome, told) = w.claim_and_hear(c, bare(&lease));
    assert_eq!(outcome, Ok(Reattached::Restored));
    assert_eq!(told, [Event::Orphaned { id, reason: EndReason::NotAllowed, leases: 1 }]);
    // A smaller quota, and a lease that is not allowed.
    let quota = |buffers, leases| Policy {
        quota: Quota { buffers, leases, ..Quota::default() },
        ..Policy::default()
    };
    let (Killed { mut w, buffer, lease, id, .. }, p, c) =
        killed_with_policies(Policy::default(), descriptor(), quota(0, 0));
    assert_eq!(code(w.claim(p, with_memory(&buffer))), Code::QuotaBuffers);
    assert_eq!(code(w.claim(c, bare(&lease))), Code::QuotaLeases);
    assert!(w.alive.buffers.is_empty() && w.alive.leases.is_empty(), "{id} is over");
    assert_eq!(w.registry.next_deadline(), None, "nothing is waited for");
}

#[test]
fn a_pod_that_was_moved_to_another_group_or_lost_its_gpu_has_nothing_of_before() {
    let moved = |w: &mut World, change: &dyn Fn(&mut MemberFacts)| {
        for member in [0, 1] {
            let mut facts = member_facts(member, "g");
            change(&mut facts);
            w.tell(Input::MemberJoined(MemberId(member), facts));
        }
    };
    let Killed { mut w, producer, consumer, buffer, lease, .. } = killed();
    moved(&mut w, &|facts| facts.group = group_key("elsewhere"));
    let (p, c) = (w.open_as(0, 1, producer), w.open_as(1, 1, consumer));
    assert_eq!(code(w.claim(c, bare(&lease))), Code::PolicyDenied);
    assert_eq!(code(w.claim(p, with_memory(&buffer))), Code::PolicyDenied);
    assert!(w.alive.buffers.is_empty() && w.alive.leases.is_empty());
    let Killed { mut w, producer, buffer, .. } = killed();
    moved(&mut w, &|facts| facts.holds = Holds::These(vec![DeviceUuid::from_bytes([2; 16])]));
    let p = w.open_as(0, 1, producer);
    assert_eq!(code(w.claim(p, with_memory(&buffer))), Code::DeviceMismatch);
}

fn with_quota(quota: Quota) -> Policy {
    Policy { quota, ..Policy::default() }
}

/// A pod with all that its quota allows, after a restart: its process, its buffer's receipt and memory.
fn killed_with_all_of_its(quota: Quota) -> (World, ProcessKey, Shown) {
    let mut w = World::new(with_quota(quota));
    let producer = w.open(0, 1);
    let id = w.publish(producer, "weights", descriptor()).unwrap().id;
    let before = code(w.publish(producer, "more", descriptor()));
    let process = w.registry.sessions[&producer].facts.process;
    let buffer = with_memory(&buffer_receipt(&w, 0, id));
    w.restart();
    // Another process of the pod comes before the one that had it.
    let other = w.open(0, 2);
    assert_eq!(code(w.publish(other, "more", descriptor())), before, "as before the restart");
    let items = vec![Ok(w.vetted("more", descriptor()))];
    let (parts, _) = w.publish_part(other, part("set", 1, 0), items);
    assert_eq!(code(parts[0].clone()), before);
    (w, process, buffer)
}

#[test]
fn what_is_new_after_a_restart_leaves_room_for_what_is_to_come_back() {
    let (one, bytes) = (Quota { buffers: 1, ..Quota::default() }, Quota { bytes: 199, ..Quota::default() });
    for quota in [one, bytes] {
        let (mut w, process, buffer) = killed_with_all_of_its(quota);
        let p = w.open_as(0, 1, process);
        assert_eq!(w.claim(p, buffer), Ok(Reattached::Restored));
        // What is not shown keeps no room after its time.
        let (mut w, ..) = killed_with_all_of_its(quota);
        w.pass(Duration::from_secs(60));
        let other = w.open(0, 2);
        assert!(w.publish(other, "more", descriptor()).is_ok());
    }
}

#[test]
fn a_new_lease_leaves_room_for_those_that_are_to_come_back() {
    let all = with_quota(Quota { leases: 1, ..Quota::default() });
    let (Killed { mut w, lease, buffer, lease_id, .. }, p, c) =
        killed_with_policies(all.clone(), descriptor(), all);
    assert_eq!(w.claim(p, with_memory(&buffer)), Ok(Reattached::Restored));
    assert_eq!(code(w.acquire(c, named("weights", 0))), Code::QuotaLeases);
    assert_eq!(w.claim(c, bare(&lease)), Ok(Reattached::Restored));
    assert_eq!(w.release(c, lease_id), Ok(()));
    assert!(w.acquire(c, named("weights", 0)).is_ok());
}

#[test]
fn others_descriptors_leave_room_for_those_that_are_to_come_back() {
    let mut w = World::new(Policy::default());
    w.registry.capacity.descriptors = 1;
    let producer = w.open(0, 1);
    let id = w.publish(producer, "weights", descriptor()).unwrap().id;
    let process = w.registry.sessions[&producer].facts.process;
    let buffer = buffer_receipt(&w, 0, id);
    w.restart();
    let stranger = w.open(2, 1);
    assert_eq!(code(w.publish(stranger, "more", descriptor())), Code::QuotaDescriptors);
    let p = w.open_as(0, 1, process);
    assert_eq!(w.claim(p, with_memory(&buffer)), Ok(Reattached::Restored));
}

#[test]
fn who_waits_for_what_is_not_allowed_any_more_is_answered_after_the_packet_that_showed_it() {
    let lax = Policy { legacy: LegacyRule::WithinNamespace, ..Policy::default() };
    let mut w = World::new(lax);
    let producer = w.open(0, 1);
    let legacy = || Carrier::Legacy([7; 64]);
    let mut ids = vec![w.publish(producer, "weights", legacy()).unwrap().id];
    let items = (0..2).map(|_| Ok(w.vetted("one", legacy()))).collect();
    let (parts, _) = w.publish_part(producer, part("set", 2, 0), items);
    ids.extend(parts.into_iter().map(|item| item.unwrap().id));
    let receipts: Vec<_> = ids.iter().map(|id| Ok(bare(&buffer_receipt(&w, 0, *id)))).collect();
    w.restart_with(Policy::default());
    let waiter = w.open(1, 2);
    let until = Some(w.now + Duration::from_secs(600));
    let ask = |until| Ask::Acquire { items: vec![named("weights", 0)], until, device: None };
    let of_set = |until| Ask::AcquireSet { wanted: wanted_set("set", 0), until };
    let asked: Vec<RequestId> = [ask(None), of_set(None), ask(until), of_set(until)]
        .into_iter()
        .map(|ask| {
            let (request, sent) = w.ask(waiter, ask);
            assert!(sent.is_empty(), "all of it is being restored");
            request
        })
        .collect();
    let sent = w.tell(Input::Offered(MemberId(0), 1, receipts));
    assert!(w.told.offered[&1].iter().all(|outcome| code(outcome.clone()) == Code::PolicyDenied));
    assert_eq!(code(acquired(answer(&sent, waiter, asked[0]))), Code::NotFound);
    assert_eq!(code(acquired_set(answer(&sent, waiter, asked[1]))), Code::NotFound);
    assert_eq!(sent.iter().filter(|(_, m)| m.request != 0).count(), 2, "the others wait on: {sent:?}");
}
