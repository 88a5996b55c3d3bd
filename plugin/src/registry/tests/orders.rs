//! Orders and seats: words of a timeline of the owner's own, and who is told of which seat.

use super::*;

fn order(timeline: BufferId, seats: u32) -> Order {
    Order { timeline, ready_word: 0, value: 7, first_seat_word: 1, seats }
}

/// A timeline of 12 words (the tests' buffers have 100 bytes).
fn timeline(w: &mut World, session: SessionId) -> BufferId {
    let mut vetted = w.vetted("order", descriptor());
    vetted.publication.facts.kind = Kind::Timeline;
    publish(w, session, vetted).unwrap().id
}

fn publish(w: &mut World, session: SessionId, vetted: Vetted) -> Result<PublishedAs, Refusal> {
    let (request, sent) = w.ask(session, Ask::Publish(vec![Ok(vetted)]));
    match answer(&sent, session, request) {
        BrokerBody::Published(mut items) => items.remove(0),
        other => panic!("{other:?}"),
    }
}

fn ordered(w: &mut World, session: SessionId, order: Order) -> Result<PublishedAs, Refusal> {
    let mut vetted = w.vetted("frame", descriptor());
    vetted.publication.facts.order = Some(order);
    publish(w, session, vetted)
}

#[test]
fn each_lease_has_the_lowest_free_seat_and_the_owner_hears_of_it() {
    let mut w = World::new(Policy::default());
    let (owner, a, b) = (w.open(0, 1), w.open(1, 1), w.open(1, 2));
    let timeline = timeline(&mut w, owner);
    let id = ordered(&mut w, owner, order(timeline, 3)).unwrap().id;
    let take = |w: &mut World, who| {
        let (request, sent) = w.ask(who, Ask::Acquire { items: vec![by_id(id)], until: None, device: None });
        let grant = acquired(answer(&sent, who, request))?;
        let seat = grant.seat.unwrap();
        assert_eq!(events(&sent, owner), [Event::Seated { id, seat }]);
        Ok::<_, Refusal>((grant.lease, seat.0))
    };
    let (first, _) = take(&mut w, a).unwrap();
    assert_eq!((take(&mut w, b).unwrap().1, take(&mut w, a).unwrap().1), (1, 2));
    let refusal = take(&mut w, b).unwrap_err();
    assert_eq!(refusal.code(), Code::NoSeat);
    assert_eq!(w.registry.counts().1, 3, "no lease without a seat");
    let (_, sent) = w.ask(a, Ask::Release(vec![first]));
    let unseated = |seat, how| Event::Unseated { id, seat: Seat(seat), how };
    assert_eq!(events(&sent, owner), [unseated(0, SeatEnd::Released)]);
    assert_eq!(take(&mut w, b).unwrap().1, 0, "the lowest free one");
    let sent = w.tell(Input::SessionEnded(b, EndReason::OwnerDied));
    let mut told = events(&sent, owner);
    told.sort_by_key(|e| format!("{e:?}"));
    assert_eq!(told, [unseated(0, SeatEnd::Died), unseated(1, SeatEnd::Died)]);
    assert!(events(&sent, a).is_empty(), "it is the owner's alone");
}

#[test]
fn an_order_is_of_a_live_timeline_of_the_same_process() {
    let mut w = World::new(Policy::default());
    let (owner, twin, stranger) = (w.open(0, 1), w.open(0, 2), w.open(2, 1));
    let line = timeline(&mut w, owner);
    assert!(ordered(&mut w, owner, order(line, 11)).is_ok());
    assert_eq!(code(ordered(&mut w, owner, order(line, 12))), Code::SizeMismatch);
    let far = Order { ready_word: 12, ..order(line, 1) };
    assert_eq!(code(ordered(&mut w, owner, far)), Code::SizeMismatch);
    let within = Order { ready_word: 2, ..order(line, 4) };
    assert_eq!(code(ordered(&mut w, owner, within)), Code::Malformed);
    assert_eq!(code(ordered(&mut w, twin, order(line, 1))), Code::NotOwner);
    let never = BufferId { boot: BOOT, random: 12_345_678 };
    let unreal = ordered(&mut w, stranger, order(never, 1)).unwrap_err();
    let real = ordered(&mut w, stranger, order(line, 1)).unwrap_err();
    assert_eq!(
        real.to_string().replace(&line.to_string(), "ID"),
        unreal.to_string().replace(&never.to_string(), "ID")
    );
    let plain = w.publish(owner, "plain", descriptor()).unwrap().id;
    assert_eq!(code(ordered(&mut w, owner, order(plain, 1))), Code::UnsupportedKind);
    let disposed = w.disposed;
    w.ask(owner, Ask::Retire { id: line, until: None });
    assert_eq!(code(ordered(&mut w, owner, order(line, 1))), Code::Retired);
    assert_eq!(w.disposed, disposed + 2, "the timeline's descriptor, and that of the refused buffer");
}

#[test]
fn a_set_is_leased_whole_or_not_at_all_for_want_of_a_seat() {
    let mut w = World::new(Policy::default());
    let (owner, consumer) = (w.open(0, 1), w.open(1, 1));
    let line = timeline(&mut w, owner);
    let (free, tight) = (w.vetted("a", descriptor()), w.vetted("b", descriptor()));
    let items = [(free, 2), (tight, 1)].map(|(mut vetted, seats)| {
        vetted.publication.facts.order = Some(order(line, seats));
        Ok(vetted)
    });
    w.publish_part(owner, part("frames", 2, 0), items.into());
    let (_, first) = w.acquire_set(consumer, wanted_set("frames", 0)).unwrap();
    assert_eq!(first.iter().map(|g| g.seat.unwrap().0).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(code(w.acquire_set(consumer, wanted_set("frames", 0))), Code::NoSeat);
    assert_eq!((w.registry.counts().1, w.registry.seated().count()), (2, 2), "none was left behind");
}
