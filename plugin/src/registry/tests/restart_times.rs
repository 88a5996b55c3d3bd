//! How long what was alive is waited for after a restart.

use gpu_handoff_protocol::message::Reattached;

use super::restarts::{Killed, killed, killed_after, with_memory};
use super::*;
use crate::limits;

#[test]
fn a_sidecar_cannot_keep_others_waiting_by_saying_often_that_it_is_done() {
    let Killed { mut w, .. } = killed();
    w.offer_done(0);
    let due = w.registry.next_deadline();
    w.pass(Duration::from_secs(1));
    w.offer_done(0);
    assert_eq!(w.registry.next_deadline(), due);
}

#[test]
fn what_is_being_offered_is_waited_for_but_not_for_ever() {
    // The check takes longer than a sidecar is waited for; what it brings then has its own time.
    let Killed { mut w, buffer, .. } = killed();
    w.tell(Input::Offering(MemberId(0)));
    w.pass(limits::OFFER_TIME);
    assert_eq!(w.offer(0, with_memory(&buffer)), Ok(()));
    w.offer_done(0);
    // Once it has said that this was all, another offer moves nothing.
    w.tell(Input::Offering(MemberId(0)));
    w.pass(limits::REATTACH_TIME - Duration::from_millis(1));
    assert_eq!(w.disposed, 0);
    w.pass(Duration::from_millis(1));
    assert_eq!(w.disposed, 1, "its process has not come back");

    // One that only goes on offering keeps nobody waiting beyond the limit.
    let Killed { mut w, id, .. } = killed();
    let step = limits::OFFER_TIME / 2;
    let mut passed = Duration::ZERO;
    while passed + step < limits::OFFERING_TIME {
        w.tell(Input::Offering(MemberId(0)));
        w.pass(step);
        passed += step;
        assert!(w.registry.expected.members.values().any(|m| m.buffers.contains(&id)), "{passed:?}");
    }
    w.tell(Input::Offering(MemberId(0)));
    w.pass(limits::OFFERING_TIME - passed);
    assert!(!w.registry.expected.members.values().any(|m| m.buffers.contains(&id)));
}

#[test]
fn what_a_process_brings_is_waited_for_while_it_is_checked_but_not_for_ever() {
    // Another buffer of the pod is not.
    let publish_another = |w: &mut World, p: SessionId, _| {
        w.publish(p, "another", descriptor()).unwrap();
    };
    let Killed { mut w, producer, buffer, id, .. } = killed_after(publish_another);
    w.offer_done(0);
    let p = w.open_as(0, 1, producer);
    w.tell(Input::Checking(MemberId(0), vec![id]));
    let not_theirs = Input::Checking(MemberId(1), vec![id]);
    w.tell(not_theirs);
    let alive = |w: &World| w.alive.buffers.values().filter(|b| b.retiring.is_none()).count();
    w.pass(limits::OFFER_TIME - Duration::from_millis(1));
    assert_eq!(alive(&w), 1);
    assert_eq!(w.claim(p, with_memory(&buffer)), Ok(Reattached::Restored));
    assert_eq!(w.registry.buffers[&id].ending.map(|e| e.reason()), None);

    let Killed { mut w, id, .. } = killed();
    w.tell(Input::Checking(MemberId(0), vec![id]));
    let mut passed = Duration::ZERO;
    while passed + limits::OFFER_TIME / 2 < limits::OFFERING_TIME {
        passed += limits::OFFER_TIME / 2;
        w.pass(limits::OFFER_TIME / 2);
        w.tell(Input::Checking(MemberId(0), vec![id]));
        assert_eq!(alive(&w), 1, "{passed:?}");
    }
    w.pass(limits::OFFERING_TIME - passed);
    assert_eq!(alive(&w), 0);
}

#[test]
fn a_process_has_its_own_time_from_when_its_buffer_comes() {
    let Killed { mut w, buffer, .. } = killed();
    w.tell(Input::Offering(MemberId(0)));
    w.pass(limits::OFFER_TIME + limits::REATTACH_TIME - Duration::from_millis(100));
    assert_eq!(w.offer(0, with_memory(&buffer)), Ok(()));
    w.pass(limits::REATTACH_TIME - Duration::from_millis(1));
    assert_eq!(w.disposed, 0, "what else is expected of its pod is not waited for so long");
    w.pass(Duration::from_millis(1));
    assert_eq!(w.disposed, 1);
    assert_eq!(w.registry.next_deadline(), None);
}

#[test]
fn a_lease_whose_process_died_while_the_daemon_was_away_keeps_no_buffer() {
    for (both, left) in [(false, 1), (true, 0)] {
        let mut w = World::new(Policy::default());
        let (producer, gone, other) = (w.open(0, 1), w.open(1, 2), w.open(1, 3));
        let id = w.publish(producer, "weights", descriptor()).unwrap().id;
        for consumer in [gone, other] {
            w.acquire(consumer, named("weights", 0)).unwrap();
        }
        w.ask(producer, Ask::Retire { id, until: Some(w.now + Duration::from_secs(600)) });
        let of = |w: &World, s: SessionId| w.registry.sessions[&s].facts.process;
        let ended = if both { vec![of(&w, gone), of(&w, other)] } else { vec![of(&w, gone)] };
        w.restart_without(Policy::default(), &ended);
        // Nobody had to wait for it.
        assert_eq!((w.alive.leases.len(), w.alive.buffers.len()), (left, left), "{both}");
    }
}
