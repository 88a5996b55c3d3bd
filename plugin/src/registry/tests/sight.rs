//! Pods of several namespaces in one group see of each other what a rule grants, and nothing else.

use gpu_handoff_protocol::message::Event;

use super::*;

const RULES: &str = "version: gpu-handoff.io/v1
exchange:
  - name: guests
    publish: [{namespaces: [n], groups: [g]}]
    acquire: [{namespaces: [guest], groups: [n/g], service-accounts: [reader]}]
";

/// A pod at home with number 0, a guest with 1, and with 2 one that no rule names.
fn world() -> World {
    let mut w = World::new(Policy::read(RULES).unwrap());
    for (member, namespace) in [(1, "guest"), (2, "third")] {
        w.tell(Input::MemberLeft(MemberId(member)));
        let mut facts = member_facts(member, "g");
        facts.pod.namespace = namespace.parse().unwrap();
        facts.service_account = Some("reader".parse().unwrap());
        w.tell(Input::MemberJoined(MemberId(member), facts));
    }
    w
}

#[test]
fn a_guest_acquires_what_a_rule_grants_and_others_find_nothing() {
    let mut w = world();
    let (home, guest, third) = (w.open(0, 10), w.open(1, 11), w.open(2, 12));
    let id = w.publish(home, "w", descriptor()).unwrap().id;
    assert!(w.acquire(guest, named("w", 0)).is_ok());
    assert!(w.acquire(guest, by_id(id)).is_ok());
    for wanted in [named("w", 0), by_id(id)] {
        assert_eq!(code(w.acquire(third, wanted)), Code::NotFound);
    }
    // The rule has one direction.
    w.publish(guest, "r", descriptor()).unwrap();
    assert_eq!(code(w.acquire(home, named("r", 0))), Code::NotFound);
    assert_eq!(code(w.acquire(third, named("r", 0))), Code::NotFound);
    assert!(w.acquire(guest, named("r", 0)).is_ok());
}

#[test]
fn nobody_is_told_of_what_it_may_not_acquire() {
    let mut w = world();
    let (home, guest, third) = (w.open(0, 10), w.open(1, 11), w.open(2, 12));
    w.publish(home, "before", descriptor()).unwrap();
    let appeared = |sent: &Sent, session| {
        let of = |(to, message): &&(SessionId, BrokerMessage)| {
            *to == session && matches!(message.body, BrokerBody::Event(Event::Appeared(_)))
        };
        sent.iter().filter(of).count()
    };
    for (session, seen) in [(guest, 1), (third, 0)] {
        let (_, sent) = w.ask(session, Ask::Watch);
        assert_eq!(appeared(&sent, session), seen);
        let waits = Ask::Acquire {
            items: vec![named("w", 0)],
            until: Some(w.now + Duration::from_secs(9)),
            device: None,
        };
        assert!(w.ask(session, waits).1.is_empty());
    }
    let (_, sent) = w.ask(home, Ask::Announce(vec![BufferName::new("w").unwrap()]));
    assert_eq!(sent.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [guest]);
    let vetted = w.vetted("w", descriptor());
    let (_, sent) = w.ask(home, Ask::Publish(vec![Ok(vetted)]));
    assert_eq!((appeared(&sent, guest), appeared(&sent, third)), (1, 0));
    assert!(sent.iter().all(|(to, _)| *to != third), "{sent:?}");
    // A name belongs to the group; whose it is, only those know who may know the pod.
    for (session, says) in [(guest, "held by pod n/pod-0"), (third, "held by another pod")] {
        let refused = w.publish(session, "w", descriptor()).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

#[test]
fn across_groups_a_buffer_is_acquired_by_its_id() {
    let rules = "version: gpu-handoff.io/v1\nexchange:\n  - name: other\n    publish: [{namespaces: [n], groups: [g]}]\n    \
                 acquire: [{namespaces: [n], groups: [other]}]\n";
    let mut w = World::new(Policy::read(rules).unwrap());
    let (one, other) = (w.open(0, 10), w.open(2, 12));
    let id = w.publish(one, "w", descriptor()).unwrap().id;
    assert_eq!(code(w.acquire(other, named("w", 0))), Code::NotFound);
    let grant = w.acquire(other, by_id(id)).unwrap();
    let back = w.publish(other, "b", descriptor()).unwrap().id;
    assert_eq!(code(w.acquire(one, by_id(back))), Code::NotFound);
    assert!(w.release(other, grant.lease).is_ok());
}

#[test]
fn a_group_has_a_quota_of_its_own() {
    let text = "version: gpu-handoff.io/v1\ngroup-quota: {buffers: 2}\nquota: {descriptors: 1}\nlegacy: within-namespace\n";
    let mut w = World::new(Policy::read(text).unwrap());
    let (one, two, other) = (w.open(0, 10), w.open(1, 11), w.open(2, 12));
    let id = w.publish(one, "a", descriptor()).unwrap().id;
    assert_eq!(code(w.publish(one, "b", descriptor())), Code::QuotaDescriptors);
    w.publish(two, "c", Carrier::Legacy([1; 64])).unwrap();
    let refused = w.publish(two, "d", Carrier::Legacy([1; 64])).unwrap_err();
    assert!(
        refused.to_string().contains("QUOTA_BUFFERS (buffers of the group: wanted at most 2"),
        "{refused}"
    );
    w.publish(other, "d", descriptor()).unwrap();
    w.ask(one, Ask::Retire { id, until: None });
    w.publish(one, "b", descriptor()).unwrap();
}

fn new_policy(w: &mut World, text: &str) -> Sent {
    w.tell(Input::NewPolicy(Box::new(Policy::read(text).unwrap())))
}

#[test]
fn a_new_policy_grants_to_those_that_wait_and_watch() {
    let mut w = world();
    w.now += Duration::from_secs(1);
    let (home, third) = (w.open(0, 10), w.open(2, 12));
    let id = w.publish(home, "w", descriptor()).unwrap().id;
    let until = Some(w.now + Duration::from_secs(9));
    let (waits, sent) = w.ask(third, Ask::Acquire { items: vec![named("w", 0)], until, device: None });
    assert!(sent.is_empty());
    let (watch, _) = w.ask(third, Ask::Watch);
    let sent = new_policy(&mut w, &RULES.replace("guest]", "third]"));
    let grant = acquired(answer(&sent, third, waits)).unwrap();
    assert_eq!(grant.buffer.id, id);
    let seen = |(to, message): &(SessionId, BrokerMessage)| {
        *to == third
            && message.request == watch
            && matches!(&message.body, BrokerBody::Event(Event::Appeared(b)) if b.id == id)
    };
    assert!(sent.iter().any(seen), "{sent:?}");
    // And takes it away again: the mapping stays, its holder is told.
    let sent = new_policy(&mut w, RULES);
    let told = |event: &dyn Fn(&Event) -> bool| {
        sent.iter().any(|(to, m)| *to == third && matches!(&m.body, BrokerBody::Event(e) if event(e)))
    };
    let because = EndReason::NotAllowed;
    assert!(told(
        &|e| matches!(e, Event::Orphaned { id: of, reason, leases: 1 } if *of == id && *reason == because)
    ));
    assert!(told(&|e| matches!(e, Event::Gone { id: of, reason } if *of == id && *reason == because)));
    assert_eq!(code(w.acquire(third, by_id(id))), Code::NotFound);
    assert!(w.release(third, grant.lease).is_ok());
}

#[test]
fn what_a_new_policy_does_not_allow_ends_and_the_oldest_stay() {
    let mut w = World::allowing_legacy();
    let (one, two) = (w.open(0, 10), w.open(1, 11));
    let first = w.publish(one, "first", descriptor()).unwrap().id;
    let handle = w.publish(one, "handle", Carrier::Legacy([1; 64])).unwrap().id;
    let last = w.publish(two, "last", descriptor()).unwrap().id;
    w.acquire(two, by_id(handle)).unwrap();
    let sent = new_policy(&mut w, "version: gpu-handoff.io/v1\ngroup-quota: {buffers: 1}\n");
    let orphaned = |(to, message): &(SessionId, BrokerMessage)| {
        *to == two && matches!(message.body, BrokerBody::Event(Event::Orphaned { id, .. }) if id == handle)
    };
    assert!(sent.iter().any(orphaned), "{sent:?}");
    assert!(w.acquire(two, by_id(first)).is_ok());
    assert_eq!(code(w.acquire(one, by_id(last))), Code::Retired);
    assert_eq!(code(w.acquire(one, by_id(handle))), Code::Retired);
    assert_eq!(code(w.publish(one, "more", Carrier::Legacy([1; 64]))), Code::PolicyDenied);
}

#[test]
fn a_pod_that_is_deleted_gives_its_holders_as_long_as_the_policy_says() {
    let mut w = World::new(Policy::read("version: gpu-handoff.io/v1\nretire-deadline: 2s\n").unwrap());
    let (one, two) = (w.open(0, 10), w.open(1, 11));
    let id = w.publish(one, "w", descriptor()).unwrap().id;
    w.acquire(two, by_id(id)).unwrap();
    let until = w.now + Duration::from_secs(60);
    let sent = w.tell(Input::MemberEnding(MemberId(0), until));
    let deadline = Duration::from_secs(2);
    let retiring = |m: &BrokerMessage| matches!(m.body, BrokerBody::Event(Event::Retiring { deadline: d, .. }) if d == deadline);
    assert!(sent.iter().any(|(_, message)| retiring(message)), "{sent:?}");
}
