//! The rules of the conversation: numbers, order, parts, notices, ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Event, PublishedAs, Target, Wanted};
use gpu_handoff_protocol::{Code, Refusal};

use super::fake::{Door, Fake, connected, grant, until, welcome};
use super::{id, info};
use crate::{Acquire, Buffer, ClientError, ExportedFd, limits};

pub(super) fn exported() -> Arc<ExportedFd> {
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    Arc::new(ExportedFd { fd, bytes: 2 << 20, device: gpu_handoff_cuda::DeviceUuid::from_bytes([1; 16]) })
}

pub(super) fn named(name: &str) -> Acquire {
    Acquire::named(name).unwrap()
}

#[test]
fn nobody_at_the_socket_is_an_error_with_a_remedy() {
    let error = crate::Client::builder().socket("/nowhere/app.sock").connect().unwrap_err();
    assert!(matches!(&error, ClientError::Connect { path, .. } if path.ends_with("app.sock")));
    assert!(error.remedy().unwrap().contains("gpu-handoff.io/group"));
}

#[test]
fn a_refused_hello_says_why_with_or_without_its_number() {
    for number in [None, Some(0)] {
        let (client, ..) = Door::new().greet(|fake, request| {
            fake.say(number.unwrap_or(request), BrokerBody::Refused(Refusal::new(Code::TooManyConnections)));
            fake.hang_up();
        });
        let error = client.unwrap_err();
        assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");
        assert_eq!(error.code(), Some(Code::TooManyConnections));
    }
}

#[test]
fn a_node_of_another_major_version_is_refused() {
    let (client, ..) = Door::new().greet(|fake, request| {
        let strange = gpu_handoff_protocol::message::Welcome { version: (9, 0), ..welcome() };
        fake.say(request, BrokerBody::Welcome(strange));
    });
    assert_eq!(client.unwrap_err().code(), Some(Code::UnsupportedVersion));
}

#[test]
fn a_silent_node_is_given_up() {
    let door = Door::new();
    let error = door.builder().timeout(Duration::from_millis(20)).connect().unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
}

#[test]
fn answers_may_come_in_any_order() {
    let (client, mut fake, _) = connected();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| client.acquire(named("first")).unwrap().info().facts.name.to_string());
        let (one, _) = fake.expect();
        let second = scope.spawn(|| client.acquire(named("second")).unwrap().info().facts.name.to_string());
        let (two, _) = fake.expect();
        assert_ne!(one, two);
        fake.say(two, BrokerBody::Acquired(vec![grant(2, info(2, "second"))]));
        assert_eq!(second.join().unwrap(), "second");
        fake.notice(Event::SnapshotDone);
        fake.say(one, BrokerBody::Acquired(vec![grant(1, info(1, "first"))]));
        assert_eq!(first.join().unwrap(), "first");
    });
}

#[test]
fn whoever_hears_that_its_buffer_is_about_to_come_waits_on() {
    for polls in [false, true] {
        let door = Door::new();
        let welcomed = |fake: &Fake, request| fake.say(request, BrokerBody::Welcome(welcome()));
        let (client, mut fake, _) = door.greet_as(door.builder().busy_poll(polls), welcomed);
        let client = client.unwrap();
        std::thread::scope(|scope| {
            let lease = scope.spawn(|| client.acquire(named("w")).unwrap().info().facts.name.to_string());
            let (request, _) = fake.expect();
            fake.say(request, BrokerBody::Announced);
            let told = Instant::now();
            // Longer than it polls.
            while told.elapsed() < crate::limits::AWAKE * 3 {
                std::thread::yield_now();
            }
            fake.say(request, BrokerBody::Announced);
            fake.say(request, BrokerBody::Acquired(vec![grant(1, info(1, "w"))]));
            assert_eq!(lease.join().unwrap(), "w");
        });
    }
}

#[test]
fn an_answer_in_several_packets_is_joined() {
    let (client, mut fake, _) = connected();
    let many: Vec<Buffer<'_>> = (0..60)
        .map(|n| Buffer::named(&format!("tensor-{n}")).unwrap().exported(exported()).metadata([7; 100]))
        .collect();
    std::thread::scope(|scope| {
        let publish = scope.spawn(|| client.publish_many(many).unwrap());
        let (request, body) = fake.expect();
        let ClientBody::Publish(items) = body else { panic!("{body:?}") };
        assert_eq!(items.len(), 60);
        // Refusals this long make the answer larger than one packet.
        let long = || {
            Refusal::new(Code::QuotaBytes).compared_with(&"w".repeat(380), "x".repeat(380), "y".repeat(380))
        };
        let outcomes = (0..60).map(|n| {
            if n == 5 {
                Ok(PublishedAs { id: id(5), generation: 3, receipt: None, checked: None })
            } else {
                Err(long())
            }
        });
        fake.say(request, BrokerBody::Published(outcomes.collect()));
        let published = publish.join().unwrap();
        assert_eq!(published.len(), 60);
        for (n, outcome) in published.iter().enumerate() {
            match outcome {
                Ok(buffer) => assert_eq!((n, buffer.id(), buffer.generation()), (5, id(5), 3)),
                Err(error) => assert_eq!(error.code(), Some(Code::QuotaBytes)),
            }
        }
    });
}

#[test]
fn what_cannot_be_exported_does_not_hold_up_the_rest() {
    let (client, mut fake, _) = connected();
    let good = Buffer::named("good").unwrap().exported(exported()).range(4096, 100);
    let bad = Buffer::named("bad").unwrap();
    let beyond = good.clone().range(2 << 20, 1);
    std::thread::scope(|scope| {
        let publish = scope.spawn(|| client.publish_many([bad, good, beyond]).unwrap());
        let (request, body) = fake.expect();
        let ClientBody::Publish(items) = body else { panic!("{body:?}") };
        assert_eq!((items[0].facts.offset, items[0].facts.size), (4096, 100));
        fake.say(
            request,
            BrokerBody::Published(vec![Ok(PublishedAs {
                id: id(1),
                generation: 1,
                receipt: None,
                checked: None,
            })]),
        );
        let outcomes = publish.join().unwrap();
        assert_eq!(outcomes[0].as_ref().unwrap_err().code(), Some(Code::NotExportable));
        assert_eq!(outcomes[1].as_ref().unwrap().name().as_str(), "good");
        assert_eq!(outcomes[2].as_ref().unwrap_err().code(), Some(Code::SizeMismatch));
    });
}

#[test]
fn a_retire_gives_the_leases_left_or_the_refusal() {
    let (client, mut fake, _) = connected();
    std::thread::scope(|scope| {
        for (outcome, code) in [(Ok(3), None), (Err(Refusal::new(Code::NotFound)), Some(Code::NotFound))] {
            let publish =
                scope.spawn(|| client.publish(Buffer::named("w").unwrap().exported(exported())).unwrap());
            let (request, _) = fake.expect();
            fake.say(
                request,
                BrokerBody::Published(vec![Ok(PublishedAs {
                    id: id(1),
                    generation: 1,
                    receipt: None,
                    checked: None,
                })]),
            );
            let published = publish.join().unwrap();
            let retire = scope.spawn(|| published.retire(Duration::from_secs(5)));
            let (request, body) = fake.expect();
            let five = Duration::from_secs(5);
            assert!(
                matches!(body, ClientBody::Retire { id: it, deadline } if it == id(1) && deadline == five)
            );
            fake.say(request, BrokerBody::Retired(outcome.clone()));
            let retired = retire.join().unwrap();
            assert_eq!(retired.as_ref().ok(), outcome.as_ref().ok());
            assert_eq!(retired.err().and_then(|error| error.code()), code);
        }
    });
}

#[test]
fn times_over_their_limit_are_refused_before_they_are_sent() {
    let (client, mut fake, _) = connected();
    let error = client.acquire(named("w").wait(Duration::from_secs(601))).unwrap_err();
    assert_eq!(error.code(), Some(Code::TooLarge));
    assert!(fake.is_quiet());
}

#[test]
fn a_lost_connection_wakes_all_that_wait() {
    let (client, mut fake, _) = connected();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| client.acquire(named("w").wait(Duration::from_secs(60))).unwrap_err()))
            .collect();
        for _ in 0..3 {
            fake.expect();
        }
        fake.say(0, BrokerBody::Refused(Refusal::new(Code::ShuttingDown)));
        for thread in waiting {
            let error = thread.join().unwrap();
            assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error:?}");
            assert_eq!(error.code(), Some(Code::ShuttingDown));
        }
    });
    assert!(client.is_closed());
    assert!(matches!(client.watch(), Err(ClientError::ConnectionLost { .. })));
}

#[test]
fn a_hang_up_is_noticed_while_idle() {
    let (client, fake, _) = connected();
    fake.hang_up();
    until("the end", || client.is_closed());
    assert!(matches!(client.acquire(named("w")), Err(ClientError::ConnectionLost { source: None, .. })));
}

#[test]
fn a_packet_that_cannot_be_read_ends_the_connection() {
    let (client, mut fake, _) = connected();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.acquire(named("w")).unwrap_err());
        fake.expect();
        fake.babble();
        assert!(matches!(waiting.join().unwrap(), ClientError::Protocol { .. }));
    });
    assert!(fake.heard().is_none(), "the client must end what it cannot read");
}

#[test]
fn a_late_grant_is_given_back() {
    let (client, mut fake, pretender) = connected();
    let connection = &client.shared.connection;
    let wanted = Wanted { target: Target::Id(id(1)), newer_than: 0 };
    let body = ClientBody::Acquire { items: vec![wanted], wait: Duration::ZERO, device: None };
    let error = connection.call(body, Instant::now() + Duration::from_millis(10)).unwrap_err();
    assert!(matches!(error, crate::error::Fault::TimedOut(_)), "{error:?}");
    let (request, _) = fake.expect();
    let (_, cancel) = fake.expect();
    assert!(matches!(cancel, ClientBody::Cancel { request: it } if it == request));
    fake.say(request, BrokerBody::Acquired(vec![grant(41, info(1, "w")), grant(42, info(1, "w"))]));
    assert_eq!(fake.hear_release(), [41, 42]);
    assert_eq!(pretender.made.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// Hears that a buffer is revoked.
fn expect_revoked(fake: &mut Fake, random: u128) {
    let (request, body) = fake.expect();
    let ClientBody::Retire { id: it, deadline: Duration::ZERO } = body else { panic!("{body:?}") };
    assert_eq!(it, id(random));
    fake.say(request, BrokerBody::Retired(Ok(0)));
}

#[test]
fn what_is_published_too_late_is_revoked() {
    let (client, mut fake, _) = connected();
    let ready = client.shared.exporter.export(&Buffer::named("w").unwrap().exported(exported())).unwrap();
    let body = ClientBody::Publish(vec![ready.publication]);
    let soon = Instant::now() + Duration::from_millis(10);
    let error = client.shared.connection.call(body, soon).unwrap_err();
    assert!(matches!(error, crate::error::Fault::TimedOut(_)), "{error:?}");
    let (request, _) = fake.expect();
    assert!(matches!(fake.expect().1, ClientBody::Cancel { request: it } if it == request));
    let published = |random| Ok(PublishedAs { id: id(random), generation: 1, receipt: None, checked: None });
    let outcomes = vec![published(1), Err(Refusal::new(Code::QuotaBytes)), published(2)];
    fake.say(request, BrokerBody::Published(outcomes));
    expect_revoked(&mut fake, 1);
    expect_revoked(&mut fake, 2);
}

#[test]
fn when_a_later_packet_of_publications_fails_the_earlier_ones_are_revoked() {
    let (client, mut fake, _) = connected();
    let many = vec![Buffer::named("w").unwrap().exported(exported()); 65];
    std::thread::scope(|scope| {
        let publish = scope.spawn(|| client.publish_many(many).unwrap_err());
        let (request, _) = fake.expect();
        let mut outcomes: Vec<_> = (0..64).map(|_| Err(Refusal::new(Code::QuotaBytes))).collect();
        outcomes[7] = Ok(PublishedAs { id: id(7), generation: 1, receipt: None, checked: None });
        fake.say(request, BrokerBody::Published(outcomes));
        let (request, _) = fake.expect();
        fake.say(request, BrokerBody::Refused(Refusal::new(Code::Malformed)));
        expect_revoked(&mut fake, 7);
        assert_eq!(publish.join().unwrap().code(), Some(Code::Malformed));
    });
}

#[test]
fn a_time_without_end_is_a_long_one() {
    let door = Door::new();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| door.builder().timeout(Duration::MAX).connect().unwrap());
        let mut fake = door.accept();
        let (request, _) = fake.expect();
        fake.say(request, BrokerBody::Welcome(welcome()));
        let mut watch = client.join().unwrap().watch().unwrap();
        let (request, _) = fake.expect();
        let waiting = scope.spawn(move || watch.recv_timeout(Duration::MAX));
        fake.say(request, BrokerBody::Event(Event::SnapshotDone));
        assert_eq!(waiting.join().unwrap().unwrap(), Some(Event::SnapshotDone));
    });
}

#[test]
fn a_watch_gives_the_snapshot_then_changes() {
    let (client, mut fake, _) = connected();
    let mut watch = client.watch().unwrap();
    let (request, body) = fake.expect();
    assert!(matches!(body, ClientBody::Watch));
    assert_eq!(watch.try_recv().unwrap(), None);
    let there = Event::Appeared(Arc::new(info(1, "w")));
    for event in [there.clone(), Event::SnapshotDone] {
        fake.say(request, BrokerBody::Event(event));
    }
    assert_eq!(watch.next().unwrap().unwrap(), there);
    assert_eq!(watch.next().unwrap().unwrap(), Event::SnapshotDone);
    drop(watch);
    let (_, body) = fake.expect();
    assert!(matches!(body, ClientBody::Cancel { request: it } if it == request));
}

#[test]
fn an_unread_watch_overflows_and_ends() {
    let (client, mut fake, _) = connected();
    let mut watch = client.watch().unwrap();
    let (request, _) = fake.expect();
    for _ in 0..=limits::WATCH_EVENTS {
        fake.say(request, BrokerBody::Event(Event::SnapshotDone));
    }
    // The connection works on meanwhile; its answer says that all before it was read.
    let error = std::thread::scope(|scope| {
        let other = scope.spawn(|| client.acquire(named("w")).unwrap_err());
        let (request, _) = fake.expect();
        fake.say(request, BrokerBody::Acquired(vec![Err(Refusal::new(Code::NotFound))]));
        other.join().unwrap()
    });
    assert_eq!(error.code(), Some(Code::NotFound));
    assert!(watch.next().unwrap().is_ok());
    fake.say(request, BrokerBody::Event(Event::Appeared(Arc::new(info(1, "after-the-gap")))));
    for _ in 1..limits::WATCH_EVENTS {
        assert_eq!(watch.next().unwrap().unwrap(), Event::SnapshotDone);
    }
    assert_eq!(watch.next().unwrap().unwrap_err().code(), Some(Code::WatchOverflow));
    assert!(watch.next().is_none(), "an error is the end");
    drop(watch);
    assert!(matches!(fake.expect().1, ClientBody::Cancel { request: it } if it == request));
}

#[test]
fn a_node_that_answers_for_more_than_was_asked_is_not_believed() {
    let (client, mut fake, _) = connected();
    std::thread::scope(|scope| {
        let acquire = scope.spawn(|| client.acquire(named("w")).unwrap_err());
        fake.grant(vec![grant(1, info(1, "w")), grant(2, info(1, "w"))]);
        assert!(matches!(acquire.join().unwrap(), ClientError::Protocol { .. }));
    });
    assert!(fake.heard().is_none(), "with the connection its leases end");
}
