//! One story a test: the daemon is killed, and what was alive comes back, or does not.

use gpu_handoff_protocol::message::Reattached;
use gpu_handoff_protocol::receipt::{BufferReceipt, LeaseReceipt, ReceiptBody, Subject};

use super::*;
use crate::limits;
use crate::registry::Shown;

/// The receipt of a buffer, as its sidecar keeps it.
pub(super) fn buffer_receipt(w: &World, member: u32, id: BufferId) -> ReceiptBody {
    let kept = &w.told.kept[&MemberId(member)][&id];
    let legacy_handle = match kept.carrier {
        Carrier::Legacy(handle) => Some(handle),
        Carrier::Descriptor(_) => None,
    };
    let buffer = BufferReceipt {
        info: Arc::clone(&kept.info),
        group: w.registry.members[&MemberId(member)].facts.group.clone(),
        legacy_handle,
        own_pid: kept.own_pid,
        container: String::new(),
    };
    receipt(member, kept.process, Subject::Buffer(buffer))
}

/// The receipt of a lease, as its process was given it.
pub(super) fn lease_receipt(w: &World, member: u32, holder: ProcessKey, grant: &Grant) -> ReceiptBody {
    let group = w.registry.members[&MemberId(member)].facts.group.clone();
    let lease = LeaseReceipt { lease: grant.lease, buffer: Arc::clone(&grant.buffer), group, seat: None };
    receipt(member, holder, Subject::Lease(lease))
}

fn receipt(member: u32, process: ProcessKey, subject: Subject) -> ReceiptBody {
    ReceiptBody { boot: BOOT, process, slot: slot(member), pod_uid: slot(member).into(), subject }
}

pub(super) fn bare(body: &ReceiptBody) -> Shown {
    Shown { body: body.clone(), carrier: None }
}

pub(super) fn with_memory(body: &ReceiptBody) -> Shown {
    Shown { body: body.clone(), carrier: Some(descriptor()) }
}

impl World {
    pub(super) fn offer(&mut self, member: u32, shown: Shown) -> Result<(), Refusal> {
        self.next += 1;
        let token = self.next;
        self.tell(Input::Offered(MemberId(member), token, vec![Ok(shown)]));
        self.told.offered.remove(&token).unwrap().remove(0)
    }

    pub(super) fn offer_done(&mut self, member: u32) {
        self.tell(Input::OfferDone(MemberId(member)));
    }

    pub(super) fn claim(&mut self, session: SessionId, shown: Shown) -> Result<Reattached, Refusal> {
        self.claim_and_hear(session, shown).0
    }

    pub(super) fn claim_and_hear(
        &mut self,
        session: SessionId,
        shown: Shown,
    ) -> (Result<Reattached, Refusal>, Vec<Event>) {
        let (request, sent) = self.ask(session, Ask::Reattach(vec![Ok(shown)]));
        match answer(&sent, session, request) {
            BrokerBody::Reattached(mut items) => (items.remove(0), events(&sent, session)),
            other => panic!("{other:?}"),
        }
    }
}

/// A producer of member 0 with a buffer that a consumer of member 1 leases; then the daemon is killed.
pub(super) struct Killed {
    pub(super) w: World,
    pub(super) producer: ProcessKey,
    pub(super) consumer: ProcessKey,
    pub(super) buffer: ReceiptBody,
    pub(super) lease: ReceiptBody,
    pub(super) id: BufferId,
    pub(super) lease_id: LeaseId,
}

pub(super) fn killed() -> Killed {
    killed_after(|_, _, _| ())
}

pub(super) fn killed_after(then: impl FnOnce(&mut World, SessionId, BufferId)) -> Killed {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let id = w.publish(producer, "weights", descriptor()).unwrap().id;
    let grant = w.acquire(consumer, named("weights", 0)).unwrap();
    let of = |w: &World, s: SessionId| w.registry.sessions[&s].facts.process;
    let (producer_key, consumer_key) = (of(&w, producer), of(&w, consumer));
    let (buffer, lease) = (buffer_receipt(&w, 0, id), lease_receipt(&w, 1, consumer_key, &grant));
    then(&mut w, producer, id);
    w.restart();
    Killed { w, producer: producer_key, consumer: consumer_key, buffer, lease, id, lease_id: grant.lease }
}

#[test]
fn everything_is_as_before_once_everybody_is_back() {
    let Killed { mut w, producer, consumer, buffer, lease, id, lease_id } = killed();
    assert_eq!(w.offer(0, with_memory(&buffer)), Ok(()));
    w.offer_done(0);
    w.offer_done(1);
    assert_eq!(w.told.awaited.values().copied().collect::<Vec<_>>(), [producer], "its end would be noticed");
    let (p, c) = (w.open_as(0, 1, producer), w.open_as(1, 1, consumer));
    assert_eq!(w.claim(c, bare(&lease)), Ok(Reattached::Restored));
    assert_eq!(w.claim(p, bare(&buffer)), Ok(Reattached::Restored));
    assert!(w.told.awaited.is_empty());
    assert!(events(&w.pass(Duration::from_secs(60)), c).is_empty(), "nothing is waited for any more");
    assert_eq!(w.registry.counts(), (1, 1, 2));
    assert_eq!(w.release(c, lease_id), Ok(()));
    let grant = w.acquire(c, named("weights", 0)).unwrap();
    assert_eq!(grant.buffer.id, id);
    assert_ne!(grant.lease, lease_id, "numbers are not used again");
    w.release(c, grant.lease).unwrap();
    let (request, sent) = w.ask(p, Ask::Retire { id, until: None });
    assert!(matches!(answer(&sent, p, request), BrokerBody::Retired(Ok(0))));
    assert_eq!(w.registry.counts(), (0, 0, 2));
    assert_eq!(w.disposed, 1);
}

#[test]
fn without_a_sidecar_the_process_brings_the_memory_itself() {
    let Killed { mut w, producer, buffer, .. } = killed();
    w.told.kept.clear();
    let p = w.open_as(0, 1, producer);
    assert_eq!(w.claim(p, bare(&buffer)), Ok(Reattached::DescriptorWanted));
    assert_eq!(w.claim(p, with_memory(&buffer)), Ok(Reattached::Restored));
    assert_eq!(w.claim(p, with_memory(&buffer)), Ok(Reattached::Restored), "asked twice, done once");
    assert_eq!((w.registry.counts().0, w.disposed), (1, 1), "the second descriptor is of no use");
    assert_eq!(w.told.kept[&MemberId(0)].len(), 1, "the sidecar keeps it from now on");
}

#[test]
fn an_acquire_waits_for_what_is_being_restored_and_no_longer() {
    let Killed { mut w, producer, buffer, id, .. } = killed();
    let (c, stranger) = (w.open(1, 3), w.open(2, 3));
    let ask = |wanted| Ask::Acquire { items: vec![wanted], until: None, device: None };
    let (by_name, sent) = w.ask(c, ask(named("weights", 0)));
    assert!(sent.is_empty(), "not NOT_FOUND");
    let (by_number, sent) = w.ask(c, ask(by_id(id)));
    assert!(sent.is_empty());
    let (request, sent) = w.ask(c, ask(named("other", 0)));
    assert_eq!(code(acquired(answer(&sent, c, request))), Code::NotFound, "nobody waits for what never was");
    for wanted in [named("weights", 0), by_id(id)] {
        let (request, sent) = w.ask(stranger, ask(wanted));
        assert_eq!(code(acquired(answer(&sent, stranger, request))), Code::NotFound, "nothing is revealed");
    }
    let p = w.open_as(0, 1, producer);
    let (_, sent) = w.ask(p, Ask::Reattach(vec![Ok(with_memory(&buffer))]));
    for request in [by_name, by_number] {
        assert_eq!(acquired(answer(&sent, c, request)).unwrap().buffer.id, id);
    }
}

#[test]
fn what_nobody_brings_back_ends_as_by_death() {
    let Killed { mut w, id, .. } = killed();
    let c = w.open(1, 3);
    let (request, sent) = w.ask(c, Ask::Acquire { items: vec![by_id(id)], until: None, device: None });
    assert!(sent.is_empty());
    w.offer_done(0);
    let sent = w.pass(limits::REATTACH_TIME);
    assert_eq!(code(acquired(answer(&sent, c, request))), Code::Retired);
    assert!(w.registry.expected.buffers.contains_key(&id), "its lease may still be claimed");
    w.pass(limits::SIDECAR_PATIENCE);
    assert_eq!(w.registry.counts(), (0, 0, 1));
    assert!(w.alive.buffers.is_empty() && w.alive.leases.is_empty());
    assert_eq!(w.registry.next_deadline(), None);
}

#[test]
fn a_process_that_does_not_reattach_in_time_or_dies_takes_its_buffers_along() {
    for dies in [false, true] {
        let Killed { mut w, consumer, buffer, lease, id, .. } = killed();
        w.offer(0, with_memory(&buffer)).unwrap();
        w.offer_done(0);
        let c = w.open_as(1, 1, consumer);
        assert_eq!(w.claim(c, bare(&lease)), Ok(Reattached::Restored));
        let sent = if dies {
            let holder = *w.told.awaited.keys().next().unwrap();
            w.tell(Input::SessionEnded(holder, EndReason::OwnerDied))
        } else {
            w.pass(limits::REATTACH_TIME)
        };
        let orphaned = Event::Orphaned { id, reason: EndReason::OwnerDied, leases: 1 };
        assert_eq!(events(&sent, c), [orphaned]);
        assert_eq!(w.disposed, 1, "its memory is given up");
        assert!(w.told.awaited.is_empty());
    }
}

#[test]
fn a_lease_of_a_buffer_whose_owner_is_gone_is_told_so_and_is_kept_until_released() {
    let Killed { mut w, consumer, lease, id, lease_id, .. } = killed();
    let c = w.open_as(1, 1, consumer);
    assert_eq!(w.claim(c, bare(&lease)), Ok(Reattached::Restored));
    let sent = w.pass(limits::SIDECAR_PATIENCE + limits::REATTACH_TIME);
    let orphaned = Event::Orphaned { id, reason: EndReason::OwnerDied, leases: 1 };
    assert_eq!(events(&sent, c), [orphaned]);
    assert_eq!(w.registry.counts(), (1, 1, 1));
    assert_eq!(w.release(c, lease_id), Ok(()));
    assert_eq!(w.registry.counts(), (0, 0, 1));
    // A lease that is claimed when the end is known already is told at once.
    let Killed { mut w, consumer, lease, id, .. } = killed();
    w.offer_done(0);
    w.pass(limits::REATTACH_TIME);
    let c = w.open_as(1, 1, consumer);
    let (outcome, told) = w.claim_and_hear(c, bare(&lease));
    assert_eq!(outcome, Ok(Reattached::Restored));
    assert_eq!(told, [Event::Orphaned { id, reason: EndReason::OwnerDied, leases: 1 }]);
}

#[test]
fn a_retire_keeps_its_deadline() {
    let retire = |w: &mut World, p: SessionId, id: BufferId| {
        let until = Some(w.now + Duration::from_secs(60));
        w.ask(p, Ask::Retire { id, until });
        w.now += Duration::from_secs(10);
    };
    let Killed { mut w, producer, consumer, buffer, lease, id, .. } = killed_after(retire);
    assert_eq!(code(w.offer(0, with_memory(&buffer))), Code::Retired, "its sidecar need not keep it");
    let (p, c) = (w.open_as(0, 1, producer), w.open_as(1, 1, consumer));
    let (outcome, told) = w.claim_and_hear(c, bare(&lease));
    assert_eq!(outcome, Ok(Reattached::Restored));
    assert_eq!(told, [Event::Retiring { id, deadline: Duration::from_secs(50) }]);
    assert_eq!(w.claim(p, bare(&buffer)), Ok(Reattached::Restored));
    let sent = w.pass(Duration::from_secs(50));
    let orphaned = Event::Orphaned { id, reason: EndReason::Retired, leases: 1 };
    assert_eq!((events(&sent, c), events(&sent, p)), (vec![orphaned.clone()], vec![orphaned]));
}

#[test]
fn receipts_of_others_and_of_what_has_ended_change_nothing() {
    let Killed { mut w, producer, consumer, buffer, lease, .. } = killed();
    let (thief, other_pod) = (w.open(0, 1), w.open(1, 1));
    assert_eq!(code(w.claim(thief, with_memory(&buffer))), Code::NotOwner, "another process of the pod");
    assert_eq!(code(w.claim(other_pod, with_memory(&buffer))), Code::NotOwner, "another pod");
    assert_eq!(code(w.claim(other_pod, bare(&lease))), Code::NotOwner);
    assert_eq!(code(w.offer(1, with_memory(&buffer))), Code::NotOwner, "another pod's sidecar");
    assert_eq!(code(w.offer(1, bare(&lease))), Code::ReceiptInvalid, "sidecars keep buffers");
    assert_eq!((w.registry.counts().0, w.disposed), (0, 3), "what came along is closed");
    let (p, c) = (w.open_as(0, 1, producer), w.open_as(1, 1, consumer));
    w.claim(p, with_memory(&buffer)).unwrap();
    w.claim(c, bare(&lease)).unwrap();
    // Ended in this life, and in the next one still.
    let Subject::Lease(facts) = &lease.subject else { panic!() };
    w.release(c, facts.lease).unwrap();
    assert_eq!(code(w.claim(c, bare(&lease))), Code::NotLeased);
    w.ask(p, Ask::Retire { id: facts.buffer.id, until: None });
    assert_eq!(code(w.acquire(p, by_id(facts.buffer.id))), Code::Retired);
    assert_eq!(code(w.claim(p, with_memory(&buffer))), Code::Retired);
    assert_eq!(code(w.offer(0, with_memory(&buffer))), Code::Retired);
    w.restart();
    let (p, c) = (w.open_as(0, 1, producer), w.open_as(1, 1, consumer));
    assert_eq!(code(w.acquire(p, by_id(facts.buffer.id))), Code::Retired, "the journal remembers");
    assert_eq!(code(w.claim(p, with_memory(&buffer))), Code::Retired);
    assert_eq!(code(w.offer(0, with_memory(&buffer))), Code::Retired);
    assert_eq!(code(w.claim(c, bare(&lease))), Code::NotLeased);
    assert_eq!(w.registry.counts(), (0, 0, 2));
}

#[test]
fn a_name_stays_its_pods_while_its_buffers_are_expected() {
    let Killed { mut w, producer, buffer, .. } = killed();
    let (other, own) = (w.open(1, 3), w.open(0, 3));
    assert_eq!(code(w.publish(other, "weights", descriptor())), Code::NameTaken);
    let newer = w.publish(own, "weights", descriptor()).unwrap();
    let Subject::Buffer(older) = &buffer.subject else { panic!() };
    assert!(newer.generation > older.info.generation, "versions go on");
    assert_eq!(
        w.acquire(other, named("weights", 0)).unwrap().buffer.id,
        newer.id,
        "nothing newer is expected"
    );
    let p = w.open_as(0, 1, producer);
    w.claim(p, with_memory(&buffer)).unwrap();
    w.pass(Duration::from_secs(60));
    assert_eq!(w.registry.counts().0, 2);
}

#[test]
fn a_new_sidecar_is_given_all_that_its_pod_has() {
    let mut w = World::new(Policy::default());
    let producer = w.open(0, 1);
    let id = w.publish(producer, "weights", descriptor()).unwrap().id;
    w.told.kept.clear();
    w.offer_done(0);
    assert_eq!(w.told.kept[&MemberId(0)].keys().collect::<Vec<_>>(), [&id]);
    w.ask(producer, Ask::Retire { id, until: None });
    assert!(w.told.kept[&MemberId(0)].is_empty(), "and told what it need not keep any longer");
}

#[test]
fn a_restored_buffer_needs_a_descriptor_that_there_is_room_for() {
    let Killed { mut w, producer, buffer, .. } = killed();
    w.registry.capacity.descriptors = 0;
    let p = w.open_as(0, 1, producer);
    assert_eq!(code(w.claim(p, with_memory(&buffer))), Code::QuotaDescriptors);
    assert_eq!(w.disposed, 1);
}

#[test]
fn a_pod_that_left_while_it_was_expected_takes_everything_along() {
    let Killed { mut w, buffer, id, .. } = killed();
    w.offer(0, with_memory(&buffer)).unwrap();
    let c = w.open(1, 3);
    let lease = w.acquire(c, by_id(id)).unwrap().lease;
    let sent = w.tell(Input::MemberLeft(MemberId(0)));
    let orphaned = Event::Orphaned { id, reason: EndReason::MemberLeft, leases: 2 };
    assert_eq!(events(&sent, c), [orphaned], "the lease that nobody claimed yet counts");
    w.release(c, lease).unwrap();
    w.pass(Duration::from_secs(60));
    assert_eq!(w.registry.counts(), (0, 0, 1));
}

#[test]
fn a_buffer_that_a_lease_told_of_before_its_pod_was_there_is_its_pods() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let id = w.publish(producer, "weights", descriptor()).unwrap().id;
    let grant = w.acquire(consumer, named("weights", 0)).unwrap();
    let holder = w.registry.sessions[&consumer].facts.process;
    let (buffer, lease) = (buffer_receipt(&w, 0, id), lease_receipt(&w, 1, holder, &grant));
    w.begin_anew(Policy::default(), &[]);
    w.join_some(&[1]);
    let c = w.open_as(1, 1, holder);
    assert_eq!(w.claim(c, bare(&lease)), Ok(Reattached::Restored));
    w.join_some(&[0]);
    assert_eq!(w.offer(0, with_memory(&buffer)), Ok(()));
    assert_eq!(w.registry.members[&MemberId(0)].usage.buffers, 1, "and counted as such");
    let holder = *w.told.awaited.keys().next().unwrap();
    w.tell(Input::SessionEnded(holder, EndReason::OwnerDied));
    w.release(c, grant.lease).unwrap();
    assert_eq!(w.registry.members[&MemberId(0)].usage.buffers, 0);
}
