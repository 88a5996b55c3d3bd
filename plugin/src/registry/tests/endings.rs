//! The end of a session that has much: it is taken apart piece by piece.

use super::restarts::{bare, buffer_receipt};
use super::*;
use crate::limits;

#[test]
fn what_a_session_with_much_had_ends_piece_by_piece_and_nobody_is_given_it_meanwhile() {
    let buffers = 3 * limits::ENDINGS_AT_A_TIME;
    let mut w = World::allowing_legacy();
    let (producer, consumer) = (w.open(0, 1), w.open(1, 2));
    let ids: Vec<BufferId> = (0..buffers)
        .map(|n| w.publish(producer, &format!("b{n}"), Carrier::Legacy([0; 64])).unwrap().id)
        .collect();
    let lease = w.acquire(consumer, by_id(ids[1])).unwrap().lease;
    w.tell(Input::SessionEnded(producer, EndReason::OwnerDied));
    let mut left = w.registry.counts().0;
    assert!(w.registry.has_more() && left < buffers && left > 1, "{left}");
    let last = *ids.last().unwrap();
    assert_eq!(code(w.acquire(consumer, by_id(last))), Code::Retired, "not ended yet, and not given either");
    let next = w.open(0, 1);
    assert_eq!(code(w.acquire(next, named(&format!("b{}", buffers - 1), 0))), Code::NotFound);
    while w.registry.has_more() {
        w.tell(Input::GoOn);
        let now = w.registry.counts().0;
        assert!(left - now <= limits::ENDINGS_AT_A_TIME && now < left, "{left} to {now}");
        left = now;
    }
    assert_eq!(w.registry.counts(), (1, 1, 2), "the leased one");
    w.release(consumer, lease).unwrap();
    assert_eq!((w.registry.counts(), w.registry.members[&MemberId(0)].usage.buffers), ((0, 0, 2), 0));
}

#[test]
fn whoever_waits_for_what_is_being_taken_apart_waits_for_what_comes_next() {
    let buffers = 2 * limits::ENDINGS_AT_A_TIME;
    let mut w = World::allowing_legacy();
    let (first, producer, consumer) = (w.open(0, 3), w.open(0, 1), w.open(1, 2));
    let legacy = || Carrier::Legacy([0; 64]);
    let older = w.publish(first, "last", legacy()).unwrap().id;
    for n in 0..buffers {
        w.publish(producer, &format!("b{n}"), legacy()).unwrap();
    }
    let newest = w.publish(producer, "last", legacy()).unwrap().id;
    let mut items = vec![Ok(w.vetted("of-set", legacy()))];
    w.publish_part(producer, part("set", 1, 0), items);
    w.tell(Input::SessionEnded(producer, EndReason::OwnerDied));
    assert!(w.registry.has_more());
    let refusal = w.acquire(consumer, by_id(newest)).unwrap_err();
    assert_eq!((refusal.code(), &*refusal.compared()[0].found), (Code::Retired, "ended: owner-died"));
    assert_eq!(w.acquire(consumer, named("last", 0)).unwrap().buffer.id, older, "the one that is alive");
    let until = Some(w.now + Duration::from_secs(600));
    let name = format!("b{}", buffers - 1);
    let (request, sent) = w.ask(consumer, Ask::Acquire { items: vec![named(&name, 0)], until, device: None });
    assert!(sent.is_empty(), "it waits");
    let (of_set, sent) = w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("set", 0), until });
    assert!(sent.is_empty(), "it waits");
    // The names are free, for another pod, too.
    let next = w.open(1, 9);
    let vetted = w.vetted(&name, legacy());
    let (published, sent) = w.ask(next, Ask::Publish(vec![Ok(vetted)]));
    let BrokerBody::Published(outcomes) = answer(&sent, next, published) else { panic!("published") };
    let id = outcomes[0].as_ref().unwrap().id;
    assert_eq!(acquired(answer(&sent, consumer, request)).unwrap().buffer.id, id);
    items = vec![Ok(w.vetted("of-set", legacy()))];
    let (parts, sent) = w.publish_part(next, part("set", 1, 0), items);
    assert!(parts[0].is_ok() && acquired_set(answer(&sent, consumer, of_set)).is_ok());
    while w.registry.has_more() {
        w.tell(Input::GoOn);
    }
    assert_eq!(w.acquire(consumer, named(&name, 0)).unwrap().buffer.id, id, "and it stays");
    assert!(w.acquire_set(consumer, wanted_set("set", 0)).is_ok());
}

#[test]
fn what_is_about_to_end_is_not_claimed_any_more() {
    let buffers = 2 * limits::ENDINGS_AT_A_TIME;
    let mut w = World::allowing_legacy();
    let producer = w.open(0, 1);
    let process = w.registry.sessions[&producer].facts.process;
    let ids: Vec<BufferId> = (0..buffers)
        .map(|n| w.publish(producer, &format!("b{n}"), Carrier::Legacy([0; 64])).unwrap().id)
        .collect();
    let last = bare(&buffer_receipt(&w, 0, ids[buffers - 1]));
    let again = bare(&buffer_receipt(&w, 0, ids[buffers - 1]));
    let receipts: Vec<_> = ids.iter().map(|id| bare(&buffer_receipt(&w, 0, *id))).collect();
    w.restart();
    for receipt in receipts {
        assert_eq!(w.offer(0, receipt), Ok(()));
    }
    let holder = *w.told.awaited.keys().next().unwrap();
    w.tell(Input::SessionEnded(holder, EndReason::OwnerDied));
    assert!(w.registry.has_more());
    assert_eq!(code(w.offer(0, again)), Code::Retired);
    let late = w.open_as(0, 1, process);
    assert_eq!(code(w.claim(late, last)), Code::Retired);
    while w.registry.has_more() {
        w.tell(Input::GoOn);
    }
    assert_eq!(w.registry.counts(), (0, 0, 1));
}
