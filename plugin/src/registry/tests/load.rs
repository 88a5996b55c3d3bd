//! How much one input may look at, end or tell: what others ask meanwhile waits for it.

use gpu_handoff_protocol::message::Reattached;

use super::restarts::{bare, buffer_receipt, with_memory};
use super::*;
use crate::limits;
use crate::registry::Shown;

const LEGACY: Carrier = Carrier::Legacy([0; 64]);

/// Has a process wait, for long.
fn wait(w: &mut World, session: SessionId, items: Vec<Wanted>) -> (RequestId, Sent) {
    let until = Some(w.now + Duration::from_secs(600));
    w.ask(session, Ask::Acquire { items, until, device: None })
}

/// Publishes so many buffers of one name in packets of 64.
fn publish_many(w: &mut World, session: SessionId, name: &str, count: usize) -> Vec<BufferId> {
    let all: Vec<Vetted> = (0..count).map(|_| w.vetted(name, LEGACY)).collect();
    let ids = all.iter().map(|vetted| vetted.id).collect();
    let mut all = all.into_iter().map(Ok).peekable();
    while all.peek().is_some() {
        let packet = all.by_ref().take(64).collect();
        w.ask(session, Ask::Publish(packet));
    }
    ids
}

fn is_refused_for_too_many(sent: &Sent, session: SessionId, request: RequestId) -> bool {
    matches!(answer(sent, session, request), BrokerBody::Refused(r) if r.code() == Code::TooManyRequests)
}

#[test]
fn a_publication_looks_only_at_those_that_it_may_concern_and_once_a_packet() {
    let mut w = World::allowing_legacy();
    let (producer, patient, other) = (w.open(0, 1), w.open(1, 1), w.open(1, 2));
    for _ in 0..100 {
        wait(&mut w, patient, vec![named("w", u64::MAX)]);
        let (request, sent) = w.ask(
            patient,
            Ask::AcquireSet {
                wanted: wanted_set("s", u64::MAX),
                until: Some(w.now + Duration::from_secs(600)),
            },
        );
        assert!(sent.is_empty(), "{request}");
    }
    wait(&mut w, other, vec![named("w", 0), named("never", 0)]);
    publish_many(&mut w, producer, "w", 64);
    assert_eq!(w.registry.waits.waiters.looked_at, 1);
    publish_many(&mut w, producer, "w", 64);
    assert_eq!(w.registry.waits.waiters.looked_at, 2);
    let set = w.vetted("part", LEGACY);
    w.ask(producer, Ask::PublishSet(part("s", 1, 0), vec![Ok(set)]));
    assert_eq!(w.registry.set_waits.waiters.looked_at, 0);
}

#[test]
fn who_waits_for_a_later_version_gets_it_and_no_earlier_one() {
    let mut w = World::allowing_legacy();
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let (third, sent) = wait(&mut w, consumer, vec![named("w", 2)]);
    assert!(sent.is_empty());
    for generation in 1..=3 {
        let vetted = w.vetted("w", LEGACY);
        let (_, sent) = w.ask(producer, Ask::Publish(vec![Ok(vetted)]));
        let answers: Vec<_> = sent.iter().filter(|(s, m)| (*s, m.request) == (consumer, third)).collect();
        assert_eq!(answers.len(), usize::from(generation == 3));
    }
}

#[test]
fn the_processes_of_a_member_wait_for_so_much_together() {
    let mut w = World::allowing_legacy();
    let sessions: Vec<SessionId> = (1..=5).map(|own_pid| w.open(1, own_pid)).collect();
    let packet = || (0..64).map(|n| named(&format!("absent-{n}"), 0)).collect::<Vec<_>>();
    let packets = limits::WAITED_OF_MEMBER / 64;
    let mut first = None;
    for n in 0..packets {
        let session = sessions[usize::try_from(n / 16).unwrap()];
        let (request, sent) = wait(&mut w, session, packet());
        assert!(sent.is_empty());
        first = first.or(Some(request));
    }
    let (request, sent) = wait(&mut w, sessions[4], packet());
    assert!(is_refused_for_too_many(&sent, sessions[4], request));
    let other = w.open(0, 9);
    assert!(wait(&mut w, other, packet()).1.is_empty(), "another member may");
    // What is cancelled or has ended makes room.
    w.ask(sessions[0], Ask::Cancel(first.unwrap()));
    assert!(wait(&mut w, sessions[4], packet()).1.is_empty());
    let (request, sent) = wait(&mut w, sessions[4], packet());
    assert!(is_refused_for_too_many(&sent, sessions[4], request));
    w.tell(Input::SessionEnded(sessions[1], EndReason::OwnerClosed));
    for _ in 0..15 {
        assert!(wait(&mut w, sessions[4], packet()).1.is_empty());
    }
    assert_eq!(w.registry.members[&MemberId(1)].waited, limits::WAITED_OF_MEMBER - 64);
}

#[test]
fn those_that_wait_for_a_set_are_looked_at_when_all_of_it_is_back() {
    let mut w = World::allowing_legacy();
    let producer = w.open(0, 1);
    let items: Vec<_> = (0..32).map(|_| w.vetted("part", LEGACY)).collect();
    let ids: Vec<_> = items.iter().map(|v| v.id).collect();
    w.ask(producer, Ask::PublishSet(part("model", 32, 0), items.into_iter().map(Ok).collect()));
    let shown: Vec<Shown> = ids.iter().map(|id| bare(&buffer_receipt(&w, 0, *id))).collect();
    w.restart();
    let consumer = w.open(1, 3);
    for _ in 0..10 {
        w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("model", 0), until: None });
    }
    for one in shown {
        assert_eq!(w.offer(0, one), Ok(()));
    }
    assert_eq!(w.registry.set_waits.waiters.looked_at, 10);
    assert_eq!(w.registry.counts().1, 10 * 32, "and each has all of it");
}

#[test]
fn who_waits_for_a_set_is_told_when_the_rest_of_it_will_not_come() {
    let mut w = World::allowing_legacy();
    let producer = w.open(0, 1);
    let key = w.registry.sessions[&producer].facts.process;
    let mut items: Vec<_> = (0..2).map(|_| w.vetted("part", LEGACY)).collect();
    items[0].publication.facts.allocation_size = 1_000;
    let ids: Vec<_> = items.iter().map(|v| v.id).collect();
    w.ask(producer, Ask::PublishSet(part("model", 2, 0), items.into_iter().map(Ok).collect()));
    let shown: Vec<Shown> = ids.iter().map(|id| bare(&buffer_receipt(&w, 0, *id))).collect();
    // There is no room for the first one in today's quota.
    let quota = Quota { bytes: 500, ..Quota::default() };
    w.restart_with(Policy { legacy: LegacyRule::WithinNamespace, quota, ..Policy::default() });
    let consumer = w.open(1, 3);
    let (waiting, sent) = w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("model", 0), until: None });
    assert!(sent.is_empty());
    let p = w.open_as(0, 1, key);
    let mut shown = shown.into_iter().map(|one| w.ask(p, Ask::Reattach(vec![Ok(one)])).1);
    assert!(events(&shown.next().unwrap(), consumer).is_empty());
    let sent = shown.next().unwrap();
    assert!(matches!(answer(&sent, consumer, waiting), BrokerBody::Refused(r) if r.code() == Code::NotFound));
}

#[test]
fn an_owner_is_told_of_its_seats_once_however_often_it_shows_its_receipt() {
    const SEATS: u32 = 3;
    let mut w = World::new(Policy::default());
    let producer = w.open(0, 1);
    let key = w.registry.sessions[&producer].facts.process;
    let mut words = w.vetted("words", descriptor());
    words.publication.facts.kind = Kind::Timeline;
    let timeline = words.id;
    w.ask(producer, Ask::Publish(vec![Ok(words)]));
    let mut ordered = w.vetted("ordered", descriptor());
    ordered.publication.facts.order =
        Some(Order { timeline, ready_word: 0, value: 1, first_seat_word: 1, seats: SEATS });
    let id = ordered.id;
    w.ask(producer, Ask::Publish(vec![Ok(ordered)]));
    let receipt = buffer_receipt(&w, 0, id);
    w.restart();
    let p = w.open_as(0, 1, key);
    let claims = |w: &mut World| {
        let shown = (0..64).map(|_| Ok(with_memory(&receipt))).collect();
        let (request, sent) = w.ask(p, Ask::Reattach(shown));
        let BrokerBody::Reattached(outcomes) = answer(&sent, p, request) else { panic!("{sent:?}") };
        assert!(outcomes.iter().all(|outcome| *outcome == Ok(Reattached::Restored)));
        events(&sent, p).len()
    };
    assert_eq!(claims(&mut w), SEATS as usize);
    assert_eq!(claims(&mut w), 0);
}

#[test]
fn watches_begin_at_their_members_pace_and_are_told_of_nothing_before() {
    const BUFFERS: usize = 1_000;
    let mut w = World::allowing_legacy();
    let (producer, watcher) = (w.open(0, 1), w.open(1, 1));
    publish_many(&mut w, producer, "w", BUFFERS);
    let pause = limits::LISTING_PAUSE * u32::try_from(BUFFERS).unwrap();
    let at_once = limits::LISTINGS_AHEAD.as_nanos() / pause.as_nanos() + 1;
    let mut last = 0;
    for n in 0..=at_once {
        w.ask(watcher, Ask::Cancel(last));
        let (request, sent) = w.ask(watcher, Ask::Watch);
        assert_eq!(sent.len(), if n < at_once { BUFFERS + 1 } else { 0 }, "watch {n}");
        last = request;
    }
    // It counts as a watch, is told of nothing, and can be cancelled.
    for _ in 1..Quota::default().watches {
        assert!(w.ask(watcher, Ask::Watch).1.is_empty());
    }
    let (request, sent) = w.ask(watcher, Ask::Watch);
    assert!(is_refused_for_too_many(&sent, watcher, request));
    let vetted = w.vetted("another", LEGACY);
    let (_, sent) = w.ask(producer, Ask::Publish(vec![Ok(vetted)]));
    assert!(events(&sent, watcher).is_empty());
    let (_, sent) = w.ask(watcher, Ask::Cancel(last));
    assert!(matches!(answer(&sent, watcher, last), BrokerBody::Cancelled));
    // The others begin one after the other, with what there is by then.
    assert_eq!(w.registry.next_deadline(), Some(w.now + pause));
    assert_eq!(events(&w.pass(pause), watcher).len(), BUFFERS + 2);
    assert!(w.pass(Duration::ZERO).is_empty(), "the next waits for its own time");
    w.tell(Input::SessionEnded(watcher, EndReason::OwnerClosed));
    assert_eq!(w.registry.next_deadline(), None);
}

/// How many buffers end or are kept with each piece until all is done.
fn pieces(w: &mut World, first: Input, count: impl Fn(&World) -> usize) -> Vec<usize> {
    let (mut pieces, mut before) = (Vec::new(), count(w));
    let mut next = first;
    loop {
        w.tell(next);
        let now = count(w);
        pieces.push(now.abs_diff(before));
        before = now;
        if !w.registry.has_more() {
            return pieces;
        }
        next = Input::GoOn;
    }
}

#[test]
fn what_a_member_had_ends_in_pieces_when_it_leaves_and_when_it_does_not_come_back() {
    const EACH: usize = limits::ENDINGS_AT_A_TIME * 3 / 4;
    let alive = |w: &World| w.alive.buffers.len();
    let begin = || {
        let mut w = World::allowing_legacy();
        for own_pid in 1..=2 {
            let session = w.open(0, own_pid);
            publish_many(&mut w, session, &format!("of-{own_pid}"), EACH);
        }
        w
    };
    let both = [limits::ENDINGS_AT_A_TIME, 2 * EACH - limits::ENDINGS_AT_A_TIME];
    let mut w = begin();
    assert_eq!(pieces(&mut w, Input::MemberLeft(MemberId(0)), alive), both);

    let mut w = begin();
    w.restart();
    let consumer = w.open(1, 1);
    let ask = Ask::Acquire { items: vec![named("of-1", 0)], until: None, device: None };
    let (waiting, _) = w.ask(consumer, ask);
    w.now += limits::SIDECAR_PATIENCE + limits::REATTACH_TIME;
    let mut answers = Vec::new();
    let mut input = Input::Tick;
    let mut taken = Vec::new();
    while w.registry.next_deadline().is_some() || w.registry.has_more() {
        let before = alive(&w);
        answers.extend(w.tell(input));
        taken.push(before - alive(&w));
        input = Input::GoOn;
    }
    assert_eq!(taken, both);
    assert_eq!(code(acquired(answer(&answers, consumer, waiting))), Code::NotFound);
    // What comes back before its turn has come stays, and nobody else gets its name meanwhile.
    let mut w = begin();
    let shown: Vec<(BufferId, Shown)> =
        w.alive.buffers.keys().map(|id| (*id, bare(&buffer_receipt(&w, 0, *id)))).collect();
    w.restart();
    w.pass(limits::SIDECAR_PATIENCE + limits::REATTACH_TIME);
    let (id, shown) = shown.into_iter().find(|(id, _)| w.alive.buffers.contains_key(id)).unwrap();
    let other = w.open(1, 1);
    let taken = ["of-1", "of-2"].map(|name| w.publish(other, name, LEGACY).map_err(|r| r.code()));
    assert!(taken.contains(&Err(Code::NameTaken)), "{taken:?}");
    assert_eq!(w.offer(0, shown), Ok(()));
    while w.registry.has_more() {
        w.tell(Input::GoOn);
    }
    assert!(w.alive.buffers.contains_key(&id));
}

#[test]
fn a_set_that_never_came_whole_is_given_up_in_pieces() {
    const MUCH: usize = limits::ENDINGS_AT_A_TIME + 64;
    let mut w = World::allowing_legacy();
    let session = w.open(0, 1);
    let total = u32::try_from(MUCH).unwrap() + 1;
    for first in (0..total - 1).step_by(64) {
        let items = (0..64).map(|_| Ok(w.vetted("part", LEGACY))).collect();
        let (outcomes, _) = w.publish_part(session, part("model", total, first), items);
        assert!(outcomes.iter().all(Result::is_ok));
    }
    let disposed = |w: &World| w.disposed;
    let told = pieces(&mut w, Input::SessionEnded(session, EndReason::OwnerDied), disposed);
    assert_eq!(told, [limits::ENDINGS_AT_A_TIME, 64]);
    assert_eq!(w.registry.members[&MemberId(0)].usage, gpu_handoff_policy::Usage::default());
}

#[test]
fn a_sidecar_is_told_in_pieces_what_to_keep() {
    const MUCH: usize = limits::ENDINGS_AT_A_TIME * 3 / 2;
    let mut w = World::allowing_legacy();
    let session = w.open(0, 1);
    publish_many(&mut w, session, "w", MUCH);
    w.told.kept.clear();
    let kept = |w: &World| w.told.kept.get(&MemberId(0)).map_or(0, HashMap::len);
    let told = pieces(&mut w, Input::OfferDone(MemberId(0)), kept);
    assert_eq!(told, [limits::ENDINGS_AT_A_TIME, MUCH - limits::ENDINGS_AT_A_TIME]);
}

#[test]
fn no_member_takes_more_than_half_of_the_descriptors_that_others_leave() {
    const ALL: u64 = 2_000;
    let mut w = World::new(Policy::default());
    w.registry.capacity = Capacity { descriptors: ALL };
    let Carrier::Descriptor(file) = descriptor() else { panic!("a file") };
    let fill = |w: &mut World, session, name: &str| {
        let mut count = 0;
        loop {
            match w.publish(session, name, Carrier::Descriptor(Arc::clone(&file))) {
                Ok(_) => count += 1,
                Err(refusal) => break (count, refusal.code()),
            }
        }
    };
    let sessions = [w.open(0, 1), w.open(1, 1), w.open(2, 1)];
    assert_eq!(fill(&mut w, sessions[0], "a"), (ALL / 2, Code::QuotaDescriptors));
    assert_eq!(fill(&mut w, sessions[1], "b"), (ALL / 4, Code::QuotaDescriptors));
    let sure = limits::DESCRIPTORS_FOR_SURE;
    assert_eq!(fill(&mut w, sessions[2], "c"), (sure, Code::QuotaDescriptors), "more than half of the rest");
    // Its share grows when others leave.
    w.tell(Input::MemberLeft(MemberId(0)));
    assert_eq!(fill(&mut w, sessions[1], "b").0, (ALL - sure) / 2 - ALL / 4);
    // After a restart all that was comes back.
    let held = w.registry.members[&MemberId(1)].usage.descriptors;
    let shown: Vec<Shown> = w.told.kept[&MemberId(1)]
        .keys()
        .map(|id| Shown {
            body: buffer_receipt(&w, 1, *id),
            carrier: Some(Carrier::Descriptor(Arc::clone(&file))),
        })
        .collect();
    assert_eq!(shown.len() as u64, held);
    w.restart();
    let session = w.open(1, 7);
    assert_eq!(fill(&mut w, session, "b").0, 0, "what is expected back counts");
    for one in shown {
        assert_eq!(w.offer(1, one), Ok(()));
    }
    assert_eq!(w.registry.members[&MemberId(1)].usage.descriptors, held);
}

#[test]
fn who_does_not_wait_is_answered_before_its_client_gives_up() {
    let mut w = World::allowing_legacy();
    let producer = w.open(0, 1);
    w.publish(producer, "w", LEGACY).unwrap();
    let items = vec![Ok(w.vetted("part", LEGACY))];
    w.ask(producer, Ask::PublishSet(part("model", 1, 0), items));
    w.restart();
    let consumer = w.open(1, 1);
    let one = Ask::Acquire { items: vec![named("w", 0)], until: None, device: None };
    let (one, sent) = w.ask(consumer, one);
    assert!(sent.is_empty());
    let (set, _) = w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("model", 0), until: None });
    // The sidecar goes on offering something else.
    w.tell(Input::Offering(MemberId(0)));
    assert!(w.pass(limits::RESTORING_PATIENCE - Duration::from_millis(1)).is_empty());
    let sent = w.pass(Duration::from_millis(1));
    assert_eq!(code(acquired(answer(&sent, consumer, one))), Code::WaitTimeout);
    assert_eq!(code(acquired_set(answer(&sent, consumer, set))), Code::WaitTimeout);
}
