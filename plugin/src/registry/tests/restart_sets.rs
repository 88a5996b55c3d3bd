//! Restarts with buffers that belong together: seats of an order's leases, and sets.

use gpu_handoff_protocol::message::Reattached;

use super::restarts::{bare, buffer_receipt, lease_receipt, with_memory};
use super::*;
use crate::limits;

#[test]
fn seats_stay_taken_and_their_owner_is_told_of_them() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let [producer_key, consumer_key] = [producer, consumer].map(|s| w.registry.sessions[&s].facts.process);
    let mut words = w.vetted("words", descriptor());
    words.publication.facts.kind = Kind::Timeline;
    words.publication.facts.size = 96;
    let timeline = words.id;
    w.ask(producer, Ask::Publish(vec![Ok(words)]));
    let mut ordered = w.vetted("ordered", descriptor());
    let order = Order { timeline, ready_word: 0, value: 1, first_seat_word: 1, seats: 3 };
    ordered.publication.facts.order = Some(order);
    let id = ordered.id;
    w.ask(producer, Ask::Publish(vec![Ok(ordered)]));
    let first = w.acquire(consumer, by_id(id)).unwrap();
    let second = w.acquire(consumer, by_id(id)).unwrap();
    assert_eq!((first.seat, second.seat), (Some(Seat(0)), Some(Seat(1))));
    let receipt = buffer_receipt(&w, 0, id);
    let lease = lease_receipt(&w, 1, consumer_key, &second);
    w.release(consumer, first.lease).unwrap();
    w.restart();
    let p = w.open_as(0, 1, producer_key);
    let (outcome, told) = w.claim_and_hear(p, with_memory(&receipt));
    assert_eq!(outcome, Ok(Reattached::Restored));
    let free = |n| Event::Unseated { id, seat: Seat(n), how: SeatEnd::Died };
    assert_eq!(told, [free(0), Event::Seated { id, seat: Seat(1) }, free(2)], "claimed or not");
    let other = w.open(1, 2);
    let seats: Vec<_> = (0..2).map(|_| w.acquire(other, by_id(id)).unwrap().seat).collect();
    assert_eq!(seats, [Some(Seat(0)), Some(Seat(2))]);
    assert_eq!(code(w.acquire(other, by_id(id))), Code::NoSeat);
    // Nobody claims the lease: it ends as by death, and the owner is told.
    let sent = w.pass(limits::SIDECAR_PATIENCE + limits::REATTACH_TIME);
    assert_eq!(events(&sent, p), [Event::Unseated { id, seat: Seat(1), how: SeatEnd::Died }]);
    let late = w.open_as(1, 1, consumer_key);
    assert_eq!(code(w.claim(late, bare(&lease))), Code::NotLeased);
}

#[test]
fn a_set_is_found_again_when_all_of_it_is_back() {
    let mut w = World::new(Policy::default());
    let producer = w.open(0, 1);
    let key = w.registry.sessions[&producer].facts.process;
    let items: Vec<_> = (0..2).map(|_| w.vetted("part", descriptor())).collect();
    let ids: Vec<_> = items.iter().map(|v| v.id).collect();
    w.ask(producer, Ask::PublishSet(part("model", 2, 0), items.into_iter().map(Ok).collect()));
    let receipts: Vec<_> = ids.iter().map(|id| buffer_receipt(&w, 0, *id)).collect();
    w.restart();
    let c = w.open(1, 3);
    let ask = || Ask::AcquireSet { wanted: wanted_set("model", 0), until: None };
    let (waiting, sent) = w.ask(c, ask());
    assert!(sent.is_empty(), "it is being restored");
    let p = w.open_as(0, 1, key);
    assert_eq!(w.claim(p, with_memory(&receipts[0])), Ok(Reattached::Restored));
    let (_, sent) = w.ask(p, Ask::Reattach(vec![Ok(with_memory(&receipts[1]))]));
    assert!(matches!(answer(&sent, c, waiting), BrokerBody::AcquiredSet { grants, .. } if grants.len() == 2));
    // Where it never comes back whole, who waits is told.
    w.restart();
    let c = w.open(1, 4);
    let (waiting, _) = w.ask(c, ask());
    let sent = w.pass(limits::SIDECAR_PATIENCE + limits::REATTACH_TIME);
    assert!(matches!(answer(&sent, c, waiting), BrokerBody::Refused(r) if r.code() == Code::NotFound));
}

#[test]
fn a_version_that_comes_back_after_a_later_one_is_superseded() {
    let mut w = World::new(Policy::default());
    let producer = w.open(0, 1);
    let key = w.registry.sessions[&producer].facts.process;
    let publish = |w: &mut World, session: SessionId| -> Vec<BufferId> {
        let items: Vec<_> = (0..2).map(|_| w.vetted("part", descriptor())).collect();
        let ids = items.iter().map(|v| v.id).collect();
        w.ask(session, Ask::PublishSet(part("model", 2, 0), items.into_iter().map(Ok).collect()));
        ids
    };
    let older = publish(&mut w, producer);
    let receipts: Vec<_> = older.iter().map(|id| buffer_receipt(&w, 0, *id)).collect();
    w.restart();
    let other = w.open(0, 5);
    let newer = publish(&mut w, other);
    let p = w.open_as(0, 1, key);
    for receipt in &receipts {
        assert_eq!(w.claim(p, with_memory(receipt)), Ok(Reattached::Restored));
    }
    assert_eq!((w.registry.counts().0, w.disposed), (newer.len(), older.len()), "its memory is given up");
    let c = w.open(1, 3);
    assert!(w.acquire_set(c, wanted_set("model", 0)).is_ok());
    assert_eq!(code(w.acquire(c, by_id(older[0]))), Code::Retired);
}
