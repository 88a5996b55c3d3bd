//! The owner with lanes that are queues alone.

use std::collections::BTreeSet;
use std::hash::RandomState;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gpu_handoff_policy::{LegacyRule, Policy};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, EndReason, Event, Publication, RequestId, Target, Wanted,
};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferName, Code, DeviceUuid, GroupKey, Kind, LeaseId, Lifetime,
    Metadata, Order, PodRef,
};

use super::*;
use crate::members::Holds;
use crate::registry::{Ask, Capacity, MemberFacts, Past, SessionFacts, Vetted};

const BOOT: BootTag = BootTag(7);
const PATIENCE: Duration = Duration::from_secs(10);

fn owner_with(policy: Policy) -> Arc<Owner> {
    let past = Past::none(Instant::now());
    let registry = Registry::new(policy, Capacity { descriptors: 0 }, BOOT, RandomState::new(), past);
    Owner::new(registry, None)
}

/// An owner with so many members of one group, each with one session of its own number.
fn owner_of(members: u32) -> (Arc<Owner>, Vec<LaneHandle>) {
    let policy = Policy { legacy: LegacyRule::WithinNamespace, ..Policy::default() };
    let owner = owner_with(policy);
    let lanes = (0..members)
        .map(|number| {
            let (member, lane) = (MemberId(number), LaneHandle::default());
            owner.add_lane(member, lane.clone());
            let (namespace, name) = ("n".parse().unwrap(), format!("pod-{number}").parse().unwrap());
            let group = GroupKey { namespace: "n".parse().unwrap(), name: "g".parse().unwrap() };
            let slot: gpu_handoff_protocol::SlotId = format!("slot-{number}").parse().unwrap();
            let (pod, uid) = (PodRef { namespace, name }, slot.clone().into());
            let facts = MemberFacts { pod, slot, uid, group, service_account: None, holds: Holds::All };
            owner.apply(None, Input::MemberJoined(member, facts)).log();
            let process = ProcessKey { pid: number, started: 1, pidfs_inode: None };
            let facts =
                SessionFacts { member, own_pid: number, process, hears_announcements: true, reachable: None };
            owner.apply(None, Input::SessionOpened(session(number), facts)).log();
            lane
        })
        .collect();
    (owner, lanes)
}

fn session(member: u32) -> SessionId {
    SessionId(u64::from(member))
}

fn ask(owner: &Owner, member: u32, request: RequestId, ask: Ask) {
    owner.apply(Some(MemberId(member)), Input::Ask(session(member), request, ask)).log();
}

fn legacy(member: u32, number: u64) -> Ask {
    let facts = BufferFacts {
        name: BufferName::new(format!("{member}-{number}")).unwrap(),
        kind: Kind::Legacy,
        device: DeviceUuid::from_bytes([1; 16]),
        offset: 0,
        size: 1,
        allocation_size: 1,
        access: Access::ReadWrite,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    };
    let publication = Publication { facts, carrier: Carrier::Legacy([0; 64]) };
    let id = BufferId { boot: BOOT, random: u128::from(member) << 64 | u128::from(number) };
    Ask::Publish(vec![Ok(Vetted { id, publication, checked: None })])
}

/// Everything that waits for a lane, as messages.
fn said(lane: &LaneHandle) -> Vec<BrokerMessage> {
    let mut said = Vec::new();
    while let Some(command) = lane.next() {
        if let LaneCommand::Send(_, messages) = command {
            said.extend(messages);
        }
    }
    said
}

/// Whether the lane's thread has been woken.
async fn is_woken(lane: &LaneHandle) -> bool {
    tokio::select! { biased; () = lane.stirred() => true, () = std::future::ready(()) => false }
}

#[tokio::test]
async fn only_other_lanes_are_woken() {
    let (owner, lanes) = owner_of(3);
    ask(&owner, 1, 1, Ask::Watch);
    assert_eq!((said(&lanes[1]).len(), is_woken(&lanes[1]).await), (1, false), "what it asked for itself");
    ask(&owner, 0, 1, legacy(0, 1));
    let answers = said(&lanes[0]);
    assert!(matches!(answers[..], [BrokerMessage { request: 1, body: BrokerBody::Published(_) }]));
    assert!(!is_woken(&lanes[0]).await);
    assert!(matches!(said(&lanes[1])[..], [BrokerMessage { body: BrokerBody::Event(_), .. }]));
    assert!(is_woken(&lanes[1]).await);
    assert_eq!((lanes[2].waiting(), is_woken(&lanes[2]).await), (0, false));
}

#[test]
fn what_is_applied_from_several_threads_is_told_in_order() {
    const EACH: u64 = 500;
    let (owner, lanes) = owner_of(4);
    ask(&owner, 3, 1, Ask::Watch);
    std::thread::scope(|scope| {
        for member in 0..3 {
            let owner = &owner;
            scope.spawn(move || (1..=EACH).for_each(|n| ask(owner, member, n, legacy(member, n))));
        }
    });
    let generations: Vec<u64> = said(&lanes[3])
        .into_iter()
        .filter_map(|message| match message.body {
            BrokerBody::Event(Event::Appeared(info)) => Some(info.generation),
            _ => None,
        })
        .collect();
    assert_eq!(generations, (1..=3 * EACH).collect::<Vec<_>>());
}

#[tokio::test]
async fn deadlines_pass_in_time_and_earlier_ones_are_not_missed() {
    let (owner, lanes) = owner_of(1);
    let (stopping, stopped) = watch::channel(false);
    let keeper = tokio::spawn(Arc::clone(&owner).keep_time(stopped));
    let items = vec![Wanted { target: Target::Name(BufferName::new("absent").unwrap()), newer_than: 0 }];
    for (request, wait) in [(1, PATIENCE * 100), (2, Duration::from_millis(20))] {
        let until = Some(Instant::now() + wait);
        ask(&owner, 0, request, Ask::Acquire { items: items.clone(), until, device: None });
        // Whoever keeps the time may look at it in between.
        tokio::task::yield_now().await;
    }
    assert_eq!(lanes[0].waiting(), 0);
    tokio::time::timeout(PATIENCE, lanes[0].stirred()).await.unwrap();
    let answers = said(&lanes[0]);
    let [BrokerMessage { request: 2, body: BrokerBody::Acquired(outcomes) }] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(outcomes[0].as_ref().unwrap_err().code(), Code::WaitTimeout);
    stopping.send_replace(true);
    keeper.await.unwrap();
}

#[tokio::test]
async fn a_broken_state_ends_the_daemon() {
    let (owner, lanes) = owner_of(1);
    let (_stopping, stopped) = watch::channel(false);
    let keeper = tokio::spawn(Arc::clone(&owner).keep_time(stopped));
    tokio::task::yield_now().await;
    let breaking = Arc::clone(&owner);
    let broken = std::thread::spawn(move || {
        let _stirs = StirIfPanicking(&breaking.stirred);
        let _state = breaking.state.lock().unwrap();
        panic!("an input that breaks the state");
    });
    assert!(broken.join().is_err());
    tokio::time::timeout(PATIENCE, keeper).await.unwrap().unwrap();
    // Nobody is told anything any more.
    ask(&owner, 0, 1, Ask::Watch);
    assert_eq!(lanes[0].waiting(), 0);
}

#[tokio::test]
async fn a_lane_that_does_not_keep_up_learns_that_it_missed_something() {
    let (owner, lanes) = owner_of(2);
    ask(&owner, 1, 1, Ask::Watch);
    assert!(!lanes[1].was_overrun());
    for number in 0..limits::LANE_QUEUE as u64 {
        // Of no lane, which would pause.
        owner.apply(None, Input::Ask(session(0), 1, legacy(0, number))).log();
        lanes[0].next();
    }
    assert!(lanes[1].was_overrun() && !lanes[1].was_overrun());
    assert_eq!(lanes[1].waiting(), limits::LANE_QUEUE);
    assert!(is_woken(&lanes[1]).await);
}

/// What takes so many seats of a buffer of another member, whose owner is told of each.
fn ordered(owner: &Owner, lanes: &[LaneHandle], seats: u32) -> Ask {
    let Ask::Publish(mut words) = legacy(0, 1) else { panic!("a publication") };
    let Ask::Publish(mut items) = legacy(0, 2) else { panic!("a publication") };
    let ids = [&mut words[0], &mut items[0]].map(|vetted| vetted.as_mut().unwrap().id);
    let timeline = &mut words[0].as_mut().unwrap().publication.facts;
    (timeline.kind, timeline.size) = (Kind::Timeline, 8 * (u64::from(seats) + 1));
    timeline.allocation_size = timeline.size;
    items[0].as_mut().unwrap().publication.facts.order =
        Some(Order { timeline: ids[0], ready_word: 0, value: 1, first_seat_word: 1, seats });
    ask(owner, 0, 1, Ask::Publish(words));
    ask(owner, 0, 2, Ask::Publish(items));
    said(&lanes[0]);
    let items = (0..seats).map(|_| Wanted { target: Target::Id(ids[1]), newer_than: 0 }).collect();
    Ask::Acquire { items, until: None, device: None }
}

#[test]
fn what_one_packet_has_an_owner_told_is_one_command() {
    let (owner, lanes) = owner_of(2);
    let acquire = ordered(&owner, &lanes, 64);
    ask(&owner, 1, 1, acquire);
    assert_eq!((lanes[0].waiting(), lanes[1].waiting()), (1, 1));
    assert_eq!(said(&lanes[0]).len(), 64);
    let answers = said(&lanes[1]);
    let [BrokerMessage { body: BrokerBody::Acquired(grants), .. }] = &answers[..] else {
        panic!("{answers:?}")
    };
    let leases: Vec<LeaseId> = grants.iter().map(|grant| grant.as_ref().unwrap().lease).collect();
    ask(&owner, 1, 2, Ask::Release(leases));
    assert_eq!((lanes[0].waiting(), said(&lanes[0]).len()), (1, 64));
}

#[test]
fn a_lane_that_gives_another_much_to_do_pauses() {
    let (owner, lanes) = owner_of(2);
    ask(&owner, 1, 1, Ask::Watch);
    said(&lanes[1]);
    for number in 0..=limits::LANE_PRESSED as u64 {
        assert_eq!(owner.paused.load(Ordering::Relaxed), 0);
        ask(&owner, 0, 1, legacy(0, number));
        lanes[0].next();
    }
    assert_eq!(owner.paused.load(Ordering::Relaxed), 1);
    // What it gives itself it is about to do.
    ask(&owner, 1, 2, Ask::Watch);
    assert_eq!(owner.paused.load(Ordering::Relaxed), 1);
}

#[test]
fn a_session_with_much_has_ended_when_its_end_was_applied_and_others_got_in_between() {
    let (owner, _lanes) = owner_of(2);
    let much = 8 * limits::ENDINGS_AT_A_TIME as u64;
    for number in 0..much {
        ask(&owner, 0, number + 1, legacy(0, number));
    }
    let count = |owner: &Owner| owner.state.lock().unwrap().registry.counts().0;
    assert_eq!(count(&owner), usize::try_from(much).unwrap());
    let done = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !done.load(Ordering::Relaxed) {
                seen.insert(count(&owner));
            }
            seen
        });
        owner.apply(Some(MemberId(0)), Input::SessionEnded(session(0), EndReason::OwnerDied)).log();
        assert_eq!(count(&owner), 0);
        done.store(true, Ordering::Relaxed);
        other.join().unwrap()
    });
    println!("{} states were seen", seen.len());
    assert!(seen.iter().any(|n| *n > 0 && (*n as u64) < much), "nobody got in between: {seen:?}");
}

#[test]
fn nobody_is_overrun_because_another_ended_who_had_much() {
    const HOLDERS: u64 = 4;
    let (owner, lanes) = owner_of(2);
    let facts = |n: u64| {
        let process = ProcessKey { pid: 100, started: n, pidfs_inode: None };
        let (own_pid, member) = (100, MemberId(1));
        SessionFacts { member, own_pid, process, hears_announcements: true, reachable: None }
    };
    let holders: Vec<SessionId> = (0..HOLDERS).map(|n| SessionId(100 + n)).collect();
    for (n, holder) in (0..).zip(&holders) {
        owner.apply(Some(MemberId(1)), Input::SessionOpened(*holder, facts(n))).log();
    }
    // So many that each holder is told of as many as its lane's queue takes.
    let much = limits::LANE_QUEUE as u64 / 2;
    for number in 0..much {
        ask(&owner, 0, number + 1, legacy(0, number));
        let name = BufferName::new(format!("0-{number}")).unwrap();
        let items = vec![Wanted { target: Target::Name(name), newer_than: 0 }];
        for holder in &holders {
            let ask = Ask::Acquire { items: items.clone(), until: None, device: None };
            owner.apply(Some(MemberId(1)), Input::Ask(*holder, number + 1, ask)).log();
        }
        lanes.iter().for_each(|lane| while lane.next().is_some() {});
    }
    owner.apply(Some(MemberId(0)), Input::SessionEnded(session(0), EndReason::OwnerDied)).log();
    let pieces = usize::try_from(much).unwrap() / limits::ENDINGS_AT_A_TIME + 1;
    for (lane, most) in lanes.iter().zip([1, holders.len()]) {
        assert!(!lane.was_overrun());
        assert!(lane.waiting() <= pieces * most, "{} commands wait", lane.waiting());
    }
    let said = said(&lanes[1]);
    assert_eq!(said.len() as u64, HOLDERS * much, "and each is told of each");
}

#[tokio::test]
async fn what_a_new_policy_means_is_done_by_whoever_keeps_the_time() {
    let (owner, _lanes) = owner_of(2);
    let much = 4 * limits::POLICY_STEPS as u64;
    for number in 0..much {
        ask(&owner, 0, number + 1, legacy(0, number));
    }
    let count = || owner.state.lock().unwrap().registry.counts().0;
    owner.apply(None, Input::NewPolicy(Box::default())).log();
    assert_eq!(count() as u64, much, "whoever brings it does not wait for all of that");
    let (stopping, stopped) = watch::channel(false);
    let keeper = tokio::spawn(Arc::clone(&owner).keep_time(stopped));
    let all_have_ended = async {
        while count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all_have_ended).await.unwrap();
    stopping.send_replace(true);
    keeper.await.unwrap();
}
