//! Calls that are under way, or come, while there is no broker.

use std::thread::ScopedJoinHandle;
use std::time::Instant;

use super::*;

/// Whether the thread still waits, after the client had every chance to answer it.
fn still_waits<T>(thread: &ScopedJoinHandle<'_, T>) -> bool {
    !thread.is_finished()
}

#[test]
fn threads_that_wait_wait_on_and_are_asked_for_again_with_the_rest_of_their_time() {
    let (scene, mut fake) = scene();
    const WAIT: Duration = Duration::from_secs(500);
    std::thread::scope(|scope| {
        let threads: Vec<_> = [1, 2]
            .map(|random| {
                scope.spawn({
                    let client = &scene.client;
                    move || client.acquire(Acquire::id(id(random)).wait(WAIT)).unwrap().info().id
                })
            })
            .into_iter()
            .collect();
        let asked = |fake: &mut Fake| {
            let (request, body) = fake.expect();
            let ClientBody::Acquire { items, wait, .. } = body else { panic!("{body:?}") };
            let gpu_handoff_protocol::message::Target::Id(BufferId { random, .. }) = items[0].target else {
                panic!()
            };
            (request, random, wait)
        };
        let before: Vec<_> = (0..2).map(|_| asked(&mut fake)).collect();
        fake.hang_up();
        let mut fake = scene.door.greeted(2);
        let after: Vec<_> = (0..2).map(|_| asked(&mut fake)).collect();
        assert!(threads.iter().all(still_waits));
        for (request, random, wait) in &after {
            assert!(before.iter().any(|it| (it.0, it.1) == (*request, *random)));
            assert!(*wait <= WAIT && *wait > WAIT / 2);
            fake.say(*request, BrokerBody::Acquired(vec![granted(*request, *random)]));
        }
        let found: Vec<BufferId> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        assert_eq!(found, [id(1), id(2)]);
    });
}

#[test]
fn a_publish_a_release_and_a_retire_are_made_again() {
    let (scene, mut fake) = scene();
    let (published, lease) = (scene.publish(&mut fake, 1), scene.acquire(&mut fake, 7, 2));
    std::thread::scope(|scope| {
        let publish = scope.spawn(|| scene.client.publish(weights()).unwrap());
        assert!(matches!(fake.expect().1, ClientBody::Publish(_)));
        let release = scope.spawn(|| lease.release());
        assert!(matches!(fake.expect().1, ClientBody::Release(_)));
        let retire = scope.spawn(|| published.retire(Duration::from_secs(1)));
        assert!(matches!(fake.expect().1, ClientBody::Retire { .. }));
        fake.hang_up();
        let mut fake = scene.door.greeted(2);
        assert_eq!(fake.restore(), [buffer_receipt(1), lease_receipt(7)], "what has no answer is still had");
        fake.hear_publish(3);
        let (request, body) = fake.expect();
        assert!(matches!(body, ClientBody::Release(leases) if leases == [LeaseId(7)]));
        fake.say(request, BrokerBody::Released(vec![Err(Refusal::new(Code::NotLeased))]));
        let (request, body) = fake.expect();
        assert!(matches!(body, ClientBody::Retire { id: it, .. } if it == id(1)));
        fake.say(request, BrokerBody::Retired(Err(Refusal::new(Code::NotFound))));
        assert_eq!(publish.join().unwrap().id(), id(3));
        release.join().unwrap().unwrap();
        assert_eq!(retire.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn leases_dropped_while_there_is_no_broker_are_claimed_and_given_back() {
    let (scene, mut fake) = scene();
    let (dropped, told, kept) =
        (scene.acquire(&mut fake, 7, 1), scene.acquire(&mut fake, 8, 2), scene.acquire(&mut fake, 9, 3));
    // This one the broker has heard of, and not answered.
    drop(told);
    let (_, body) = fake.expect();
    assert!(matches!(body, ClientBody::Release(leases) if leases == [LeaseId(8)]));
    fake.hang_up();
    until("the loss", || scene.client.shared.connection.is_away());
    drop(dropped);
    let mut fake = scene.door.greeted(2);
    let mut claimed = fake.restore();
    claimed.sort_by_key(|receipt| receipt.as_bytes().to_vec());
    assert_eq!(claimed, [7, 8, 9].map(lease_receipt));
    let mut released = fake.hear_release();
    released.sort_unstable();
    assert_eq!(released, [7, 8]);
    assert_eq!(kept.state(), LeaseState::Held);
    fake.hang_up();
    assert_eq!(scene.door.greeted(3).restore(), [lease_receipt(9)]);
}

#[test]
fn a_watch_goes_on_without_a_gap() {
    let (scene, mut fake) = scene();
    let mut watch = scene.client.watch().unwrap();
    let (request, _) = fake.expect();
    let appeared = |random| Event::Appeared(Arc::new(info(random, "w")));
    let tell = |fake: &Fake, request, events: Vec<Event>| {
        events.into_iter().for_each(|event| fake.say(request, BrokerBody::Event(event)));
    };
    let gone = |random, reason| Event::Gone { id: id(random), reason };
    tell(&fake, request, vec![appeared(1), appeared(2), appeared(3), Event::SnapshotDone]);
    tell(&fake, request, vec![gone(3, EndReason::Retired)]);
    for expected in [appeared(1), appeared(2), appeared(3), Event::SnapshotDone, gone(3, EndReason::Retired)]
    {
        assert_eq!(watch.next().unwrap().unwrap(), expected);
    }
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    let (again, body) = fake.expect();
    assert!(matches!(body, ClientBody::Watch) && again == request);
    tell(&fake, request, vec![appeared(2), appeared(4), Event::SnapshotDone, appeared(5)]);
    for expected in [appeared(4), gone(1, EndReason::Other), Event::SnapshotDone, appeared(5)] {
        assert_eq!(watch.next().unwrap().unwrap(), expected);
    }
    drop(watch);
    assert!(matches!(fake.expect().1, ClientBody::Cancel { request: it } if it == request));
}

#[test]
fn half_an_answer_of_the_last_broker_leaves_nothing_behind() {
    let (scene, mut fake) = scene();
    std::thread::scope(|scope| {
        let wanted: Vec<Acquire> = (0..2).map(|n| Acquire::id(id(n))).collect();
        let client = &scene.client;
        let acquire = scope.spawn(move || client.acquire_many(&wanted).unwrap());
        let (request, _) = fake.expect();
        let long = || {
            Err(Refusal::new(Code::NotFound).compared_with(
                &"w".repeat(380),
                "x".repeat(380),
                "y".repeat(380),
            ))
        };
        let items = std::iter::once(granted(7, 0)).chain((0..63).map(|_| long()));
        fake.say_first_part(request, BrokerBody::Acquired(items.collect()));
        fake.hang_up();
        let mut fake = scene.door.greeted(2);
        assert_eq!(fake.restore(), [lease_receipt(7)]);
        let (request, _) = fake.expect();
        fake.say(request, BrokerBody::Acquired(vec![granted(8, 0), granted(9, 1)]));
        assert_eq!(fake.hear_release(), [7]);
        let leases: Vec<Lease> = acquire.join().unwrap().into_iter().map(|lease| lease.unwrap()).collect();
        assert_eq!(leases.iter().map(|it| it.id().0).collect::<Vec<_>>(), [8, 9]);
        assert!(leases.iter().all(|it| it.state() == LeaseState::Held));
    });
}

#[test]
fn a_release_that_is_given_up_while_there_is_no_broker_is_told_to_the_next() {
    let (scene, mut fake) = scene();
    let lease = scene.acquire(&mut fake, 7, 1);
    fake.hang_up();
    until("the loss", || scene.client.shared.connection.is_away());
    let body = ClientBody::Release(vec![lease.id()]);
    let soon = Instant::now() + Duration::from_millis(10);
    let error = scene.client.shared.connection.call(body, soon).unwrap_err();
    assert!(matches!(error, crate::error::Fault::TimedOut(_)), "{error:?}");
    let mut fake = scene.door.greeted(2);
    assert_eq!(fake.restore(), [lease_receipt(7)]);
    assert_eq!(fake.hear_release(), [7]);
}

#[test]
fn a_set_that_another_broker_breaks_is_begun_anew() {
    let (scene, mut fake) = scene();
    std::thread::scope(|scope| {
        let many: Vec<Buffer<'_>> = (0..70).map(|_| weights()).collect();
        let publish = scope.spawn(|| scene.client.publish_set("model", many).unwrap());
        let part = |fake: &mut Fake| {
            let (request, body) = fake.expect();
            let ClientBody::PublishSet { part, items } = body else { panic!("{body:?}") };
            (request, part.first, items.len())
        };
        let take = |fake: &Fake, request, first: u128, count: usize| {
            let taken = (first..first + count as u128).map(published_as);
            fake.say(request, BrokerBody::Published(taken.collect()));
        };
        let (request, first, count) = part(&mut fake);
        assert_eq!((first, count), (0, 64));
        take(&fake, request, 100, count);
        assert_eq!(part(&mut fake).1, 64);
        fake.hang_up();
        let mut fake = scene.door.greeted(2);
        let (request, claims) = fake.hear_claims();
        assert_eq!(claims.len(), 64);
        fake.say(request, BrokerBody::Reattached(claims.iter().map(|_| not_owner()).collect()));
        let (request, first, count) = part(&mut fake);
        assert_eq!(first, 64);
        fake.say(request, BrokerBody::Published(vec![Err(Refusal::new(Code::SetBroken)); count]));
        for expected in [0, 64] {
            let (request, first, count) = part(&mut fake);
            assert_eq!(first, expected);
            take(&fake, request, 200 + u128::from(first), count);
        }
        let set = publish.join().unwrap();
        assert_eq!((set.buffers().len(), set.buffers()[0].id()), (70, id(200)));
        assert!(set.buffers().iter().all(|it| it.state() == PublishedState::Live));
    });
}
