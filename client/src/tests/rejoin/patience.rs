//! What another broker cannot restore at once, and memory that is brought to it in portions.

use super::*;

/// How many descriptors of a file this process has.
fn descriptors_of(file: &std::fs::File) -> usize {
    let wanted = inode(file.as_fd());
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = all.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    found.filter(|found| std::os::unix::fs::MetadataExt::ino(found) == wanted).count()
}

#[test]
fn a_claim_that_is_refused_for_what_passes_is_made_again() {
    let (scene, mut fake) = scene();
    let (published, lease) = (scene.publish(&mut fake, 1), scene.acquire(&mut fake, 7, 2));
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    for code in [Code::QuotaInFlight, Code::QuotaDescriptors, Code::ShuttingDown] {
        let (request, claims) = fake.hear_claims();
        assert_eq!(claims.len(), 2);
        fake.say(request, BrokerBody::Reattached(vec![Err(Refusal::new(code)); 2]));
    }
    // As a whole, too; and where the memory that was brought could not be looked at.
    let (request, _) = fake.hear_claims();
    fake.say(request, BrokerBody::Refused(Refusal::new(Code::TooManyRequests)));
    let (request, claims) = fake.hear_claims();
    assert_eq!(claims.len(), 2);
    fake.say(
        request,
        BrokerBody::Reattached(vec![Ok(Reattached::DescriptorWanted), Ok(Reattached::Restored)]),
    );
    let (request, claims) = fake.hear_claims();
    assert!(claims.len() == 1 && claims[0].descriptor.is_some());
    fake.say(request, BrokerBody::Reattached(vec![Err(Refusal::new(Code::WorkerTimeout))]));
    assert_eq!(fake.restore(), [buffer_receipt(1)]);
    scene.acquire(&mut fake, 8, 3);
    assert_eq!((published.state(), lease.state()), (PublishedState::Live, LeaseState::Held));
}

#[test]
fn what_is_refused_for_longer_than_a_broker_waits_is_lost_alone() {
    let (scene, mut fake) = scene();
    let (published, lease) = (scene.publish(&mut fake, 1), scene.acquire(&mut fake, 7, 2));
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    let outcomes = |claims: &[Claim]| {
        let of = |claim: &Claim| match claim.receipt == lease_receipt(7) {
            true => Ok(Reattached::Restored),
            false => Err(Refusal::new(Code::QuotaInFlight)),
        };
        BrokerBody::Reattached(claims.iter().map(of).collect())
    };
    std::thread::scope(|scope| {
        let (published, lease) = (&published, &lease);
        let release = scope.spawn(move || {
            until("the loss", || published.state() == PublishedState::Lost);
            assert_eq!(lease.state(), LeaseState::Held);
            let error = scene.client.acquire(Acquire::id(id(9))).unwrap_err();
            assert_eq!(error.code(), Some(Code::NotFound));
        });
        let mut asked = 0;
        loop {
            match fake.expect() {
                (request, ClientBody::Reattach(claims)) => fake.say(request, outcomes(&claims)),
                (request, ClientBody::Acquire { .. }) => {
                    fake.say(request, BrokerBody::Acquired(vec![Err(Refusal::new(Code::NotFound))]));
                    break;
                }
                other => panic!("{other:?}"),
            }
            asked += 1;
        }
        release.join().unwrap();
        assert!(asked > 2, "asked {asked} times");
    });
}

#[test]
fn what_a_worker_fails_over_comes_last_and_alone_and_not_often() {
    let (scene, mut fake) = scene();
    let published: Vec<Published> = (1..=3).map(|random| scene.publish(&mut fake, random)).collect();
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    let (request, claims) = fake.hear_claims();
    assert_eq!(claims.len(), 3);
    fake.say(request, BrokerBody::Reattached(vec![Ok(Reattached::DescriptorWanted); 3]));
    // The first breaks the worker, and the second was with it; the third found no room.
    let (request, claims) = fake.hear_claims();
    let outcome = |claim: &Claim| {
        Err(Refusal::new(match &claim.receipt {
            it if *it == buffer_receipt(1) => Code::WorkerFailed,
            it if *it == buffer_receipt(2) => Code::WorkerTimeout,
            _ => Code::QuotaInFlight,
        }))
    };
    fake.say(request, BrokerBody::Reattached(claims.iter().map(outcome).collect()));
    let (request, again) = fake.hear_claims();
    assert!(again.len() == 1 && again[0].receipt == buffer_receipt(3), "others first: {again:?}");
    fake.say(request, BrokerBody::Reattached(vec![Ok(Reattached::Restored)]));
    for _ in 0..2 {
        let (request, again) = fake.hear_claims();
        assert_eq!(again.len(), 1, "alone");
        let outcome = match again[0].receipt == buffer_receipt(1) {
            true => Err(Refusal::new(Code::WorkerFailed)),
            false => Ok(Reattached::Restored),
        };
        fake.say(request, BrokerBody::Reattached(vec![outcome]));
    }
    // The next thing that is said is no claim.
    scene.acquire(&mut fake, 7, 9);
    let states: Vec<PublishedState> = published.iter().map(Published::state).collect();
    assert_eq!(states, [PublishedState::Lost, PublishedState::Live, PublishedState::Live]);
}

#[test]
fn memory_is_brought_in_portions_of_a_packet() {
    const COUNT: usize = 150;
    let (scene, mut fake) = scene();
    let file = tempfile::tempfile().unwrap();
    let (fd, device) = (file.try_clone().unwrap().into(), gpu_handoff_cuda::DeviceUuid::from_bytes([1; 16]));
    let memory = Arc::new(crate::ExportedFd { fd, bytes: 2 << 20, device });
    let published = std::thread::scope(|scope| {
        let many = (0..COUNT).map(|_| Buffer::named("weights").unwrap().exported(Arc::clone(&memory)));
        let many: Vec<Buffer<'_>> = many.collect();
        let publish = scope.spawn(|| scene.client.publish_many(many).unwrap());
        let mut come = 0;
        while come < COUNT {
            let (request, body) = fake.expect();
            let ClientBody::Publish(items) = body else { panic!("{body:?}") };
            let taken = (come..come + items.len()).map(|n| published_as(n as u128));
            fake.say(request, BrokerBody::Published(taken.collect()));
            come += items.len();
        }
        publish.join().unwrap()
    });
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    for count in [64, 64, 22] {
        let (request, claims) = fake.hear_claims();
        assert_eq!(claims.len(), count);
        fake.say(request, BrokerBody::Reattached(vec![Ok(Reattached::DescriptorWanted); count]));
    }
    for count in [64, 64, 22] {
        let (request, claims) = fake.hear_claims();
        assert_eq!(claims.iter().filter(|claim| claim.descriptor.is_some()).count(), count);
        // The file, what is published, and each descriptor as it was sent and as it came.
        assert!(descriptors_of(&file) <= 2 + 2 * 64, "{}", descriptors_of(&file));
        fake.say(request, BrokerBody::Reattached(vec![Ok(Reattached::Restored); count]));
    }
    scene.acquire(&mut fake, 7, 999);
    assert!(published.iter().all(|it| it.as_ref().unwrap().state() == PublishedState::Live));
}
