//! Who leases what is over for longer than it may.

use gpu_handoff_policy::{NamespaceTerms, Orphans};

use super::restarts::{Killed, bare, killed_after, with_memory};
use super::*;
use crate::limits;

const GRACE: Duration = Duration::from_secs(30);

fn policy(orphans: Orphans) -> Policy {
    assert_eq!(Policy::default().retire_deadline, GRACE);
    Policy { orphans, ..Policy::default() }
}

/// A producer of pod 0 with a buffer that a process of pod 1 leases.
fn leased(policy: Policy) -> (World, SessionId, SessionId, BufferId, LeaseId) {
    let mut w = World::new(policy);
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let id = w.publish(producer, "weights", descriptor()).unwrap().id;
    let lease = w.acquire(consumer, named("weights", 0)).unwrap().lease;
    (w, producer, consumer, id, lease)
}

/// Who was named since the last time.
fn named_since(w: &mut World) -> Vec<(u32, Orphans, BufferId)> {
    std::mem::take(&mut w.told.overstays)
        .into_iter()
        .map(|one| (one.member.0, one.action, one.buffer))
        .collect()
}

/// Lets all that is due within this time happen.
fn wait(w: &mut World, time: Duration) {
    let until = w.now + time;
    while let Some(due) = w.registry.next_deadline().filter(|due| *due <= until) {
        let left = due.saturating_duration_since(w.now);
        w.pass(left);
    }
    w.pass(until - w.now);
}

#[test]
fn nobody_is_named_before_the_policys_time_however_the_buffer_ends() {
    let second = Duration::from_secs(1);
    for (within, time) in [(None, GRACE), (Some(second), GRACE), (Some(GRACE * 2), GRACE * 2)] {
        let (mut w, producer, consumer, id, _) = leased(policy(Orphans::Kill));
        let process = w.registry.sessions[&consumer].facts.process;
        w.retire(producer, id, within).unwrap();
        wait(&mut w, time - second);
        assert_eq!(named_since(&mut w), []);
        wait(&mut w, second);
        assert_eq!(w.told.overstays[0].process, process);
        assert_eq!(w.told.overstays[0].slot, slot(1));
        assert_eq!(named_since(&mut w), [(1, Orphans::Kill, id)]);
    }
    let (mut w, producer, _, id, _) = leased(policy(Orphans::Kill));
    w.retire(producer, id, Some(GRACE * 100)).unwrap();
    w.tell(Input::SessionEnded(producer, EndReason::OwnerDied));
    wait(&mut w, GRACE);
    assert_eq!(named_since(&mut w), [(1, Orphans::Kill, id)], "the deadline went with the publisher");
}

#[test]
fn who_has_let_go_is_left_alone_and_so_is_everybody_where_the_policy_reports() {
    let (mut w, producer, consumer, id, lease) = leased(policy(Orphans::Kill));
    w.retire(producer, id, None).unwrap();
    w.release(consumer, lease).unwrap();
    assert_eq!(w.registry.next_deadline(), None);
    let (mut w, producer, _, id, _) = leased(policy(Orphans::Report));
    w.retire(producer, id, None).unwrap();
    assert_eq!(w.registry.next_deadline(), None, "nothing is waited for");
    // A holder that had it among others and gave this one back.
    let (mut w, producer, consumer, id, lease) = leased(policy(Orphans::Kill));
    w.publish(producer, "other", descriptor()).unwrap();
    w.acquire(consumer, named("other", 0)).unwrap();
    let third = w.open(1, 1);
    w.acquire(third, by_id(id)).unwrap();
    w.retire(producer, id, None).unwrap();
    w.release(consumer, lease).unwrap();
    wait(&mut w, GRACE);
    let process = w.registry.sessions[&third].facts.process;
    assert_eq!(w.told.overstays.iter().map(|one| one.process).collect::<Vec<_>>(), [process]);
}

#[test]
fn they_are_named_again_with_growing_pauses() {
    let (mut w, producer, consumer, id, lease) = leased(policy(Orphans::Kill));
    w.retire(producer, id, None).unwrap();
    wait(&mut w, GRACE);
    let mut pause = limits::OVERSTAY_PAUSE;
    for _ in 0..8 {
        assert_eq!(named_since(&mut w).len(), 1);
        wait(&mut w, pause - Duration::from_millis(1));
        assert_eq!(named_since(&mut w), []);
        wait(&mut w, Duration::from_millis(1));
        pause = (pause * 2).min(limits::OVERSTAY_LONGEST_PAUSE);
    }
    w.release(consumer, lease).unwrap();
    assert_eq!(w.registry.next_deadline(), None);
}

#[test]
fn a_pod_is_named_once_for_all_it_leases_and_not_while_it_is_deleted() {
    let (mut w, producer, consumer, id, _) = leased(policy(Orphans::Evict));
    let sibling = w.open(1, 1);
    for session in [consumer, sibling] {
        w.acquire(session, by_id(id)).unwrap();
    }
    w.retire(producer, id, None).unwrap();
    wait(&mut w, GRACE);
    assert_eq!(named_since(&mut w), [(1, Orphans::Evict, id)]);
    w.tell(Input::MemberEnding(MemberId(1), w.now + GRACE));
    wait(&mut w, limits::OVERSTAY_LONGEST_PAUSE * 3);
    assert_eq!(named_since(&mut w), []);
}

#[test]
fn the_holders_namespace_decides_and_another_policy_holds_from_then_on() {
    let of_n = |orphans| {
        let terms = NamespaceTerms { orphans: Some(orphans), ..NamespaceTerms::default() };
        Policy { namespaces: [("n".parse().unwrap(), terms)].into(), ..policy(Orphans::Kill) }
    };
    let (mut w, producer, _, id, _) = leased(of_n(Orphans::Report));
    w.retire(producer, id, None).unwrap();
    wait(&mut w, GRACE * 10);
    assert_eq!(named_since(&mut w), []);
    w.tell(Input::NewPolicy(Box::new(of_n(Orphans::Evict))));
    wait(&mut w, GRACE);
    assert_eq!(named_since(&mut w), [(1, Orphans::Evict, id)]);
    let (mut w, producer, _, id, _) = leased(policy(Orphans::Report));
    w.retire(producer, id, None).unwrap();
    w.tell(Input::NewPolicy(Box::new(policy(Orphans::Kill))));
    wait(&mut w, GRACE);
    assert_eq!(named_since(&mut w), [(1, Orphans::Kill, id)]);
}

#[test]
fn many_that_end_one_after_the_other_are_looked_for_together() {
    let mut w = World::new(policy(Orphans::Kill));
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    for n in 0..50 {
        let id = w.publish(producer, &format!("b{n}"), descriptor()).unwrap().id;
        w.acquire(consumer, by_id(id)).unwrap();
        w.retire(producer, id, None).unwrap();
        w.now += Duration::from_millis(1);
    }
    wait(&mut w, GRACE + limits::OVERSTAYS_PAUSE);
    assert_eq!(w.told.overstays.len(), 2, "at the first, and for all others after the pause");
}

#[test]
fn it_goes_on_after_a_restart_for_those_that_come_back() {
    let Killed { mut w, producer, consumer, buffer, lease, id, .. } = killed_after(|w, producer, id| {
        w.registry.policy = policy(Orphans::Kill);
        w.retire(producer, id, None).unwrap();
    });
    assert_eq!(w.registry.policy.orphans, Orphans::Kill);
    let c = w.open_as(1, 1, consumer);
    w.claim(c, bare(&lease)).unwrap();
    let p = w.open_as(0, 1, producer);
    drop(w.claim(p, with_memory(&buffer)));
    wait(&mut w, GRACE);
    assert_eq!(named_since(&mut w), [(1, Orphans::Kill, id)]);
}
