//! Sets against a node that the test plays.

use std::sync::atomic::Ordering;

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Grant, PublishedAs};
use gpu_handoff_protocol::{Code, Refusal, SetInfo, SetPart};

use super::conversation::exported;
use super::fake::{Fake, connected, grant};
use super::{id, info};
use crate::{AcquireSet, Buffer, Client, ClientError, LeaseSet, PublishedSet, limits};

fn buffers(count: usize) -> Vec<Buffer<'static>> {
    (0..count).map(|n| Buffer::named(&format!("layer-{n}")).unwrap().exported(exported())).collect()
}

/// Hears a part of a set, and gives these outcomes.
fn hear_part(fake: &mut Fake, outcome: impl Fn(u32) -> Result<(), Refusal>) -> (SetPart, u32) {
    let (request, body) = fake.expect();
    let ClientBody::PublishSet { part, items } = body else { panic!("no part of a set: {body:?}") };
    let count = u32::try_from(items.len()).unwrap();
    let taken = |n| PublishedAs { id: id(u128::from(n) + 1), generation: 9, receipt: None, checked: None };
    let outcomes = (part.first..part.first + count).map(|n| outcome(n).map(|()| taken(n))).collect();
    fake.say(request, BrokerBody::Published(outcomes));
    (part, count)
}

fn publish(
    client: &Client,
    buffers: Vec<Buffer<'_>>,
    node: impl FnOnce(),
) -> Result<PublishedSet, ClientError> {
    std::thread::scope(|scope| {
        let publish = scope.spawn(|| client.publish_set("model", buffers));
        node();
        publish.join().unwrap()
    })
}

#[test]
fn three_hundred_buffers_go_in_parts_and_are_one_version() {
    let (client, mut fake, _) = connected();
    let set = publish(&client, buffers(300), || {
        let mut come = 0;
        while come < 300 {
            let (part, count) = hear_part(&mut fake, |_| Ok(()));
            assert_eq!((part.name.as_str(), part.total, part.first), ("model", 300, come));
            come += count;
        }
    });
    let set = set.unwrap();
    assert_eq!((set.name().as_str(), set.generation(), set.buffers().len()), ("model", 9, 300));
    assert_eq!((set.buffers()[299].name().as_str(), set.buffers()[299].id()), ("layer-299", id(300)));
}

#[test]
fn the_buffer_that_broke_the_set_is_named() {
    let (client, mut fake, _) = connected();
    let error = publish(&client, buffers(3), || {
        hear_part(&mut fake, |n| {
            Err(Refusal::new(if n == 1 { Code::NotGpuMemory } else { Code::SetBroken }))
        });
    })
    .unwrap_err();
    assert_eq!(error.code(), Some(Code::NotGpuMemory));
    assert!(error.to_string().starts_with("publish set model, its buffer 1, layer-1: refused"), "{error}");
    assert!(fake.is_quiet(), "the node has dropped it by itself");
}

#[test]
fn a_buffer_that_cannot_be_exported_has_the_node_drop_what_it_took() {
    let (client, mut fake, _) = connected();
    let mut many = buffers(64);
    many.push(Buffer::named("nothing").unwrap());
    let error = publish(&client, many, || {
        hear_part(&mut fake, |_| Ok(()));
        let (part, _) = hear_part(&mut fake, |_| Err(Refusal::new(Code::SetBroken)));
        assert_ne!(part.first, 64, "it does not follow");
    })
    .unwrap_err();
    assert_eq!(error.code(), Some(Code::NotExportable));
    assert!(error.to_string().contains("its buffer 64, nothing"), "{error}");
}

fn acquire_set(
    client: &Client,
    fake: &mut Fake,
    answer: impl FnOnce() -> BrokerBody,
) -> Result<LeaseSet, ClientError> {
    std::thread::scope(|scope| {
        let wanted = AcquireSet::named("model").unwrap().newer_than(8);
        let acquire = scope.spawn(|| client.acquire_set(wanted));
        let (request, body) = fake.expect();
        assert!(
            matches!(&body, ClientBody::AcquireSet { newer_than: 8, device: Some(super::DEVICE), .. }),
            "{body:?}"
        );
        fake.say(request, answer());
        acquire.join().unwrap()
    })
}

fn all(names: &[&str]) -> BrokerBody {
    let total = u32::try_from(names.len()).unwrap();
    let set = SetInfo { name: "model".parse().unwrap(), generation: 9, total };
    let grants: Result<Vec<Grant>, _> =
        names.iter().zip(1..).map(|(name, n)| grant(n, info(u128::from(n), name))).collect();
    BrokerBody::AcquiredSet { set, grants: grants.unwrap() }
}

#[test]
fn all_buffers_of_a_set_are_leased_and_found_by_name() {
    let (client, mut fake, pretender) = connected();
    let names: Vec<String> = (0..100).map(|n| format!("layer-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let set = acquire_set(&client, &mut fake, || all(&names)).unwrap();
    assert_eq!((set.leases().len(), set.generation()), (100, 9));
    assert_eq!(set.get("layer-42").unwrap().info().id, id(43));
    assert!(set.get("layer-100").is_none());
    assert_eq!(pretender.live.load(Ordering::SeqCst), 100);
    drop(set);
    let mut given_back = Vec::new();
    while given_back.len() < 100 {
        given_back.extend(fake.hear_release());
    }
    given_back.sort_unstable();
    assert_eq!(given_back, (1..=100).collect::<Vec<_>>());
}

#[test]
fn one_buffer_that_cannot_be_mapped_leaves_no_lease_of_the_set() {
    let (client, mut fake, _) = connected();
    let error = acquire_set(&client, &mut fake, || all(&["a", "bad", "c"])).unwrap_err();
    assert_eq!(error.code(), Some(Code::SizeMismatch));
    let mut given_back = Vec::new();
    while given_back.len() < 3 {
        given_back.extend(fake.hear_release());
    }
    given_back.sort_unstable();
    assert_eq!(given_back, [1, 2, 3]);
}

#[test]
fn a_set_that_is_not_whole_ends_the_connection() {
    let (client, mut fake, _) = connected();
    let refused = Refusal::new(Code::NotFound).compared_with("set", "model", "none");
    let error = acquire_set(&client, &mut fake, || BrokerBody::Refused(refused)).unwrap_err();
    assert_eq!((error.code(), client.is_closed()), (Some(Code::NotFound), false));
    let error = acquire_set(&client, &mut fake, || BrokerBody::Acquired(Vec::new())).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    assert!(client.is_closed());
}

#[test]
fn leases_of_a_set_are_given_back_together() {
    let (client, mut fake, pretender) = connected();
    let names: Vec<String> = (0..100).map(|n| format!("layer-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let set = acquire_set(&client, &mut fake, || all(&names)).unwrap();
    std::thread::scope(|scope| {
        let release = scope.spawn(|| set.release());
        let mut heard = |count| {
            let (request, body) = fake.expect();
            let ClientBody::Release(leases) = body else { panic!("{body:?}") };
            assert_eq!(leases.len(), count);
            request
        };
        // Both before either is answered.
        let requests = [heard(64), heard(36)];
        let mut outcomes = vec![Ok(()); 64];
        outcomes[7] = Err(Refusal::new(Code::NotLeased));
        fake.say(requests[0], BrokerBody::Released(outcomes));
        fake.say(requests[1], BrokerBody::Released(vec![Ok(()); 36]));
        let error = release.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "release set model: refused with NOT_LEASED");
    });
    assert!(fake.is_quiet(), "none is released twice");
    drop(client);
    assert_eq!(pretender.live.load(Ordering::SeqCst), 0);
}

#[test]
fn buffers_of_a_set_are_retired_many_at_a_time() {
    let (client, mut fake, _) = connected();
    let set = publish(&client, buffers(100), || {
        hear_part(&mut fake, |_| Ok(()));
        hear_part(&mut fake, |_| Ok(()));
    });
    let set = set.unwrap();
    std::thread::scope(|scope| {
        let retire = scope.spawn(|| set.retire(std::time::Duration::ZERO));
        let mut heard = || {
            let (request, body) = fake.expect();
            assert!(matches!(body, ClientBody::Retire { .. }), "{body:?}");
            request
        };
        let mut open: std::collections::VecDeque<_> = (0..limits::RETIRES_AHEAD).map(|_| heard()).collect();
        let mut answered = 0;
        while let Some(request) = open.pop_front() {
            let outcome = if answered == 70 { Err(Refusal::new(Code::Retired)) } else { Ok(2) };
            fake.say(request, BrokerBody::Retired(outcome));
            answered += 1;
            if answered + open.len() < 100 {
                let (request, body) = fake.expect();
                assert!(matches!(body, ClientBody::Retire { .. }), "{body:?}");
                open.push_back(request);
            }
        }
        assert_eq!(retire.join().unwrap().unwrap_err().code(), Some(Code::Retired));
        assert_eq!(answered, 100);
    });
}
