//! Another policy lets pods see others' buffers, piece by piece, while others go on; and how long a piece takes.

use std::collections::{BTreeMap, HashSet};

use gpu_handoff_policy::{GroupQuota, Orphans};
use gpu_handoff_protocol::message::Reattached;
use proptest::prelude::*;

use super::histories::pick;
use super::new_policies::{change, slowly};
use super::restarts::{bare, buffer_receipt, lease_receipt, with_memory};
use super::*;
use crate::limits;

/// Pods of three namespaces in one group.
const NAMESPACES: [&str; 3] = ["n", "guest", "third"];

/// Who may acquire from whom, as bits: one for each two namespaces.
fn exchange(bits: u8) -> Policy {
    let pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
    let rules: String = (0..6)
        .filter(|n| bits & 1 << n != 0)
        .map(|n| {
            let (from, to) = pairs[n];
            let side = |who: usize| {
                let group = if who == 0 { "g" } else { "n/g" };
                format!("[{{namespaces: [{}], groups: [{group}]}}]", NAMESPACES[who])
            };
            format!("  - name: r{n}\n    publish: {}\n    acquire: {}\n", side(from), side(to))
        })
        .collect();
    let exchange = if rules.is_empty() { String::new() } else { format!("exchange:\n{rules}") };
    Policy::read(&format!("version: gpu-handoff.io/v1\n{exchange}")).unwrap()
}

#[derive(Debug, Clone)]
enum Sight {
    Publish(usize),
    Retire(usize),
    Watch(usize),
    Unwatch(usize),
    Policy(u8),
    GoOn,
}

fn sight() -> impl Strategy<Value = Sight> {
    prop_oneof![
        4 => (0_usize..3).prop_map(Sight::Publish),
        2 => (0_usize..8).prop_map(Sight::Retire),
        2 => (0_usize..3).prop_map(Sight::Watch),
        1 => (0_usize..8).prop_map(Sight::Unwatch),
        2 => (0_u8..64).prop_map(Sight::Policy),
        6 => Just(Sight::GoOn),
    ]
}

/// What watches were told is there.
type Views = BTreeMap<(SessionId, RequestId), HashSet<BufferId>>;

fn look(views: &mut Views, sent: &Sent) {
    for (session, message) in sent {
        let Some(view) = views.get_mut(&(*session, message.request)) else { continue };
        match &message.body {
            BrokerBody::Event(Event::Appeared(buffer)) => assert!(view.insert(buffer.id), "it is there"),
            BrokerBody::Event(Event::Gone { id, .. }) => assert!(view.remove(id), "it is not there"),
            BrokerBody::Event(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A pod of each namespace joins.
fn join_of_all(w: &mut World) {
    for (member, namespace) in (0..).zip(NAMESPACES) {
        w.tell(Input::MemberLeft(MemberId(member)));
        let mut facts = member_facts(member, "g");
        facts.pod.namespace = namespace.parse().unwrap();
        w.tell(Input::MemberJoined(MemberId(member), facts));
    }
}

/// What comes back while a policy is applied, and what a watch of a guest's was told of until it was.
fn told_of_what_comes_back(before: u8, after: u8, lasts: bool) -> Vec<Event> {
    let lasting = |bits| Policy { pod_lifetime_bytes: 1_000, ..exchange(bits) };
    let mut w = World::new(lasting(63));
    join_of_all(&mut w);
    let (producer, third) = (w.open(0, 1), w.open(2, 3));
    let published =
        if lasts { w.publish_lasting(producer, "a") } else { w.publish(producer, "a", descriptor()) };
    let id = published.unwrap().id;
    let grant = w.acquire(third, by_id(id)).unwrap();
    let holder = w.registry.sessions[&third].facts.process;
    let (buffer, lease) = (buffer_receipt(&w, 0, id), lease_receipt(&w, 2, holder, &grant));
    w.begin_anew(lasting(before), &[]);
    join_of_all(&mut w);
    w = slowly(w);
    // It is known from a lease before it is back.
    let third = w.open_as(2, 3, holder);
    assert_eq!(w.claim(third, bare(&lease)), Ok(Reattached::Restored));
    let guest = w.open(1, 2);
    w.ask(guest, Ask::Watch);
    change(&mut w, lasting(after));
    if !lasts {
        assert!(w.registry.changing.next_deadline().is_some(), "the watch has not had its turn");
        w.offer(0, with_memory(&buffer)).unwrap();
    }
    while w.registry.changing.next_deadline().is_some() {
        w.pass(Duration::ZERO);
    }
    if lasts {
        w.offer(0, with_memory(&buffer)).unwrap();
    }
    let said = w.told.said.unwrap();
    events(&said, guest).into_iter().filter(|event| *event != Event::SnapshotDone).collect()
}

#[test]
fn a_watch_is_told_of_what_comes_back_by_the_policy_in_force_and_once() {
    // Its policy lets the guest see it until it comes back, and then not.
    assert_eq!(told_of_what_comes_back(0b11, 0b10, false), []);
    // It does not, and then it does; nobody has brought it back by then.
    let told = told_of_what_comes_back(0b10, 0b11, true);
    assert!(matches!(&told[..], [Event::Appeared(_)]), "{told:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_watch_is_told_of_what_comes_into_its_sight_and_goes_out_of_it_once(turns in prop::collection::vec(sight(), 1..80)) {
        let mut w = slowly(World::new(exchange(63)));
        join_of_all(&mut w);
        let sessions: Vec<SessionId> = (0..3).map(|member| w.open(member, member + 1)).collect();
        let (mut views, mut published) = (Views::new(), Vec::new());
        for turn in &turns {
            let sent = match *turn {
                Sight::Publish(who) => {
                    let vetted = w.vetted(&format!("of-{who}"), descriptor());
                    published.push((sessions[who], vetted.id));
                    w.ask(sessions[who], Ask::Publish(vec![Ok(vetted)])).1
                }
                Sight::Retire(which) => match pick(&published, which) {
                    Some((owner, id)) => w.ask(owner, Ask::Retire { id, until: None }).1,
                    None => continue,
                },
                Sight::Watch(who) => {
                    // Numbers are used again.
                    let request = (1..).find(|n| !views.contains_key(&(sessions[who], *n))).unwrap();
                    let sent = w.tell(Input::Ask(sessions[who], request, Ask::Watch));
                    if !matches!(sent.last(), Some((_, BrokerMessage { body: BrokerBody::Refused(_), .. }))) {
                        views.insert((sessions[who], request), HashSet::new());
                    }
                    sent
                }
                Sight::Unwatch(which) => {
                    let all: Vec<_> = views.keys().copied().collect();
                    let Some((session, request)) = pick(&all, which) else { continue };
                    views.remove(&(session, request));
                    w.ask(session, Ask::Cancel(request)).1
                }
                Sight::Policy(bits) => change(&mut w, exchange(bits)),
                Sight::GoOn => w.pass(Duration::ZERO),
            };
            look(&mut views, &sent);
        }
        while w.registry.changing.next_deadline().is_some() {
            let sent = w.pass(Duration::ZERO);
            look(&mut views, &sent);
        }
        let r = &w.registry;
        for ((session, request), view) in views {
            let seen: HashSet<BufferId> =
                r.buffers.values().filter(|b| r.sees(session, b)).map(|b| b.info.id).collect();
            prop_assert_eq!(view, seen, "{:?} {}", session, request);
        }
    }
}

/// How long others wait for one piece, and how long all takes, with as much as there may be: for
/// `cargo test -p gpu-handoff-plugin --lib of_a_policy --config profile.dev.package.gpu-handoff-plugin.opt-level=3 -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn longest_piece_of_a_policy() {
    const MEMBERS: u32 = 1_024;
    const WATCHES: usize = 64;
    // As many as a group may have published; each of them is leased by one pod, and some pods watch all of them.
    const EACH: u32 = 262_144 / MEMBERS;
    let group_quota = GroupQuota { descriptors: u64::MAX, ..GroupQuota::default() };
    let of = |bits, quota, orphans| Policy { quota, group_quota, orphans, ..exchange(bits) };
    let mut w = World::new(of(0b111_111, Quota::default(), Orphans::Report));
    let mut sessions = Vec::new();
    (0..3).for_each(|member| drop(w.tell(Input::MemberLeft(MemberId(member)))));
    for member in 0..MEMBERS {
        let mut facts = member_facts(member, "g");
        facts.pod.namespace = NAMESPACES[member as usize % 3].parse().unwrap();
        w.tell(Input::MemberJoined(MemberId(member), facts));
        sessions.push(w.open(member, member));
    }
    w.registry.capacity = Capacity { descriptors: u64::MAX };
    let Carrier::Descriptor(file) = descriptor() else { panic!("a file") };
    assert_eq!(sessions.len(), limits::MEMBERS);
    for (k, session) in sessions.iter().enumerate() {
        for n in 0..EACH {
            let name = format!("{}-{n}", session.0);
            let id = w.publish(*session, &name, Carrier::Descriptor(Arc::clone(&file))).unwrap().id;
            let by = sessions[(k * 7 + n as usize) % sessions.len()];
            drop(w.acquire(by, by_id(id)));
        }
    }
    for session in &sessions[..WATCHES] {
        w.now += Duration::from_secs(1_000);
        w.ask(*session, Ask::Watch);
    }
    eprintln!("buffers, leases, sessions: {:?}", w.registry.counts());
    let quota = Quota { buffers: u64::from(EACH) / 2, ..Quota::default() };
    for (what, policy) in [
        ("a rule less", of(0b111_011, Quota::default(), Orphans::Report)),
        ("a smaller quota", of(0b111_011, quota, Orphans::Report)),
        ("orphans: kill", of(0b111_011, quota, Orphans::Kill)),
    ] {
        let mut pieces = Vec::new();
        let mut next = Input::NewPolicy(Box::new(policy));
        let begin = Instant::now();
        loop {
            // What the processor does meanwhile for others is no part of it.
            let piece = processor_time();
            drop(w.registry.apply(next, w.now));
            pieces.push((processor_time().saturating_sub(piece), pieces.len()));
            if w.registry.changing.next_deadline().is_none() {
                break;
            }
            next = Input::Tick;
        }
        let all = begin.elapsed();
        let (first, _) = pieces[0];
        pieces.sort_unstable();
        let ((middle, _), (longest, which)) = (pieces[pieces.len() / 2], pieces[pieces.len() - 1]);
        let (p99, _) = pieces[pieces.len() * 99 / 100];
        eprintln!(
            "{what}: {} pieces, first {first:?}, p50 {middle:?}, p99 {p99:?}, longest {longest:?} (piece {which}), all {all:?}",
            pieces.len()
        );
    }
}

/// Of this thread, so far.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let part = |n: i64| u64::try_from(n).unwrap();
    Duration::from_secs(part(now.tv_sec)) + Duration::from_nanos(part(now.tv_nsec))
}
