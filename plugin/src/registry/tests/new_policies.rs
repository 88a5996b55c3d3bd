//! Another policy comes into force piece by piece, while others go on.

use std::collections::HashSet;

use gpu_handoff_policy::{GrantedKind, GroupQuota, Held, Usage};
use proptest::prelude::*;

use super::histories::{Seen, Step, granting, play, step};
use super::rules::check;
use super::*;
use crate::limits;
use crate::registry::publish::add_buffer;

/// What each buffer could still be published as, the oldest having the first claim: all of it at once.
fn not_allowed(w: &World, policy: &Policy) -> HashSet<BufferId> {
    let r = &w.registry;
    let mut live: Vec<_> = r.buffers.values().filter(|b| b.ending.is_none() && b.carrier.is_some()).collect();
    live.sort_by_key(|b| (b.info.generation, b.info.id));
    let (mut pods, mut groups) = (HashMap::<MemberId, Usage>::new(), HashMap::<&GroupKey, Usage>::new());
    let mut refused = HashSet::new();
    for buffer in live {
        let (member, facts) = (&r.members[&buffer.member], &buffer.info.facts);
        let (pod, group) =
            (pods.entry(buffer.member).or_default(), groups.entry(&member.facts.group).or_default());
        let held = Held { pod: *pod, group: *group };
        if policy.may_publish(&member.facts.party(), &held, facts).is_err() {
            refused.insert(buffer.info.id);
            continue;
        }
        for usage in [pod, group] {
            add_buffer(usage, facts);
            usage.descriptors += facts.kind.descriptors() as u64;
        }
    }
    refused
}

/// So little at a time that others get in between everywhere.
pub(super) fn slowly(mut w: World) -> World {
    w.registry.changing.at_a_time = 1;
    w.told.said = Some(Vec::new());
    w
}

pub(super) fn change(w: &mut World, policy: Policy) -> Sent {
    w.tell(Input::NewPolicy(Box::new(policy)))
}

/// Gives it the time that it needs.
fn finish(w: &mut World, seen: &mut Seen) {
    for _ in 0..100_000 {
        if w.registry.changing.next_deadline().is_none() {
            return;
        }
        let sent = w.pass(Duration::ZERO);
        seen.observe(&sent);
        check(w);
    }
    panic!("it never ends");
}

/// Policies that forbid each something else of what histories publish.
fn policy(which: usize) -> Policy {
    let all = granting();
    match which {
        0 => all,
        1 => Policy { quota: Quota { buffers: 2, ..all.quota }, ..all },
        2 => Policy { group_quota: GroupQuota { buffers: 2, ..all.group_quota }, ..all },
        3 => Policy { kinds: [GrantedKind::Timeline].into(), ..all },
        4 => Policy { pod_lifetime_bytes: 100, ..all },
        _ => Policy { group_quota: GroupQuota { bytes: 250, ..all.group_quota }, ..all },
    }
}

#[derive(Debug, Clone)]
enum Turn {
    Step(Step),
    /// A process comes and waits for a name, and then the name is published.
    Newcomer {
        member: u32,
        publisher: usize,
        name: u8,
    },
    Policy(usize),
    GoOn,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        6 => step().prop_map(Turn::Step),
        2 => (0_u32..2, 0_usize..8, 3_u8..6).prop_map(|(member, publisher, name)| Turn::Newcomer { member, publisher, name }),
        1 => (0_usize..6).prop_map(Turn::Policy),
        3 => Just(Turn::GoOn),
    ]
}

/// Takes note of what is given since the policy that is in force, and holds it against that.
fn check_given(w: &mut World, given: &mut HashSet<BufferId>) {
    for (_, message) in w.told.said.as_mut().map(std::mem::take).unwrap_or_default() {
        let grants: Vec<Grant> = match message.body {
            BrokerBody::Acquired(items) => items.into_iter().flatten().collect(),
            BrokerBody::AcquiredSet { grants, .. } => grants,
            BrokerBody::Event(
                Event::Orphaned { id, reason: EndReason::NotAllowed, .. }
                | Event::Gone { id, reason: EndReason::NotAllowed },
            ) => {
                assert!(!given.contains(&id), "{id} was given by the policy that does not allow it");
                continue;
            }
            _ => continue,
        };
        for grant in grants {
            let kind = match grant.buffer.facts.kind {
                Kind::Timeline => GrantedKind::Timeline,
                _ => GrantedKind::Vmm,
            };
            assert!(w.registry.policy.kinds.contains(&kind), "{:?}", grant.buffer);
            given.insert(grant.buffer.id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_given_that_the_policy_forbids_however_little_of_it_is_done(turns in prop::collection::vec(turn(), 1..80)) {
        let mut w = slowly(World::new(granting()));
        let (mut seen, mut given) = (Seen::default(), HashSet::new());
        for turn in &turns {
            let sent = match turn {
                Turn::Step(step) => {
                    play(&mut w, &mut seen, step);
                    Vec::new()
                }
                Turn::Newcomer { member, publisher, name } => {
                    play(&mut w, &mut seen, &Step::Open { member: *member });
                    let who = seen.sessions.len().saturating_sub(1);
                    play(&mut w, &mut seen, &Step::Acquire { who, name: *name, wait: true });
                    play(&mut w, &mut seen, &Step::Publish { who: *publisher, name: *name, lasts: false });
                    Vec::new()
                }
                Turn::GoOn => w.pass(Duration::ZERO),
                Turn::Policy(which) => {
                    given.clear();
                    change(&mut w, policy(*which))
                }
            };
            seen.observe(&sent);
            check(&w);
            check_given(&mut w, &mut given);
        }
        finish(&mut w, &mut seen);
        check_given(&mut w, &mut given);
        prop_assert_eq!(not_allowed(&w, &w.registry.policy), HashSet::new());
        // Nobody is forgotten that waited for what was to be decided, nor sleeps on until its time is over.
        check(&w);
        let sent = w.pass(Duration::from_secs(3600));
        seen.observe(&sent);
        prop_assert!(seen.unanswered.is_empty(), "{:?}", seen.unanswered);
    }

    #[test]
    fn what_ends_is_what_could_not_be_published_today_and_nothing_else(
        steps in prop::collection::vec(step(), 1..60),
        which in 0_usize..6,
    ) {
        let mut w = slowly(World::new(granting()));
        let mut seen = Seen::default();
        steps.iter().for_each(|step| play(&mut w, &mut seen, step));
        let live = |w: &World| -> HashSet<BufferId> {
            let live = w.registry.buffers.values().filter(|b| b.ending.is_none() && b.carrier.is_some());
            live.map(|b| b.info.id).collect()
        };
        let (before, refused) = (live(&w), not_allowed(&w, &policy(which)));
        let sent = change(&mut w, policy(which));
        seen.observe(&sent);
        finish(&mut w, &mut seen);
        prop_assert_eq!(live(&w), &before - &refused);
    }
}

#[test]
fn a_policy_is_applied_in_pieces_and_those_that_want_what_is_not_decided_wait() {
    const MUCH: usize = limits::POLICY_STEPS * 3 / 2;
    const STAY: u64 = 100;
    let mut w = World::allowing_legacy();
    let (producer, consumer) = (w.open(0, 1), w.open(1, 2));
    let first = w.publish(producer, "first", Carrier::Legacy([0; 64])).unwrap().id;
    for n in 1..MUCH {
        w.publish(producer, &format!("{n}"), Carrier::Legacy([0; 64])).unwrap();
    }
    let quota = Quota { buffers: STAY, ..Quota::default() };
    let smaller = Policy { legacy: LegacyRule::WithinNamespace, quota, ..Policy::default() };
    change(&mut w, smaller);
    assert_eq!(w.registry.counts().0, MUCH, "not all was looked at");
    assert_eq!(w.registry.next_deadline(), Some(w.now));
    // Whoever wants one that will stay gets it, and one that will not, not even now.
    let (waits, sent) = w.ask(
        consumer,
        Ask::Acquire { items: vec![by_id(first), named("1000", 0)], until: None, device: None },
    );
    assert!(sent.is_empty());
    let mut sent = Vec::new();
    while w.registry.changing.next_deadline().is_some() {
        let before = w.registry.counts().0;
        sent.extend(w.pass(Duration::ZERO));
        assert!(before - w.registry.counts().0 <= limits::POLICY_STEPS);
    }
    assert_eq!(w.registry.counts().0 as u64, STAY);
    let BrokerBody::Acquired(items) = answer(&sent, consumer, waits) else { panic!("{sent:?}") };
    assert!(items[0].is_ok() && items[1].as_ref().unwrap_err().code() == Code::NotFound, "{items:?}");
    assert_eq!(w.registry.next_deadline(), None);
}

#[test]
fn who_begins_to_wait_while_it_is_decided_what_stays_is_answered_when_it_is() {
    let mut w = slowly(World::allowing_legacy());
    let producer = w.open(0, 1);
    for name in ["a", "b", "c"] {
        w.publish(producer, name, Carrier::Legacy([0; 64])).unwrap();
    }
    change(&mut w, Policy::default());
    // A process that comes now, and waits for what is not there: that comes, of a pod of which something may not stay.
    let consumer = w.open(1, 2);
    let until = Some(w.now + Duration::from_secs(9));
    let items = vec![named("late", 0)];
    let (one, sent) = w.ask(consumer, Ask::Acquire { items, until, device: None });
    let (whole, more) = w.ask(consumer, Ask::AcquireSet { wanted: wanted_set("model", 0), until });
    assert!(sent.is_empty() && more.is_empty());
    w.publish(producer, "late", descriptor()).unwrap();
    let item = w.vetted("part", descriptor());
    w.publish_part(producer, part("model", 1, 0), vec![Ok(item)]).0.remove(0).unwrap();
    assert!(w.registry.changing.next_deadline().is_some(), "it is not decided yet");
    let mut sent = w.told.said.take().unwrap();
    assert!(!sent.iter().any(|(to, _)| *to == consumer), "{sent:?}");
    while w.registry.changing.next_deadline().is_some() {
        sent.extend(w.pass(Duration::ZERO));
    }
    assert!(acquired(answer(&sent, consumer, one)).is_ok());
    assert!(acquired_set(answer(&sent, consumer, whole)).is_ok());
}

#[test]
fn what_comes_next_is_held_against_the_quotas_of_the_new_policy() {
    let mut w = World::allowing_legacy();
    let (producer, consumer) = (w.open(0, 1), w.open(1, 2));
    for name in ["a", "b"] {
        w.publish(producer, name, descriptor()).unwrap();
        w.acquire(consumer, named(name, 0)).unwrap();
    }
    let until = Some(w.now + Duration::from_secs(9));
    let waits = |items| Ask::Acquire { items, until, device: None };
    assert!(w.ask(consumer, waits(vec![named("c", 0), named("d", 0)])).1.is_empty());
    w.ask(consumer, Ask::Watch);
    let before = w.registry.counts();
    let quota = Quota { leases: 2, requests: 3, watches: 1, descriptors: 2, ..Quota::default() };
    change(&mut w, Policy { quota, legacy: LegacyRule::WithinNamespace, ..Policy::default() });
    assert_eq!(w.registry.counts(), before, "what is there has room");
    assert_eq!(code(w.acquire(consumer, named("a", 0))), Code::QuotaLeases);
    assert_eq!(code(w.publish(producer, "c", descriptor())), Code::QuotaDescriptors);
    for more in [waits(vec![named("e", 0)]), Ask::Watch] {
        let (request, sent) = w.ask(consumer, more);
        assert_eq!(code(acquired(answer(&sent, consumer, request))), Code::TooManyRequests);
    }
    // Leases, and what is waited for, stay where there is no room any more.
    let group_quota = GroupQuota { leases: 1, descriptors: 2, ..GroupQuota::default() };
    change(&mut w, Policy { group_quota, ..Policy::default() });
    assert_eq!(w.registry.counts(), before);
    assert_eq!(code(w.acquire(producer, named("a", 0))), Code::QuotaLeases);
    assert_eq!(code(w.publish(producer, "c", descriptor())), Code::QuotaDescriptors);
}

#[test]
fn a_set_that_has_begun_does_not_come_whole_with_what_is_not_allowed_any_more() {
    let mut w = World::allowing_legacy();
    let session = w.open(0, 1);
    let [handle, memory] = [Carrier::Legacy([0; 64]), descriptor()].map(|carrier| w.vetted("part", carrier));
    let (outcomes, _) = w.publish_part(session, part("model", 2, 0), vec![Ok(handle)]);
    assert!(outcomes[0].is_ok());
    change(&mut w, Policy::default());
    let (outcomes, _) = w.publish_part(session, part("model", 2, 1), vec![Ok(memory)]);
    assert_eq!(outcomes[0].as_ref().unwrap_err().code(), Code::SetBroken);
    assert_eq!((w.registry.counts().0, w.disposed), (0, 2));
    check(&w);
}

#[test]
fn a_policy_that_changes_nothing_of_what_is_there_is_applied_at_once() {
    let mut w = World::allowing_legacy();
    let producer = w.open(0, 1);
    for n in 0..2 * limits::POLICY_STEPS {
        w.publish(producer, &format!("{n}"), Carrier::Legacy([0; 64])).unwrap();
    }
    let larger = Quota { buffers: 1 << 20, ..Quota::default() };
    change(&mut w, Policy { legacy: LegacyRule::WithinNamespace, quota: larger, ..Policy::default() });
    assert_eq!(w.registry.next_deadline(), None);
}
