//! Leases against a node that the test plays: when memory is mapped, unmapped, and given back.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, EndReason, Event};
use gpu_handoff_protocol::{Code, LeaseId, Refusal};

use super::fake::{Fake, PATIENCE, connected, grant, grant_of, until};
use super::{id, info};
use crate::order::come_to_end;
use crate::{Acquire, Client, ClientError, Lease, LeaseState, limits};

fn acquire(client: &Client, fake: &mut Fake, lease: u64, random: u128) -> Lease {
    std::thread::scope(|scope| {
        let acquire = scope.spawn(|| client.acquire(Acquire::named("weights").unwrap()));
        fake.grant(vec![grant(lease, info(random, "weights"))]);
        acquire.join().unwrap().unwrap()
    })
}

#[test]
fn a_lease_tells_where_its_buffer_is() {
    let (client, mut fake, _) = connected();
    let lease = acquire(&client, &mut fake, 1, 1);
    assert_eq!((lease.ptr(), lease.bytes()), (0x7000_0000 + 256, 4096));
    assert_eq!((lease.info().id, lease.id().0, lease.state()), (id(1), 1, LeaseState::Held));
}

#[test]
fn a_dropped_lease_is_released_once_and_its_mapping_serves_the_next() {
    let (client, mut fake, pretender) = connected();
    let first = acquire(&client, &mut fake, 1, 1);
    let ptr = first.ptr();
    drop(first);
    assert_eq!(fake.hear_release(), [1]);
    let second = acquire(&client, &mut fake, 2, 1);
    assert_eq!((second.ptr(), pretender.made.load(Ordering::SeqCst)), (ptr, 1));
    std::thread::scope(|scope| {
        let release = scope.spawn(|| second.release().unwrap());
        assert_eq!(fake.hear_release(), [2]);
        release.join().unwrap();
    });
    assert!(fake.is_quiet(), "a released lease must not be released again");
}

#[test]
fn a_buffer_that_cannot_be_mapped_leaves_no_lease() {
    let (client, mut fake, pretender) = connected();
    std::thread::scope(|scope| {
        let acquire = scope.spawn(|| client.acquire(Acquire::id(id(1))).unwrap_err());
        fake.grant(vec![grant(5, info(1, "bad"))]);
        assert_eq!(acquire.join().unwrap().code(), Some(Code::SizeMismatch));
    });
    assert_eq!(fake.hear_release(), [5]);
    assert_eq!(pretender.live.load(Ordering::SeqCst), 0);
}

#[test]
fn many_are_acquired_at_once_each_with_its_own_outcome() {
    let (client, mut fake, _) = connected();
    let wanted: Vec<Acquire> = ["a", "bad", "c"].map(|name| Acquire::named(name).unwrap()).into();
    let outcomes = std::thread::scope(|scope| {
        let acquire = scope.spawn(|| client.acquire_many(&wanted).unwrap());
        let refused = Err(Refusal::new(Code::NotFound));
        fake.grant(vec![grant(1, info(1, "a")), grant(2, info(2, "bad")), refused]);
        acquire.join().unwrap()
    });
    let codes: Vec<_> = outcomes.iter().map(|o| o.as_ref().err().and_then(|e| e.code())).collect();
    assert_eq!(codes, [None, Some(Code::SizeMismatch), Some(Code::NotFound)]);
    assert_eq!(outcomes[2].as_ref().unwrap_err().to_string(), "acquire c: refused with NOT_FOUND");
    assert_eq!(fake.hear_release(), [2]);
}

#[test]
fn very_many_are_asked_for_a_few_packets_ahead() {
    let (client, mut fake, _) = connected();
    let wanted: Vec<Acquire> = (0..20 * 64).map(|n| Acquire::id(id(n))).collect();
    std::thread::scope(|scope| {
        let acquire = scope.spawn(|| client.acquire_many(&wanted).unwrap());
        let mut asked = VecDeque::new();
        for packet in 0..20 {
            while asked.len() < limits::PACKETS_AHEAD && packet + asked.len() < 20 {
                let (request, body) = fake.expect();
                let ClientBody::Acquire { items, .. } = body else { panic!("{body:?}") };
                asked.push_back((request, items.len()));
            }
            until("the answer is waited for", || client.shared.connection.somebody_reads());
            assert!(fake.is_quiet(), "nothing more is asked for before an answer");
            let (request, count) = asked.pop_front().unwrap();
            fake.say(request, BrokerBody::Acquired(vec![Err(Refusal::new(Code::NotFound)); count]));
        }
        assert_eq!(acquire.join().unwrap().len(), wanted.len());
    });
}

#[test]
fn an_idle_client_unmaps_what_ends() {
    let (client, mut fake, pretender) = connected();
    drop(acquire(&client, &mut fake, 1, 1));
    fake.hear_release();
    assert_eq!(pretender.live.load(Ordering::SeqCst), 1);
    fake.notice(Event::Retiring { id: id(1), deadline: Duration::from_secs(5) });
    until("the unmapping", || pretender.live.load(Ordering::SeqCst) == 0);
}

#[test]
fn news_are_read_while_the_driver_takes_long_to_unmap() {
    let (client, mut fake, pretender) = connected();
    drop(acquire(&client, &mut fake, 1, 1));
    fake.hear_release();
    let lease = acquire(&client, &mut fake, 2, 2);
    let blocked = pretender.blocked.lock().unwrap();
    fake.notice(Event::Gone { id: id(1), reason: EndReason::OwnerDied });
    fake.notice(Event::Retiring { id: id(2), deadline: Duration::from_secs(5) });
    until("the news", || lease.is_retiring());
    // The one after that too, when what was first begun to be unmapped is in the driver.
    fake.notice(Event::Orphaned { id: id(2), reason: EndReason::OwnerDied, leases: 1 });
    until("the news", || lease.state() == LeaseState::Ended(EndReason::OwnerDied));
    assert_eq!(pretender.live.load(Ordering::SeqCst), 2);
    drop(blocked);
    until("the unmapping", || pretender.live.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_lease_is_given_back_on_a_stream_while_the_driver_takes_long_to_unmap() {
    let (client, mut fake, pretender) = connected();
    drop(acquire(&client, &mut fake, 1, 1));
    fake.hear_release();
    let leases = [acquire(&client, &mut fake, 2, 2), acquire(&client, &mut fake, 3, 3)];
    let blocked = pretender.blocked.lock().unwrap();
    fake.notice(Event::Gone { id: id(1), reason: EndReason::OwnerDied });
    // This one is to be unmapped itself, and the other one stays.
    fake.notice(Event::Retiring { id: id(2), deadline: Duration::from_secs(5) });
    until("the news", || leases[0].is_retiring());
    let bin = client.shared.memory.orders().bin();
    for (lease, number) in leases.into_iter().zip([2, 3]) {
        let (held, ordered) = lease.into_parts();
        come_to_end(Box::new((held, ordered, bin.on_stream().unwrap())), bin);
        assert_eq!(fake.hear_release(), [number]);
    }
    assert_eq!(pretender.live.load(Ordering::SeqCst), 3);
    drop(blocked);
    until("the unmapping", || pretender.live.load(Ordering::SeqCst) == 1);
    assert!(fake.is_quiet(), "a released lease must not be released again");
}

#[test]
fn a_busy_client_unmaps_what_ends_too() {
    let (client, mut fake, pretender) = connected();
    drop(acquire(&client, &mut fake, 1, 1));
    fake.hear_release();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.acquire(Acquire::id(id(9)).wait(Duration::from_secs(60))));
        let (request, _) = fake.expect();
        fake.notice(Event::Gone { id: id(1), reason: EndReason::OwnerDied });
        until("the unmapping", || pretender.live.load(Ordering::SeqCst) == 0);
        fake.say(request, BrokerBody::Acquired(vec![Err(Refusal::new(Code::WaitTimeout))]));
        assert_eq!(waiting.join().unwrap().unwrap_err().code(), Some(Code::WaitTimeout));
    });
}

#[test]
fn a_notice_that_a_waiting_thread_reads_reaches_the_listener_in_its_poll() {
    let (client, mut fake, pretender) = connected();
    for round in 1..=20 {
        drop(acquire(&client, &mut fake, round, round.into()));
        fake.hear_release();
        assert_eq!(pretender.live.load(Ordering::SeqCst), 1);
        until("the listener polls", || client.shared.connection.listener_polls());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.acquire(Acquire::id(id(999)).wait(PATIENCE)));
            let (request, _) = fake.expect();
            until("the waiting thread reads", || client.shared.connection.somebody_reads());
            fake.notice(Event::Gone { id: id(round.into()), reason: EndReason::OwnerDied });
            until("the unmapping", || pretender.live.load(Ordering::SeqCst) == 0);
            fake.say(request, BrokerBody::Acquired(vec![Err(Refusal::new(Code::WaitTimeout))]));
            assert_eq!(waiting.join().unwrap().unwrap_err().code(), Some(Code::WaitTimeout));
        });
    }
}

#[test]
fn a_release_that_finds_no_room_in_time_is_sent_later() {
    let (client, mut fake, pretender) = connected();
    let lease = acquire(&client, &mut fake, 5_000, 1);
    for other in 0..2_000 {
        client.shared.connection.release_later(LeaseId(other));
    }
    let error = lease.release().unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { after, .. } if after == limits::SEND), "{error:?}");
    assert_eq!(pretender.live.load(Ordering::SeqCst), 1, "the mapping is cached, as after any release");
    let mut heard = Vec::new();
    while heard.len() <= 2_000 {
        heard.extend(fake.hear_release());
    }
    assert!(heard.iter().copied().eq((0..2_000).chain([5_000])), "each once, and no cancel");
}

#[test]
fn a_held_lease_learns_that_its_buffer_ends_and_unmaps_before_it_is_given_back() {
    let (client, mut fake, pretender) = connected();
    let lease = acquire(&client, &mut fake, 1, 1);
    fake.notice(Event::Retiring { id: id(1), deadline: Duration::from_secs(5) });
    until("the notice", || lease.is_retiring());
    assert!(matches!(lease.state(), LeaseState::Retiring(_)));
    fake.notice(Event::Orphaned { id: id(1), reason: EndReason::Retired, leases: 1 });
    until("the end", || lease.state() == LeaseState::Ended(EndReason::Retired));
    assert_eq!(pretender.live.load(Ordering::SeqCst), 1);
    drop(lease);
    assert_eq!(pretender.live.load(Ordering::SeqCst), 0);
    assert_eq!(fake.hear_release(), [1]);
}

#[test]
fn an_end_told_right_behind_the_grant_is_not_missed() {
    let (client, mut fake, pretender) = connected();
    let lease = std::thread::scope(|scope| {
        let acquire = scope.spawn(|| client.acquire(Acquire::id(id(1))));
        let (request, _) = fake.expect();
        fake.say(request, BrokerBody::Acquired(vec![grant(1, info(1, "w"))]));
        fake.notice(Event::Gone { id: id(1), reason: EndReason::OwnerClosed });
        acquire.join().unwrap().unwrap()
    });
    until("the end", || lease.state() == LeaseState::Ended(EndReason::OwnerClosed));
    drop(lease);
    assert_eq!(pretender.live.load(Ordering::SeqCst), 0);
}

#[test]
fn a_lease_outlives_its_connection() {
    let (client, mut fake, pretender) = connected();
    let held = acquire(&client, &mut fake, 1, 1);
    drop(acquire(&client, &mut fake, 2, 2));
    fake.hear_release();
    fake.hang_up();
    until("the loss", || held.state() == LeaseState::Lost);
    until("the unmapping of what is idle", || pretender.live.load(Ordering::SeqCst) == 1);
    drop(client);
    assert_eq!(pretender.live.load(Ordering::SeqCst), 1);
    drop(held);
    assert_eq!(pretender.live.load(Ordering::SeqCst), 0);
}

#[test]
fn the_connection_lives_as_long_as_what_came_over_it() {
    let (client, mut fake, pretender) = connected();
    let lease = acquire(&client, &mut fake, 1, 1);
    drop(client);
    assert!(fake.is_quiet());
    drop(lease);
    assert!(matches!(fake.expect().1, ClientBody::Release(leases) if leases.len() == 1));
    assert!(fake.heard().is_none(), "the last one out ends the connection");
    assert_eq!(pretender.live.load(Ordering::SeqCst), 0);
}

#[test]
fn closing_ends_the_connection_at_once() {
    let (client, mut fake, _) = connected();
    let lease = acquire(&client, &mut fake, 1, 1);
    client.close();
    assert!(fake.heard().is_none());
    assert_eq!(lease.state(), LeaseState::Lost);
}

#[test]
fn no_descriptor_stays_open() {
    let (client, mut fake, _) = connected();
    let file = tempfile::NamedTempFile::new().unwrap();
    for lease in 0..20 {
        std::thread::scope(|scope| {
            let acquire = scope.spawn(|| client.acquire(Acquire::id(id(1))));
            fake.grant(vec![grant_of(lease, info(1, "w"), file.as_file())]);
            drop(acquire.join().unwrap().unwrap());
        });
        fake.hear_release();
    }
    assert_eq!(open_copies(file.path()), 1, "only the file's own descriptor");
}

/// Descriptors of this process that are open on this file.
fn open_copies(path: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|it| it == path)).count()
}

#[test]
fn threads_that_acquire_at_once_get_each_their_own() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 200;
    let (client, mut fake, pretender) = connected();
    let node = std::thread::spawn(move || {
        let (mut next, mut live) = (0, std::collections::HashSet::new());
        while let Some(message) = fake.heard() {
            match message.body {
                ClientBody::Acquire { items, .. } => {
                    let gpu_handoff_protocol::message::Target::Id(id) = items[0].target else { panic!() };
                    next += 1;
                    live.insert(next);
                    fake.say(message.request, BrokerBody::Acquired(vec![grant(next, info(id.random, "w"))]));
                }
                ClientBody::Release(leases) => {
                    assert!(
                        leases.iter().all(|lease| live.remove(&lease.0)),
                        "released twice or never given"
                    );
                    fake.say(message.request, BrokerBody::Released(vec![Ok(()); leases.len()]));
                }
                other => panic!("{other:?}"),
            }
        }
        (next, live.len())
    });
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let wanted = id(u128::from(thread % 2));
                    let lease = client.acquire(Acquire::id(wanted)).unwrap();
                    assert_eq!(lease.info().id, wanted);
                    if round % 2 == 0 { lease.release().unwrap() } else { drop(lease) }
                }
            });
        }
    });
    drop(client);
    assert_eq!(node.join().unwrap(), (THREADS * ROUNDS, 0));
    assert_eq!(pretender.live.load(Ordering::SeqCst), 0);
}
