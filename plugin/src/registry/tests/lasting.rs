//! Buffers that outlive their process.

use super::histories::granting;
use super::restarts::{buffer_receipt, with_memory};
use super::*;

fn ended(w: &mut World, session: SessionId) -> Sent {
    w.tell(Input::SessionEnded(session, EndReason::OwnerDied))
}

#[test]
fn it_is_its_pods_until_a_process_of_that_retires_it() {
    let mut w = World::new(granting());
    let (first, consumer) = (w.open(0, 1), w.open(1, 1));
    let id = w.publish_lasting(first, "weights").unwrap().id;
    let leased = w.acquire(consumer, named("weights", 0)).unwrap();
    assert!(events(&ended(&mut w, first), consumer).is_empty(), "nobody need let go");
    // The next process of the pod finds it by its name; so does everybody else.
    let second = w.open(0, 1);
    let found = w.acquire(second, named("weights", 0)).unwrap();
    assert_eq!((found.buffer.id, leased.buffer.id), (id, id));
    assert_eq!(code(w.retire(consumer, id, None)), Code::NotOwner);
    assert_eq!(w.retire(second, id, Some(Duration::from_secs(9))), Ok(2));
    for (session, lease) in [(second, found.lease), (consumer, leased.lease)] {
        assert_eq!(w.release(session, lease), Ok(()));
    }
    assert_eq!((w.registry.counts(), w.disposed), ((0, 0, 2), 1));
    assert_eq!(code(w.retire(second, id, None)), Code::Retired);
}

#[test]
fn its_publisher_hears_of_it_as_an_owner_does() {
    let mut w = World::new(granting());
    let publisher = w.open(0, 1);
    let id = w.publish_lasting(publisher, "weights").unwrap().id;
    let sibling = w.open(0, 1);
    let sent = w.ask(sibling, Ask::Retire { id, until: None }).1;
    assert!(events(&sent, publisher).iter().any(|e| is_gone(e, EndReason::Retired)));
    assert!(events(&sent, sibling).is_empty());
}

#[test]
fn the_next_publication_of_its_name_takes_its_place() {
    for (next_lasts, published_by_another) in [(true, true), (false, true), (true, false)] {
        let mut w = World::new(granting());
        let (first, consumer) = (w.open(0, 1), w.open(1, 1));
        let old = w.publish_lasting(first, "weights").unwrap();
        let lease = w.acquire(consumer, named("weights", 0)).unwrap().lease;
        let second = if published_by_another { w.open(0, 1) } else { first };
        if published_by_another {
            ended(&mut w, first);
        }
        let new = match next_lasts {
            true => w.publish_lasting(second, "weights").unwrap(),
            false => w.publish(second, "weights", descriptor()).unwrap(),
        };
        assert!(new.generation > old.generation);
        assert_eq!(code(w.acquire(consumer, by_id(old.id))), Code::Retired);
        assert_eq!(w.acquire(consumer, named("weights", 0)).unwrap().buffer.id, new.id);
        assert!(events(&w.pass(Duration::from_secs(3600)), consumer).is_empty(), "it may keep the old one");
        assert!(w.told.overstays.is_empty());
        assert_eq!(w.disposed, 1, "nobody is given it any more");
        w.release(consumer, lease).unwrap();
        assert!(!w.registry.buffers.contains_key(&old.id));
    }
}

#[test]
fn a_name_of_one_pod_stays_its_own_while_no_process_of_it_lives() {
    let mut w = World::new(granting());
    let first = w.open(0, 1);
    w.publish_lasting(first, "weights").unwrap();
    ended(&mut w, first);
    let stranger = w.open(1, 1);
    assert_eq!(code(w.publish(stranger, "weights", descriptor())), Code::NameTaken);
    w.tell(Input::MemberLeft(MemberId(0)));
    assert!(w.publish(stranger, "weights", descriptor()).is_ok());
}

#[test]
fn it_ends_with_its_pod_at_once() {
    let mut w = World::new(granting());
    let (first, consumer) = (w.open(0, 1), w.open(1, 1));
    let (free, leased) =
        (w.publish_lasting(first, "free").unwrap().id, w.publish_lasting(first, "leased").unwrap().id);
    let lease = w.acquire(consumer, named("leased", 0)).unwrap().lease;
    ended(&mut w, first);
    let sent = w.tell(Input::MemberLeft(MemberId(0)));
    assert_eq!(w.disposed, 2, "the memory of both is given up");
    assert!(!w.registry.buffers.contains_key(&free));
    let orphaned = |e: &Event| matches!(e, Event::Orphaned { id, .. } if *id == leased);
    assert!(events(&sent, consumer).iter().any(orphaned));
    w.release(consumer, lease).unwrap();
    assert_eq!(w.registry.counts(), (0, 0, 1));
}

#[test]
fn it_is_retired_when_its_pod_is_being_deleted() {
    let mut w = World::new(granting());
    let (first, consumer) = (w.open(0, 1), w.open(1, 1));
    let id = w.publish_lasting(first, "weights").unwrap().id;
    w.acquire(consumer, named("weights", 0)).unwrap();
    ended(&mut w, first);
    let sent = w.tell(Input::MemberEnding(MemberId(0), w.now + Duration::from_secs(9)));
    assert!(events(&sent, consumer).iter().any(|e| matches!(e, Event::Retiring { id: of, .. } if *of == id)));
}

#[test]
fn a_restart_finds_it_though_no_process_of_its_pod_lives() {
    let mut w = World::new(granting());
    let first = w.open(0, 1);
    let id = w.publish_lasting(first, "weights").unwrap().id;
    ended(&mut w, first);
    let receipt = buffer_receipt(&w, 0, id);
    w.restart();
    let other = w.open(0, 1);
    let full = (0..9).map(|n| w.publish_lasting(other, &format!("n{n}")).is_ok());
    assert_eq!(full.collect::<Vec<_>>(), [true; 9]);
    assert_eq!(code(w.publish_lasting(other, "n9")), Code::PolicyDenied, "its room is kept");
    assert_eq!(w.offer(0, with_memory(&receipt)), Ok(()));
    w.offer_done(0);
    assert!(w.told.awaited.is_empty(), "nobody's end is its end");
    w.pass(Duration::from_secs(3600));
    assert_eq!(w.acquire(other, named("weights", 0)).unwrap().buffer.id, id);
    // A sidecar that comes anew is told to keep it, with its publisher's receipt.
    w.told.kept.clear();
    w.offer_done(0);
    assert_eq!(buffer_receipt(&w, 0, id), receipt);
}

#[test]
fn one_that_is_known_from_a_lease_alone_is_retired_and_does_not_come_back() {
    for by_deletion in [false, true] {
        let mut w = World::new(granting());
        let first = w.open(0, 1);
        let id = w.publish_lasting(first, "weights").unwrap().id;
        let receipt = buffer_receipt(&w, 0, id);
        let sibling = w.open(0, 1);
        let grant = w.acquire(sibling, by_id(id)).unwrap();
        let process = w.registry.sessions[&sibling].facts.process;
        let lease = super::restarts::lease_receipt(&w, 0, process, &grant);
        w.restart();
        let sibling = w.open_as(0, 1, process);
        w.claim(sibling, super::restarts::bare(&lease)).unwrap();
        match by_deletion {
            true => drop(w.tell(Input::MemberEnding(MemberId(0), w.now + Duration::from_secs(1)))),
            false => assert_eq!(w.retire(sibling, id, None), Ok(1)),
        }
        super::rules::check(&w);
        assert_eq!(code(w.offer(0, with_memory(&receipt))), Code::Retired);
        assert_eq!(w.release(sibling, grant.lease), Ok(()));
        assert_eq!(w.registry.counts(), (0, 0, 1));
    }
}

#[test]
fn what_comes_back_late_does_not_take_its_successors_place() {
    for successor_lasts in [true, false] {
        let mut w = World::new(granting());
        let first = w.open(0, 1);
        let id = w.publish_lasting(first, "weights").unwrap().id;
        let receipt = buffer_receipt(&w, 0, id);
        ended(&mut w, first);
        w.restart();
        let second = w.open(0, 1);
        let new = match successor_lasts {
            true => w.publish_lasting(second, "weights").unwrap().id,
            false => w.publish(second, "weights", descriptor()).unwrap().id,
        };
        assert_eq!(w.offer(0, with_memory(&receipt)), Ok(()));
        assert!(!w.registry.buffers.contains_key(&id), "its pod has published its name anew");
        assert_eq!(w.disposed, 1);
        assert_eq!(w.acquire(second, named("weights", 0)).unwrap().buffer.id, new);
    }
}

#[test]
fn the_process_that_published_it_claims_it_and_another_cannot() {
    let mut w = World::new(granting());
    let first = w.open(0, 1);
    let process = w.registry.sessions[&first].facts.process;
    let id = w.publish_lasting(first, "weights").unwrap().id;
    let receipt = buffer_receipt(&w, 0, id);
    w.restart();
    let (again, sibling) = (w.open_as(0, 1, process), w.open(0, 1));
    assert_eq!(code(w.claim(sibling, with_memory(&receipt))), Code::NotOwner);
    assert!(w.claim(again, with_memory(&receipt)).is_ok());
    assert!(w.registry.buffers[&id].owner.is_none());
    ended(&mut w, again);
    assert_eq!(w.acquire(sibling, by_id(id)).unwrap().buffer.id, id);
}

#[test]
fn only_vmm_memory_without_an_order_and_within_the_granted_bytes_may() {
    let mut w = World::new(granting());
    let p = w.open(0, 1);
    let publish = |w: &mut World, change: &dyn Fn(&mut BufferFacts), carrier| {
        let mut vetted = w.vetted("x", carrier);
        vetted.publication.facts.lifetime = Lifetime::Pod;
        change(&mut vetted.publication.facts);
        let (request, sent) = w.ask(p, Ask::Publish(vec![Ok(vetted)]));
        match answer(&sent, p, request) {
            BrokerBody::Published(mut items) => items.remove(0),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code(publish(&mut w, &|f| f.kind = Kind::Timeline, descriptor())), Code::PolicyDenied);
    let timeline =
        publish(&mut w, &|f| (f.kind, f.lifetime) = (Kind::Timeline, Lifetime::Process), descriptor());
    let timeline = timeline.unwrap().id;
    let order = Order { timeline, ready_word: 0, value: 1, first_seat_word: 1, seats: 2 };
    assert_eq!(code(publish(&mut w, &|f| f.order = Some(order), descriptor())), Code::PolicyDenied);
    assert_eq!(code(publish(&mut w, &|f| f.allocation_size = 1_001, descriptor())), Code::PolicyDenied);
    assert!(publish(&mut w, &|f| f.allocation_size = 1_000, descriptor()).is_ok());
    assert_eq!(code(publish(&mut w, &|_| (), descriptor())), Code::PolicyDenied, "nothing is left");
    let mut w = World::new(Policy::default());
    let p = w.open(0, 1);
    assert_eq!(code(w.publish_lasting(p, "weights")), Code::PolicyDenied, "nobody grants it by default");
}

#[test]
fn buffers_of_a_set_end_together() {
    let mut w = World::new(granting());
    let (p, c) = (w.open(0, 1), w.open(1, 1));
    let item = |w: &mut World, lifetime| {
        let mut vetted = w.vetted("part", descriptor());
        vetted.publication.facts.lifetime = lifetime;
        Ok(vetted)
    };
    let mixed = vec![item(&mut w, Lifetime::Pod), item(&mut w, Lifetime::Process)];
    let (outcomes, _) = w.publish_part(p, part("model", 2, 0), mixed);
    assert_eq!(outcomes.into_iter().map(code).collect::<Vec<_>>(), [Code::SetBroken; 2]);
    let whole = vec![item(&mut w, Lifetime::Pod), item(&mut w, Lifetime::Pod)];
    assert!(w.publish_part(p, part("model", 2, 0), whole).0.iter().all(Result::is_ok));
    ended(&mut w, p);
    let (old, grants) = w.acquire_set(c, wanted_set("model", 0)).unwrap();
    assert_eq!(grants.len(), 2);
    let p = w.open(0, 1);
    let next = vec![item(&mut w, Lifetime::Process)];
    assert!(w.publish_part(p, part("model", 1, 0), next).0.iter().all(Result::is_ok));
    assert!(w.acquire_set(c, wanted_set("model", 0)).unwrap().0.generation > old.generation);
    for grant in grants {
        w.release(c, grant.lease).unwrap();
    }
    assert_eq!(w.registry.members[&MemberId(0)].usage.pod_lifetime_bytes, 0);
}
