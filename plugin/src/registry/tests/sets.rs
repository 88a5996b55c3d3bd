//! Sets: all or nothing, for whoever publishes and whoever acquires.

use super::*;
use crate::limits;

/// Publishes a set of so many buffers, in parts of `each`.
fn publish_set(w: &mut World, session: SessionId, name: &str, total: u32, each: usize) -> Vec<PublishedAs> {
    let mut all = Vec::new();
    while all.len() < total as usize {
        let first = u32::try_from(all.len()).unwrap();
        let count = each.min(total as usize - all.len());
        let items = vetted(w, count);
        let (outcomes, _) = w.publish_part(session, part(name, total, first), items);
        all.extend(outcomes.into_iter().map(Result::unwrap));
    }
    all
}

fn vetted(w: &mut World, count: usize) -> Vec<Result<Vetted, Refusal>> {
    (0..count).map(|n| Ok(w.vetted(&format!("layer-{n}"), descriptor()))).collect()
}

fn codes(outcomes: &[Result<PublishedAs, Refusal>]) -> Vec<Option<Code>> {
    outcomes.iter().map(|o| o.as_ref().err().map(Refusal::code)).collect()
}

#[test]
fn a_set_is_seen_when_its_last_part_has_come_and_then_all_of_it() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    w.ask(consumer, Ask::Watch);
    let items = vetted(&mut w, 2);
    let (first, sent) = w.publish_part(producer, part("model", 3, 0), items);
    assert!(events(&sent, consumer).is_empty(), "nobody sees a part");
    assert_eq!(code(w.acquire_set(consumer, wanted_set("model", 0))), Code::NotFound);
    let id = first[0].as_ref().unwrap().id;
    assert_eq!(code(w.acquire(consumer, by_id(id))), Code::NotFound);

    let items = vetted(&mut w, 1);
    let (last, sent) = w.publish_part(producer, part("model", 3, 2), items);
    let told: Vec<_> = events(&sent, consumer)
        .into_iter()
        .map(|e| match e {
            Event::Appeared(info) => (info.generation, info.set.clone().unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    let generation = last[0].as_ref().unwrap().generation;
    assert!(first.iter().all(|p| p.as_ref().unwrap().generation == generation), "one generation");
    assert_eq!(told.iter().map(|(_, set)| set.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(told.iter().all(|(g, set)| *g == generation && set.total == 3));

    let (set, grants) = w.acquire_set(consumer, wanted_set("model", 0)).unwrap();
    assert_eq!((set.generation, set.total, grants.len()), (generation, 3, 3));
    assert_eq!(grants[0].buffer.id, id);
    assert!(w.acquire(consumer, by_id(id)).is_ok(), "by its id too");
    assert_eq!(code(w.acquire(consumer, named("layer-0", 0))), Code::NotFound, "never by its name alone");
    assert_eq!(code(w.acquire_set(consumer, wanted_set("model", generation))), Code::NotFound);
}

#[test]
fn a_large_set_comes_whole_and_a_watch_that_begins_later_sees_it_in_order() {
    let mut w = World::with_quota(Quota { buffers: 400, ..Quota::default() });
    w.registry.capacity.descriptors = 1_000;
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    publish_set(&mut w, producer, "model", 300, 64);
    let (_, grants) = w.acquire_set(consumer, wanted_set("model", 0)).unwrap();
    assert_eq!(grants.len(), 300);
    let (_, sent) = w.ask(consumer, Ask::Watch);
    let indices: Vec<u32> = events(&sent, consumer)
        .iter()
        .filter_map(|e| match e {
            Event::Appeared(info) => Some(info.set.as_ref().unwrap().index),
            _ => None,
        })
        .collect();
    assert_eq!(indices, (0..300).collect::<Vec<_>>());
}

#[test]
fn one_refused_item_leaves_nothing_of_the_set() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let items = vetted(&mut w, 2);
    w.publish_part(producer, part("model", 5, 0), items);
    let mut items = vetted(&mut w, 2);
    items.insert(1, Err(Refusal::new(Code::NotGpuMemory)));
    let (outcomes, _) = w.publish_part(producer, part("model", 5, 2), items);
    assert_eq!(codes(&outcomes), [Some(Code::SetBroken), Some(Code::NotGpuMemory), Some(Code::SetBroken)]);
    assert_eq!(w.disposed, 4, "all that had come is closed");
    assert_eq!(w.told.receipts, 2, "none of the part that is refused");
    assert_eq!(code(w.acquire_set(consumer, wanted_set("model", 0))), Code::NotFound);
    let usage = w.registry.members[&MemberId(0)].usage;
    assert_eq!((usage.buffers, usage.bytes, w.registry.descriptors), (0, 0, 0));
    // What comes of it later is refused, and a first part begins it anew.
    let items = vetted(&mut w, 1);
    let (outcomes, _) = w.publish_part(producer, part("model", 5, 5), items);
    assert_eq!(codes(&outcomes), [Some(Code::SetBroken)]);
    publish_set(&mut w, producer, "model", 5, 2);
    assert_eq!(w.acquire_set(consumer, wanted_set("model", 0)).unwrap().1.len(), 5);
}

#[test]
fn parts_come_in_order_and_none_of_another_set_between_them() {
    for wrong in [part("model", 4, 1), part("model", 4, 3), part("model", 5, 2), part("other", 4, 2)] {
        let mut w = World::new(Policy::default());
        let producer = w.open(0, 1);
        let items = vetted(&mut w, 2);
        w.publish_part(producer, part("model", 4, 0), items);
        let items = vetted(&mut w, 1);
        let (outcomes, _) = w.publish_part(producer, wrong.clone(), items);
        assert_eq!(codes(&outcomes), [Some(Code::SetBroken)], "{wrong:?}");
        assert_eq!((w.disposed, w.registry.counts().0), (3, 0), "{wrong:?}");
    }
}

#[test]
fn a_publisher_that_ends_or_stops_between_parts_leaves_nothing() {
    let mut w = World::new(Policy::default());
    let (dying, slow, consumer) = (w.open(0, 1), w.open(0, 2), w.open(1, 1));
    let items = vetted(&mut w, 3);
    w.publish_part(dying, part("a", 4, 0), items);
    w.tell(Input::SessionEnded(dying, EndReason::OwnerDied));
    assert_eq!(w.disposed, 3);

    let items = vetted(&mut w, 2);
    w.publish_part(slow, part("b", 4, 0), items);
    w.pass(limits::SET_PART_TIME - Duration::from_secs(1));
    let items = vetted(&mut w, 1);
    w.publish_part(slow, part("b", 4, 2), items);
    w.pass(Duration::from_secs(2));
    assert_eq!(w.disposed, 3, "each part has its own time");
    w.pass(limits::SET_PART_TIME);
    assert_eq!(w.disposed, 6);
    let items = vetted(&mut w, 1);
    let (outcomes, _) = w.publish_part(slow, part("b", 4, 3), items);
    assert_eq!(codes(&outcomes), [Some(Code::SetBroken)]);
    for name in ["a", "b"] {
        assert_eq!(code(w.acquire_set(consumer, wanted_set(name, 0))), Code::NotFound);
    }
    assert_eq!((w.registry.next_deadline(), w.registry.counts().0), (None, 0));
}

#[test]
fn the_quota_counts_what_nobody_sees_yet() {
    let mut w = World::with_quota(Quota { buffers: 4, bytes: 1_000, leases: 2, ..Quota::default() });
    let (producer, other, consumer) = (w.open(0, 1), w.open(0, 2), w.open(1, 1));
    let items = vetted(&mut w, 1);
    let (outcomes, _) = w.publish_part(producer, part("large", 5, 0), items);
    assert_eq!(codes(&outcomes), [Some(Code::QuotaBuffers)], "known from the first part on");
    let items = vetted(&mut w, 3);
    w.publish_part(producer, part("model", 4, 0), items);
    w.publish(other, "x", descriptor()).unwrap();
    assert_eq!(code(w.publish(other, "y", descriptor())), Code::QuotaBuffers);
    let items = vetted(&mut w, 1);
    let (outcomes, _) = w.publish_part(producer, part("model", 4, 3), items);
    assert_eq!(codes(&outcomes), [Some(Code::QuotaBuffers)]);
    w.publish(other, "y", descriptor()).unwrap();
    // Leases: all of them or none.
    w.tell(Input::SessionEnded(other, EndReason::OwnerClosed));
    publish_set(&mut w, producer, "model", 3, 2);
    assert_eq!(code(w.acquire_set(consumer, wanted_set("model", 0))), Code::QuotaLeases);
    assert_eq!(w.registry.counts().1, 0);
}

#[test]
fn a_later_version_supersedes_the_older_one_which_nobody_calls_orphaned() {
    let mut w = World::new(Policy::default());
    let (producer, consumer, idle) = (w.open(0, 1), w.open(1, 1), w.open(1, 2));
    publish_set(&mut w, producer, "model", 2, 2);
    let (old, leases) = w.acquire_set(consumer, wanted_set("model", 0)).unwrap();
    w.ask(idle, Ask::Watch);
    let waits = Ask::AcquireSet {
        wanted: wanted_set("model", old.generation),
        until: Some(w.now + Duration::from_secs(9)),
    };
    let (wait, _) = w.ask(consumer, waits);
    let items = vetted(&mut w, 3);
    let (_, sent) = w.publish_part(producer, part("model", 3, 0), items);
    let (new, grants) = acquired_set(answer(&sent, consumer, wait)).unwrap();
    assert!(new.generation > old.generation && grants.len() == 3);
    assert!(events(&sent, consumer).is_empty(), "its holders keep the older one in peace");
    assert_eq!(code(w.acquire(consumer, by_id(leases[0].buffer.id))), Code::Retired);
    let (request, sent) = w.ask(consumer, Ask::Release(leases.iter().map(|g| g.lease).collect()));
    assert!(
        matches!(answer(&sent, consumer, request), BrokerBody::Released(o) if o.iter().all(Result::is_ok))
    );
    let gone = events(&sent, idle);
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|e| is_gone(e, EndReason::Superseded)), "{gone:?}");
}

#[test]
fn a_superseded_version_is_orphaned_by_its_owners_death() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    publish_set(&mut w, producer, "model", 1, 1);
    w.acquire_set(consumer, wanted_set("model", 0)).unwrap();
    publish_set(&mut w, producer, "model", 1, 1);
    let sent = w.tell(Input::SessionEnded(producer, EndReason::OwnerDied));
    let told = events(&sent, consumer);
    assert!(
        matches!(&told[..], [Event::Orphaned { reason: EndReason::OwnerDied, leases: 1, .. }]),
        "{told:?}"
    );
}

#[test]
fn a_set_with_a_buffer_that_has_ended_is_not_whole() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let published = publish_set(&mut w, producer, "model", 3, 3);
    w.ask(producer, Ask::Retire { id: published[1].id, until: None });
    assert_eq!(code(w.acquire_set(consumer, wanted_set("model", 0))), Code::NotFound);
    assert!(w.acquire(consumer, by_id(published[0].id)).is_ok());
    let (wait, _) = w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("model", 0), until: Some(w.now) });
    let sent = w.pass(Duration::ZERO);
    assert_eq!(code(acquired_set(answer(&sent, consumer, wait))), Code::WaitTimeout);
}

#[test]
fn names_of_sets_are_their_pods_and_not_those_of_buffers() {
    let mut w = World::new(Policy::default());
    let (one, twin, other) = (w.open(0, 1), w.open(0, 2), w.open(1, 1));
    publish_set(&mut w, one, "model", 2, 2);
    w.publish(other, "model", descriptor()).unwrap();
    let items = vetted(&mut w, 1);
    let (outcomes, _) = w.publish_part(other, part("model", 2, 0), items);
    assert_eq!(codes(&outcomes), [Some(Code::NameTaken)]);
    // Begun is taken too, for other pods; of two processes of one pod the later goes on.
    let items = vetted(&mut w, 1);
    w.publish_part(one, part("draft", 2, 0), items);
    let items = vetted(&mut w, 1);
    assert_eq!(codes(&w.publish_part(other, part("draft", 2, 0), items).0), [Some(Code::NameTaken)]);
    let items = vetted(&mut w, 1);
    assert_eq!(codes(&w.publish_part(twin, part("draft", 2, 0), items).0), [None]);
    let items = vetted(&mut w, 1);
    assert_eq!(codes(&w.publish_part(one, part("draft", 2, 1), items).0), [Some(Code::SetBroken)]);
    let items = vetted(&mut w, 1);
    assert_eq!(codes(&w.publish_part(twin, part("draft", 2, 1), items).0), [None]);
    assert!(w.acquire_set(other, wanted_set("draft", 0)).is_ok());
}

#[test]
fn another_groups_set_reads_like_one_that_does_not_exist() {
    let mut w = World::new(Policy::default());
    let (producer, stranger) = (w.open(0, 1), w.open(2, 1));
    publish_set(&mut w, producer, "model", 1, 1);
    let real = w.acquire_set(stranger, wanted_set("model", 0)).unwrap_err().to_string();
    let unreal = w.acquire_set(stranger, wanted_set("nodel", 0)).unwrap_err().to_string();
    assert_eq!(real.replace("model", "nodel"), unreal);
}

#[test]
fn a_wait_for_a_set_ends_when_it_is_cancelled_or_its_session_ends() {
    let mut w = World::new(Policy::default());
    let (producer, consumer) = (w.open(0, 1), w.open(1, 1));
    let until = Some(w.now + Duration::from_secs(9));
    let (request, _) = w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("model", 0), until });
    let (_, sent) = w.ask(consumer, Ask::Cancel(request));
    assert_eq!(code(acquired_set(answer(&sent, consumer, request))), Code::WaitTimeout);
    w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("model", 0), until });
    w.tell(Input::SessionEnded(consumer, EndReason::OwnerDied));
    publish_set(&mut w, producer, "model", 1, 1);
    assert_eq!((w.registry.next_deadline(), w.registry.counts().1), (None, 0));
}
