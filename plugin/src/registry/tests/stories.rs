//! One story a test.

use super::*;

#[test]
fn a_buffer_goes_from_one_member_to_another_and_comes_to_an_end() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let receipt = w.publish(producer, "weights", descriptor()).unwrap();
    let grant = w.acquire(consumer, named("weights", 0)).unwrap();
    assert_eq!((grant.buffer.id, grant.buffer.generation), (receipt.id, receipt.generation));
    assert_eq!(grant.buffer.owner, pod(0));
    assert!(grant.buffer.verified);
    w.release(consumer, grant.lease).unwrap();
    let (request, sent) = w.ask(producer, Ask::Retire { id: receipt.id, until: None });
    assert!(matches!(answer(&sent, producer, request), BrokerBody::Retired(Ok(0))));
    assert!(is_gone(&events(&sent, consumer)[0], EndReason::Retired), "who was ever given it is told");
    assert_eq!(w.disposed, 1);
    assert_eq!(w.registry.counts(), (0, 0, 2));
    assert!(w.release(consumer, grant.lease).is_err());
    let told = Counters { published: 1, granted: 1, released: 1, refused: 1 };
    assert_eq!(w.registry.counters(), told, "what was answered is counted");
}

#[test]
fn who_waits_for_a_name_hears_once_that_it_is_about_to_come() {
    let mut w = World::new(Policy::default());
    let (producer, consumer, stranger) = (w.open(0, 1), w.open(1, 1), w.open(2, 1));
    let until = Some(w.now + Duration::from_secs(1));
    let wait = |w: &mut World, session, name| {
        w.ask(session, Ask::Acquire { items: vec![named(name, 0)], until, device: None }).0
    };
    let request = wait(&mut w, consumer, "weights");
    wait(&mut w, consumer, "others");
    wait(&mut w, stranger, "weights");
    let announce = || Ask::Announce(vec!["weights".parse().unwrap(); 3]);
    let (_, sent) = w.ask(producer, announce());
    let told: Vec<_> = sent.iter().map(|(session, m)| (*session, m.request)).collect();
    assert_eq!(told, [(consumer, request)]);
    assert!(matches!(sent[0].1.body, BrokerBody::Announced));
    // Whoever announces much, and publishes nothing, disturbs nobody twice.
    assert!(w.ask(producer, announce()).1.is_empty());
    assert!(w.ask(stranger, Ask::Announce(vec!["others".parse().unwrap()])).1.is_empty(), "another group");
    // One that waits for several hears it once.
    let items = vec![named("a", 0), named("b", 0)];
    let (both, _) = w.ask(consumer, Ask::Acquire { items, until, device: None });
    let names = ["b", "a"].map(|name| name.parse().unwrap());
    let (_, sent) = w.ask(producer, Ask::Announce(names.into()));
    assert_eq!(sent.iter().map(|(_, m)| m.request).collect::<Vec<_>>(), [both]);
    assert!(w.ask(producer, Ask::Announce(vec!["b".parse().unwrap()])).1.is_empty());
    // It waits on, and gets it.
    w.publish(producer, "weights", descriptor()).unwrap();
    assert_eq!(w.registry.counts().1, 1);
}

#[test]
fn another_group_sees_exactly_what_does_not_exist() {
    let mut w = World::new(Policy::default());
    let (producer, stranger) = (w.open(0, 1), w.open(2, 1));
    let receipt = w.publish(producer, "weights", descriptor()).unwrap();
    let never = BufferId { boot: BOOT, random: 12_345_678 };
    let real = w.acquire(stranger, by_id(receipt.id)).unwrap_err();
    let unreal = w.acquire(stranger, by_id(never)).unwrap_err();
    assert_eq!(
        real.to_string().replace(&receipt.id.to_string(), "ID"),
        unreal.to_string().replace(&never.to_string(), "ID")
    );
    assert_eq!(real.code(), Code::NotFound);
    assert_eq!(code(w.acquire(stranger, named("weights", 0))), Code::NotFound);
    let (request, sent) = w.ask(stranger, Ask::Retire { id: receipt.id, until: None });
    assert!(
        matches!(answer(&sent, stranger, request), BrokerBody::Retired(Err(r)) if r.code() == Code::NotFound)
    );
    // Waiting for it does not tell either.
    let until = Some(w.now + Duration::from_secs(1));
    let (request, sent) =
        w.ask(stranger, Ask::Acquire { items: vec![by_id(receipt.id)], until, device: None });
    assert_eq!(code(acquired(answer(&sent, stranger, request))), Code::NotFound);
    let (_, sent) = w.ask(stranger, Ask::Watch);
    assert_eq!(events(&sent, stranger), [Event::SnapshotDone]);
}

#[test]
fn what_never_was_what_is_retired_and_what_is_stale_read_differently() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let receipt = w.publish(producer, "w", descriptor()).unwrap();
    w.ask(producer, Ask::Retire { id: receipt.id, until: None });
    assert_eq!(code(w.acquire(consumer, by_id(receipt.id))), Code::Retired);
    assert_eq!(code(w.acquire(consumer, by_id(BufferId { boot: BOOT, random: 99 }))), Code::NotFound);
    assert_eq!(code(w.acquire(consumer, by_id(BufferId { boot: BootTag(8), random: 1 }))), Code::StaleHandle);
    assert_eq!(code(w.acquire(consumer, named("w", 0))), Code::NotFound);
}

#[test]
fn a_lease_is_released_once_and_by_its_holder() {
    let mut w = World::new(Policy::default());
    let (producer, consumer, other) = (w.open(0, 1), w.open(1, 1), w.open(1, 2));
    w.publish(producer, "w", descriptor()).unwrap();
    let grant = w.acquire(consumer, named("w", 0)).unwrap();
    assert_eq!(code(w.release(other, grant.lease)), Code::NotLeased);
    assert_eq!(w.release(consumer, grant.lease), Ok(()));
    assert_eq!(code(w.release(consumer, grant.lease)), Code::NotLeased);
}

#[test]
fn a_dead_producer_leaves_an_orphan_until_the_last_lease_ends() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let receipt = w.publish(producer, "w", descriptor()).unwrap();
    let grant = w.acquire(consumer, named("w", 0)).unwrap();
    let sent = w.tell(Input::SessionEnded(producer, EndReason::OwnerDied));
    let orphaned = Event::Orphaned { id: receipt.id, reason: EndReason::OwnerDied, leases: 1 };
    assert_eq!(events(&sent, consumer), [orphaned]);
    assert_eq!(w.disposed, 1, "the broker pins the memory no longer");
    assert_eq!(code(w.acquire(consumer, by_id(receipt.id))), Code::Retired);
    assert_eq!(w.release(consumer, grant.lease), Ok(()));
    assert_eq!(w.registry.counts(), (0, 0, 1));
}

#[test]
fn a_dead_consumers_leases_end_with_it() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let receipt = w.publish(producer, "w", descriptor()).unwrap();
    w.acquire(consumer, named("w", 0)).unwrap();
    w.ask(producer, Ask::Retire { id: receipt.id, until: None });
    let sent = w.tell(Input::SessionEnded(consumer, EndReason::OwnerDied));
    assert!(
        is_gone(&events(&sent, producer)[0], EndReason::Retired),
        "the owner learns that its memory is free"
    );
}

#[test]
fn a_retire_gives_its_holders_time_then_names_them() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let receipt = w.publish(producer, "w", descriptor()).unwrap();
    w.acquire(consumer, named("w", 0)).unwrap();
    let until = Some(w.now + Duration::from_secs(5));
    let (_, sent) = w.ask(producer, Ask::Retire { id: receipt.id, until });
    assert_eq!(
        events(&sent, consumer),
        [Event::Retiring { id: receipt.id, deadline: Duration::from_secs(5) }]
    );
    assert_eq!(w.registry.next_deadline(), until);
    assert!(events(&w.pass(Duration::from_secs(4)), consumer).is_empty());
    let sent = w.pass(Duration::from_secs(1));
    assert_eq!(
        events(&sent, consumer),
        [Event::Orphaned { id: receipt.id, reason: EndReason::Retired, leases: 1 }]
    );
    assert_eq!(w.registry.next_deadline(), None);
}

#[test]
fn a_retire_is_the_owners_and_happens_once() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let receipt = w.publish(producer, "w", descriptor()).unwrap();
    w.acquire(consumer, named("w", 0)).unwrap();
    let mut retire = |session| {
        let (request, sent) = w.ask(session, Ask::Retire { id: receipt.id, until: None });
        match answer(&sent, session, request) {
            BrokerBody::Retired(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code(retire(consumer)), Code::NotOwner);
    assert_eq!(retire(producer), Ok(1));
    assert_eq!(code(retire(producer)), Code::Retired);
}

#[test]
fn a_wait_ends_with_the_buffer_the_deadline_or_the_cancel() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let second = Duration::from_secs(1);
    let until = Some(w.now + second);
    let wait = |name| Ask::Acquire { items: vec![named(name, 0)], until, device: None };
    let (first, sent) = w.ask(consumer, wait("a"));
    assert!(sent.is_empty());
    let (second_request, _) = w.ask(consumer, wait("b"));
    let (third, _) = w.ask(consumer, wait("c"));

    let vetted = w.vetted("a", descriptor());
    let (_, sent) = w.ask(producer, Ask::Publish(vec![Ok(vetted)]));
    assert!(acquired(answer(&sent, consumer, first)).is_ok());

    let (_, sent) = w.ask(consumer, Ask::Cancel(second_request));
    assert_eq!(code(acquired(answer(&sent, consumer, second_request))), Code::WaitTimeout);

    let sent = w.pass(second);
    assert_eq!(code(acquired(answer(&sent, consumer, third))), Code::WaitTimeout);
    assert_eq!(w.registry.next_deadline(), None);
}

#[test]
fn a_wait_for_several_is_answered_when_the_last_is_there() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let until = Some(w.now + Duration::from_secs(1));
    let items = vec![named("a", 0), named("b", 0)];
    let (request, _) = w.ask(consumer, Ask::Acquire { items, until, device: None });
    w.publish(producer, "a", descriptor()).unwrap();
    assert_eq!(w.registry.counts().1, 0, "no lease is held while waiting");
    let vetted = w.vetted("b", descriptor());
    let (_, sent) = w.ask(producer, Ask::Publish(vec![Ok(vetted)]));
    match answer(&sent, consumer, request) {
        BrokerBody::Acquired(items) => assert!(items.len() == 2 && items.iter().all(Result::is_ok)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn generations_rise_also_after_the_publisher_was_restarted() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let first = w.publish(producer, "w", descriptor()).unwrap();
    w.tell(Input::SessionEnded(producer, EndReason::OwnerDied));
    let restarted = w.open(0, 1);
    assert_eq!(code(w.acquire(consumer, named("w", first.generation))), Code::NotFound);
    let second = w.publish(restarted, "w", descriptor()).unwrap();
    assert!(second.generation > first.generation);
    let third = w.publish(restarted, "w", descriptor()).unwrap();
    assert_eq!(w.acquire(consumer, named("w", first.generation)).unwrap().buffer.id, third.id, "the newest");
}

#[test]
fn a_name_is_one_pods_while_it_lives() {
    let mut w = World::new(Policy::default());
    let (one, other) = (w.open(0, 1), w.open(1, 1));
    let receipt = w.publish(one, "w", descriptor()).unwrap();
    assert_eq!(code(w.publish(other, "w", descriptor())), Code::NameTaken);
    assert_eq!(w.disposed, 1, "what is refused is closed in its own lane");
    w.ask(one, Ask::Retire { id: receipt.id, until: None });
    assert!(w.publish(other, "w", descriptor()).is_ok());
}

#[test]
fn a_watch_begins_with_all_that_is_there() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let first = w.publish(producer, "a", descriptor()).unwrap();
    let (request, sent) = w.ask(consumer, Ask::Watch);
    let told = events(&sent, consumer);
    assert!(matches!(&told[..], [Event::Appeared(info), Event::SnapshotDone] if info.id == first.id));
    let vetted = w.vetted("b", descriptor());
    let (_, sent) = w.ask(producer, Ask::Publish(vec![Ok(vetted)]));
    assert!(matches!(&events(&sent, consumer)[..], [Event::Appeared(_)]));
    let (_, sent) = w.ask(consumer, Ask::Cancel(request));
    assert!(matches!(answer(&sent, consumer, request), BrokerBody::Cancelled));
    let (_, sent) = w.ask(producer, Ask::Retire { id: first.id, until: None });
    assert!(events(&sent, consumer).is_empty());
}

#[test]
fn equal_process_numbers_are_refused_until_the_cure_is_proven() {
    let mut w = World::allowing_legacy();
    let (producer, same, other) = (w.open(0, 1), w.open(1, 1), w.open(1, 2));
    w.publish(producer, "w", Carrier::Legacy([0; 64])).unwrap();
    let refusal = w.acquire(same, named("w", 0)).unwrap_err();
    assert_eq!(refusal.code(), Code::PidCollision);
    assert_eq!(refusal.compared()[0].found, "1");
    let grant = w.acquire(other, named("w", 0)).unwrap();
    assert!(!grant.rewrite_pid_word && !grant.buffer.verified);
    w.tell(Input::PidWordProven(true));
    assert!(w.acquire(same, named("w", 0)).unwrap().rewrite_pid_word);
}

#[test]
fn limits_are_refusals() {
    let mut w = World::with_quota(Quota { buffers: 1, leases: 1, requests: 1, ..Quota::default() });
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    w.publish(producer, "a", descriptor()).unwrap();
    assert_eq!(code(w.publish(producer, "b", descriptor())), Code::QuotaBuffers);
    w.acquire(consumer, named("a", 0)).unwrap();
    assert_eq!(code(w.acquire(consumer, named("a", 0))), Code::QuotaLeases);
    let until = Some(w.now + Duration::from_secs(1));
    let wait = || Ask::Acquire { items: vec![named("z", 0)], until, device: None };
    w.ask(consumer, wait());
    let (request, sent) = w.ask(consumer, wait());
    assert_eq!(code(acquired(answer(&sent, consumer, request))), Code::TooManyRequests);

    let mut w = World::with_quota(Quota { requests: 3, ..Quota::default() });
    let (consumer, until) = (w.open(1, 1), Some(w.now + Duration::from_secs(1)));
    let wait = |n| Ask::Acquire { items: vec![named("z", 0); n], until, device: None };
    w.ask(consumer, wait(2));
    let (request, sent) = w.ask(consumer, wait(2));
    let refused = acquired(answer(&sent, consumer, request));
    assert_eq!(code(refused), Code::TooManyRequests, "each item counts");
    assert!(w.ask(consumer, wait(1)).1.is_empty());

    let mut w = World::new(Policy::default());
    let producer = w.open(0, 1);
    for i in 0..100 {
        w.publish(producer, &format!("n{i}"), descriptor()).unwrap();
    }
    assert_eq!(code(w.publish(producer, "last", descriptor())), Code::QuotaDescriptors);
}

#[test]
fn a_range_outside_its_allocation_is_refused() {
    let mut w = World::new(Policy::default());
    let producer = w.open(0, 1);
    for (offset, size) in [(0, 101), (100, 1), (u64::MAX, 2), (0, 0)] {
        let mut vetted = w.vetted("w", descriptor());
        vetted.publication.facts.offset = offset;
        vetted.publication.facts.size = size;
        let (request, sent) = w.ask(producer, Ask::Publish(vec![Ok(vetted)]));
        let BrokerBody::Published(items) = answer(&sent, producer, request) else { panic!("published") };
        assert_eq!(code(items[0].clone()), Code::SizeMismatch);
    }
}

#[test]
fn a_member_that_left_takes_everything_along() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    w.publish(producer, "w", descriptor()).unwrap();
    w.acquire(consumer, named("w", 0)).unwrap();
    let sent = w.tell(Input::MemberLeft(MemberId(0)));
    assert!(matches!(events(&sent, consumer)[..], [Event::Orphaned { reason: EndReason::MemberLeft, .. }]));
    w.tell(Input::MemberLeft(MemberId(1)));
    assert_eq!(w.registry.counts(), (0, 0, 0));
}

#[test]
fn a_connection_has_few_watches_and_nobody_counts_leases() {
    let mut w = World::with_quota(Quota { watches: 1, ..Quota::default() });
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let (first, _) = w.ask(consumer, Ask::Watch);
    let (second, sent) = w.ask(consumer, Ask::Watch);
    assert!(
        matches!(answer(&sent, consumer, second), BrokerBody::Refused(r) if r.code() == Code::TooManyRequests)
    );
    w.ask(consumer, Ask::Cancel(first));
    let (_, sent) = w.ask(consumer, Ask::Watch);
    assert_eq!(events(&sent, consumer), [Event::SnapshotDone]);

    w.publish(producer, "w", descriptor()).unwrap();
    let leases: Vec<u64> = (0..3).map(|_| w.acquire(consumer, named("w", 0)).unwrap().lease.0).collect();
    let steps = [leases[1].wrapping_sub(leases[0]), leases[2].wrapping_sub(leases[1])];
    assert_ne!(steps[0], steps[1], "lease numbers are not a counter: {leases:?}");
}

#[test]
fn what_others_retire_makes_no_group_forget() {
    let mut w = World::new(Policy::default());
    let (producer, consumer, stranger) = (w.open(0, 1), w.open(1, 1), w.open(2, 1));
    let receipt = w.publish(producer, "w", descriptor()).unwrap();
    w.ask(producer, Ask::Retire { id: receipt.id, until: None });
    for _ in 0..5_000 {
        let other = w.publish(stranger, "x", descriptor()).unwrap();
        w.ask(stranger, Ask::Retire { id: other.id, until: None });
    }
    assert_eq!(code(w.acquire(consumer, by_id(receipt.id))), Code::Retired);
}
