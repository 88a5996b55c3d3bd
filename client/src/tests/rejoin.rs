//! A broker that goes, and another one, or none, that comes: what is restored, asked again, and lost.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu_handoff_protocol::message::{
    BrokerBody, Claim, ClientBody, EndReason, Event, Grant, PublishedAs, Reattached, RequestId, Welcome,
};
use gpu_handoff_protocol::{BufferId, Code, Instance, LeaseId, Receipt, Refusal};

use super::conversation::exported;
use super::fake::{Door, Fake, PATIENCE, grant, until, welcome};
use super::{Pretender, id, info};
use crate::{Acquire, Buffer, Client, ClientError, Lease, LeaseState, Published, PublishedState};

mod calls;
mod patience;

/// A client that looks for another broker, and where that is to be.
struct Scene {
    door: Door,
    client: Client,
    pretender: Pretender,
}

fn scene() -> (Scene, Fake) {
    scene_with(PATIENCE)
}

fn scene_with(patience: Duration) -> (Scene, Fake) {
    let (door, pretender) = (Door::new(), Pretender::default());
    let (builder, importer) = (door.builder().reconnect(patience), Box::new(pretender.clone()));
    let (client, fake) = std::thread::scope(|scope| {
        let client = scope.spawn(move || builder.connect_with(importer).unwrap());
        let fake = door.greeted(1);
        (client.join().unwrap(), fake)
    });
    (Scene { door, client, pretender }, fake)
}

impl Door {
    /// A broker of this instance that has said welcome.
    fn greeted(&self, instance: u8) -> Fake {
        let mut fake = self.accept();
        let (request, body) = fake.expect();
        assert!(matches!(body, ClientBody::Hello { .. }), "{body:?}");
        fake.say(
            request,
            BrokerBody::Welcome(Welcome { instance: Instance::from_bytes([instance; 16]), ..welcome() }),
        );
        fake
    }
}

fn receipt(of: &str) -> Receipt {
    Receipt::new(of.as_bytes()).unwrap()
}

fn lease_receipt(lease: u64) -> Receipt {
    receipt(&format!("lease {lease}"))
}

fn buffer_receipt(random: u128) -> Receipt {
    receipt(&format!("buffer {random}"))
}

fn granted(lease: u64, random: u128) -> Result<Grant, Refusal> {
    let grant = grant(lease, info(random, "weights"))?;
    Ok(Grant { receipt: Some(lease_receipt(lease)), ..grant })
}

fn published_as(random: u128) -> Result<PublishedAs, Refusal> {
    Ok(PublishedAs { id: id(random), generation: 1, receipt: Some(buffer_receipt(random)), checked: None })
}

impl Scene {
    fn acquire(&self, fake: &mut Fake, lease: u64, random: u128) -> Lease {
        std::thread::scope(|scope| {
            let acquire = scope.spawn(|| self.client.acquire(Acquire::named("weights").unwrap()).unwrap());
            fake.grant(vec![granted(lease, random)]);
            acquire.join().unwrap()
        })
    }

    fn publish(&self, fake: &mut Fake, random: u128) -> Published {
        std::thread::scope(|scope| {
            let publish = scope.spawn(|| self.client.publish(weights()).unwrap());
            fake.hear_publish(random);
            publish.join().unwrap()
        })
    }
}

fn weights() -> Buffer<'static> {
    Buffer::named("weights").unwrap().exported(exported())
}

impl Fake {
    fn hear_publish(&mut self, random: u128) {
        let (request, body) = self.expect();
        let ClientBody::Publish(items) = body else { panic!("{body:?}") };
        assert_eq!(items.len(), 1);
        self.say(request, BrokerBody::Published(vec![published_as(random)]));
    }

    fn hear_claims(&mut self) -> (RequestId, Vec<Claim>) {
        let (request, body) = self.expect();
        let ClientBody::Reattach(claims) = body else { panic!("{body:?}") };
        (request, claims)
    }

    /// Restores all that is claimed; gives the receipts.
    fn restore(&mut self) -> Vec<Receipt> {
        let (request, claims) = self.hear_claims();
        self.say(request, BrokerBody::Reattached(vec![Ok(Reattached::Restored); claims.len()]));
        claims.into_iter().map(|claim| claim.receipt).collect()
    }
}

fn not_owner() -> Result<Reattached, Refusal> {
    Err(Refusal::new(Code::NotOwner))
}

fn inode(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

#[test]
fn what_is_had_is_claimed_of_another_broker_and_lives_on() {
    let (scene, mut fake) = scene();
    let published = scene.publish(&mut fake, 1);
    let lease = scene.acquire(&mut fake, 7, 2);
    let ptr = lease.ptr();
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    assert_eq!(fake.restore(), [buffer_receipt(1), lease_receipt(7)]);
    fake.notice(Event::Retiring { id: id(2), deadline: Duration::from_secs(5) });
    until("the notice", || lease.is_retiring());
    assert_eq!((lease.ptr(), published.state()), (ptr, PublishedState::Live));
    assert!(matches!(lease.state(), LeaseState::Retiring(_)));
    drop(lease);
    assert_eq!(fake.hear_release(), [7]);
    fake.notice(Event::Gone { id: id(1), reason: EndReason::Retired });
    until("the end", || published.state() == PublishedState::Ended(EndReason::Retired));
    // What is over is not claimed any more.
    fake.hang_up();
    let mut fake = scene.door.greeted(3);
    let again = scene.publish(&mut fake, 4);
    assert_eq!(again.state(), PublishedState::Live);
}

#[test]
fn what_is_refused_is_lost_and_nothing_else() {
    let (scene, mut fake) = scene();
    let (kept, refused) = (scene.publish(&mut fake, 1), scene.publish(&mut fake, 2));
    let leases = [scene.acquire(&mut fake, 7, 3), scene.acquire(&mut fake, 8, 3)];
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    let (request, claims) = fake.hear_claims();
    assert_eq!(claims.len(), 4);
    let refuse = |claim: &Claim| claim.receipt == buffer_receipt(2) || claim.receipt == lease_receipt(8);
    let outcome = |claim| if refuse(claim) { not_owner() } else { Ok(Reattached::Restored) };
    fake.say(request, BrokerBody::Reattached(claims.iter().map(outcome).collect()));
    until("the loss", || refused.state() == PublishedState::Lost && leases[1].state() == LeaseState::Lost);
    assert_eq!((kept.state(), leases[0].state()), (PublishedState::Live, LeaseState::Held));
    // A buffer whose owner died meanwhile.
    fake.notice(Event::Orphaned { id: id(3), reason: EndReason::OwnerDied, leases: 1 });
    until("the end", || leases[0].state() == LeaseState::Ended(EndReason::OwnerDied));
    assert_eq!(leases[1].state(), LeaseState::Lost);
    assert!(!scene.client.is_closed());
}

#[test]
fn a_wanted_descriptor_is_exported_again_and_lost_where_that_is_refused_too() {
    let (scene, mut fake) = scene();
    let published: Vec<Published> = (1..=3).map(|random| scene.publish(&mut fake, random)).collect();
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    let (request, claims) = fake.hear_claims();
    assert!(claims.iter().all(|claim| claim.descriptor.is_none()));
    let wanted = |claim: &Claim| claim.receipt != buffer_receipt(1);
    let outcome = |claim| Ok(if wanted(claim) { Reattached::DescriptorWanted } else { Reattached::Restored });
    fake.say(request, BrokerBody::Reattached(claims.iter().map(outcome).collect()));
    let (request, claims) = fake.hear_claims();
    assert_eq!(claims.len(), 2);
    let memory = inode(exported().fd.as_fd());
    for claim in &claims {
        assert_eq!(claim.descriptor.as_ref().map(|fd| inode(fd.as_fd())), Some(memory));
    }
    let outcome = |claim: &Claim| {
        if claim.receipt == buffer_receipt(3) { not_owner() } else { Ok(Reattached::Restored) }
    };
    fake.say(request, BrokerBody::Reattached(claims.iter().map(outcome).collect()));
    until("the loss", || published[2].state() == PublishedState::Lost);
    assert!(published[..2].iter().all(|it| it.state() == PublishedState::Live));
}

#[test]
fn the_same_broker_has_ended_everything_and_is_not_asked_for_it() {
    let (scene, mut fake) = scene();
    let (published, lease) = (scene.publish(&mut fake, 1), scene.acquire(&mut fake, 7, 2));
    fake.hang_up();
    let mut fake = scene.door.greeted(1);
    until("the loss", || published.state() == PublishedState::Lost && lease.state() == LeaseState::Lost);
    let next = scene.acquire(&mut fake, 8, 2);
    assert_eq!(next.state(), LeaseState::Held, "a later lease of the same buffer is not the lost one");
}

#[test]
fn what_has_no_receipt_is_lost_without_asking() {
    let (scene, mut fake) = scene();
    let lease = std::thread::scope(|scope| {
        let acquire = scope.spawn(|| scene.client.acquire(Acquire::id(id(1))).unwrap());
        fake.grant(vec![grant(7, info(1, "w"))]);
        acquire.join().unwrap()
    });
    fake.hang_up();
    let _fake = scene.door.greeted(2);
    until("the loss", || lease.state() == LeaseState::Lost);
}

#[test]
fn a_broker_that_never_comes_is_given_up_and_calls_wait_no_longer_than_they_may() {
    let (scene, mut fake) = scene_with(Duration::from_millis(300));
    std::fs::remove_file(&scene.door.path).unwrap();
    let (published, lease) = (scene.publish(&mut fake, 1), scene.acquire(&mut fake, 7, 2));
    let mut watch = scene.client.watch().unwrap();
    assert!(matches!(fake.expect().1, ClientBody::Watch));
    fake.hang_up();
    until("the loss", || scene.client.shared.connection.is_away());
    assert_eq!(watch.recv_timeout(Duration::from_millis(1)).unwrap(), None);
    assert_eq!((lease.state(), scene.client.is_closed()), (LeaseState::Held, false));
    let error = scene.client.acquire(Acquire::id(id(1)).wait(PATIENCE)).unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { source: None, .. }), "{error:?}");
    assert!(matches!(watch.recv_timeout(PATIENCE), Err(ClientError::ConnectionLost { .. })));
    assert!(scene.client.is_closed());
    assert_eq!((lease.state(), published.state()), (LeaseState::Lost, PublishedState::Lost));
}

#[test]
fn a_broker_that_hangs_half_way_is_given_up_in_time_and_closing_does_not_wait_for_it() {
    for close in [false, true] {
        let patience = if close { Duration::from_secs(3600) } else { Duration::from_millis(200) };
        let (scene, mut fake) = scene_with(patience);
        let lease = scene.acquire(&mut fake, 7, 2);
        fake.hang_up();
        let mut fake = scene.door.greeted(2);
        fake.hear_claims();
        if close {
            scene.client.clone().close();
        }
        until("the end", || scene.client.is_closed() && lease.state() == LeaseState::Lost);
        drop((lease, scene.client));
    }
}

#[test]
fn a_broker_that_goes_while_it_restores_is_followed_by_the_next() {
    let (scene, mut fake) = scene();
    let lease = scene.acquire(&mut fake, 7, 2);
    fake.hang_up();
    let mut second = scene.door.greeted(2);
    second.hear_claims();
    second.hang_up();
    // The same once more, as when the sidecar alone had gone: it was asked for nothing that it answered.
    let mut third = scene.door.greeted(2);
    third.hear_claims();
    third.hang_up();
    let mut fourth = scene.door.greeted(3);
    assert_eq!(fourth.restore(), [lease_receipt(7)]);
    scene.acquire(&mut fourth, 8, 2);
    assert_eq!(lease.state(), LeaseState::Held);
}

#[test]
fn only_what_is_no_fault_of_the_client_is_worth_another_try() {
    for (code, again) in
        [(Code::ShuttingDown, true), (Code::BrokerUnavailable, true), (Code::Malformed, false)]
    {
        let (scene, fake) = scene();
        fake.say(0, BrokerBody::Refused(Refusal::new(code)));
        fake.hang_up();
        if again {
            // The next one may be away as well, or full.
            for code in [Code::BrokerUnavailable, Code::TooManyConnections] {
                let mut door_keeper = scene.door.accept();
                let (request, _) = door_keeper.expect();
                door_keeper.say(request, BrokerBody::Refused(Refusal::new(code)));
                door_keeper.hang_up();
            }
            scene.acquire(&mut scene.door.greeted(2), 7, 1);
        } else {
            until("the end", || scene.client.is_closed());
            let error = scene.client.acquire(Acquire::id(id(1))).unwrap_err();
            assert_eq!(error.code(), Some(code));
        }
    }
}

#[test]
fn a_broker_that_does_not_want_this_process_any_more_ends_it() {
    let (scene, fake) = scene();
    fake.hang_up();
    let mut second = scene.door.accept();
    let (request, _) = second.expect();
    second.say(request, BrokerBody::Refused(Refusal::new(Code::MemberSuspended)));
    until("the end", || scene.client.is_closed());
    assert_eq!(scene.client.acquire(Acquire::id(id(1))).unwrap_err().code(), Some(Code::MemberSuspended));
}

#[test]
fn mappings_of_leases_stay_and_those_of_which_nobody_will_tell_go() {
    let (scene, mut fake) = scene();
    let lease = scene.acquire(&mut fake, 7, 1);
    drop(scene.acquire(&mut fake, 8, 2));
    fake.hear_release();
    assert_eq!(scene.pretender.live.load(Ordering::SeqCst), 2);
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    fake.restore();
    until("the unmapping", || scene.pretender.live.load(Ordering::SeqCst) == 1);
    drop(lease);
    assert_eq!(fake.hear_release(), [7]);
    let again = scene.acquire(&mut fake, 9, 1);
    assert_eq!((again.state(), scene.pretender.made.load(Ordering::SeqCst)), (LeaseState::Held, 2));
}

#[test]
fn many_claims_go_in_as_few_packets_as_there_are_limits() {
    let (scene, mut fake) = scene();
    let many: Vec<Acquire> = (0..150).map(|n| Acquire::id(id(n))).collect();
    let leases = std::thread::scope(|scope| {
        let acquire = scope.spawn(|| scene.client.acquire_many(&many).unwrap());
        let mut next = 0;
        while next < 150 {
            let (request, body) = fake.expect();
            let ClientBody::Acquire { items, .. } = body else { panic!("{body:?}") };
            let count = items.len() as u64;
            fake.say(
                request,
                BrokerBody::Acquired((next..next + count).map(|n| granted(n, u128::from(n))).collect()),
            );
            next += count;
        }
        acquire.join().unwrap()
    });
    fake.hang_up();
    let mut fake = scene.door.greeted(2);
    let counts: Vec<usize> = (0..3).map(|_| fake.restore().len()).collect();
    assert_eq!(counts, [64, 64, 22]);
    assert!(leases.iter().all(|lease| lease.as_ref().unwrap().state() == LeaseState::Held));
}
