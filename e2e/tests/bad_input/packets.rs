//! Bytes that are no message, and messages that do not belong where they come.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_e2e::rough::{Client, Shared, Sidecar, hello};
use gpu_handoff_protocol::codec::{encode_client, encode_sidecar};
use gpu_handoff_protocol::limits::{HELLO_MS, MESSAGE_BYTES, MESSAGE_ITEMS};
use gpu_handoff_protocol::message::{
    BrokerBody, ClientBody, ClientMessage, SidecarBody, SidecarMessage, Target, Wanted,
};
use gpu_handoff_protocol::{BootTag, BufferId, Code, LeaseId, PROTOCOL_VERSION};

use crate::scene::{Scene, Stage, expect_code};

/// Bytes that look random and are the same in every run.
fn garbage(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn bytes_of(body: ClientBody) -> Vec<u8> {
    encode_client(&ClientMessage { request: 1, body }).bytes
}

fn sidecar_hello() -> Vec<u8> {
    let body = SidecarBody::Hello { version: PROTOCOL_VERSION };
    encode_sidecar(SidecarMessage { request: 1, body }).bytes
}

fn null() -> anyhow::Result<Shared> {
    Ok(Arc::new(File::open("/dev/null")?.into()))
}

fn nothing_such() -> BufferId {
    BufferId { boot: BootTag(1), random: 2 }
}

fn named(name: &str) -> anyhow::Result<Wanted> {
    Ok(Wanted { target: Target::Name(name.parse()?), newer_than: 0 })
}

/// Sends bytes as the first packet of an application, and expects the refusal.
fn first(stage: &Stage, bytes: Vec<u8>, code: Code) -> anyhow::Result<()> {
    let client = Client::connect(stage.rough.socket())?;
    client.wire.send(bytes, Vec::new())?;
    expect_code(&client.refused()?, code);
    Ok(())
}

/// Sends bytes as the second packet of an application, and expects the refusal.
fn second(stage: &Stage, bytes: Vec<u8>, code: Code) -> anyhow::Result<()> {
    let client = Client::greeted(stage.rough.socket())?;
    client.wire.send(bytes, Vec::new())?;
    expect_code(&client.refused()?, code);
    Ok(())
}

/// Sends bytes to the slot as a sidecar's first packet, and expects the refusal.
fn to_slot(stage: &Stage, bytes: Vec<u8>, code: Code) -> anyhow::Result<()> {
    let sidecar = Sidecar::connect(&stage.slot())?;
    sidecar.wire.send(bytes, Vec::new())?;
    expect_code(&sidecar.refused()?, code);
    Ok(())
}

/// The same as a sidecar's second packet.
fn to_slot_second(stage: &Stage, bytes: Vec<u8>, code: Code) -> anyhow::Result<()> {
    let sidecar = stage.rough_sidecar()?;
    sidecar.wire.send(bytes, Vec::new())?;
    expect_code(&sidecar.refused()?, code);
    Ok(())
}

#[test]
fn garbage_is_malformed() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        for seed in 1..25 {
            let bytes = garbage(seed, 1 + usize::try_from(seed * 97)?);
            first(stage, bytes.clone(), Code::Malformed)?;
            second(stage, bytes.clone(), Code::Malformed)?;
            to_slot(stage, bytes.clone(), Code::Malformed)?;
            to_slot_second(stage, bytes, Code::Malformed)?;
        }
        Ok(())
    })
}

#[test]
fn truncated_messages_are_malformed() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let whole = bytes_of(hello(PROTOCOL_VERSION));
        for length in 1..whole.len() {
            first(stage, whole[..length].to_vec(), Code::Malformed)?;
        }
        let whole = bytes_of(ClientBody::Acquire {
            items: vec![named("a")?, named("bc")?],
            wait: Duration::ZERO,
            device: None,
        });
        for length in 1..whole.len() {
            second(stage, whole[..length].to_vec(), Code::Malformed)?;
        }
        let whole = sidecar_hello();
        for length in 1..whole.len() {
            to_slot(stage, whole[..length].to_vec(), Code::Malformed)?;
        }
        Ok(())
    })
}

#[test]
fn an_empty_packet_is_an_end() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let client = Client::greeted(stage.rough.socket())?;
        client.wire.send(Vec::new(), vec![null()?; 3])?;
        client.ended()?;
        let client = Client::connect(stage.rough.socket())?;
        client.wire.send(Vec::new(), Vec::new())?;
        expect_code(&client.refused()?, Code::HelloExpected);
        let sidecar = stage.rough_sidecar()?;
        sidecar.wire.send(Vec::new(), vec![null()?; 3])?;
        sidecar.ended()
    })
}

#[test]
fn oversized_packets_are_too_large() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        for length in [MESSAGE_BYTES + 1, 200_000] {
            let mut bytes = bytes_of(hello(PROTOCOL_VERSION));
            bytes.resize(length, 0);
            first(stage, bytes.clone(), Code::TooLarge)?;
            second(stage, bytes.clone(), Code::TooLarge)?;
            to_slot(stage, bytes.clone(), Code::TooLarge)?;
            to_slot_second(stage, bytes.clone(), Code::TooLarge)?;
            let client = Client::greeted(stage.rough.socket())?;
            client.wire.send(bytes, vec![null()?; 64])?;
            expect_code(&client.refused()?, Code::TooLarge);
        }
        let long = ClientBody::Hello { version: PROTOCOL_VERSION, program: "x".repeat(65) };
        first(stage, bytes_of(long), Code::TooLarge)
    })
}

#[test]
fn lists_of_no_and_of_too_many_items_are_refused() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let acquire = |count| {
            Ok(ClientBody::Acquire { items: vec![named("a")?; count], wait: Duration::ZERO, device: None })
        };
        let release = |count| ClientBody::Release(vec![LeaseId(1); count]);
        second(stage, bytes_of(acquire(0).map_err(|e: anyhow::Error| e)?), Code::Malformed)?;
        second(stage, bytes_of(acquire(MESSAGE_ITEMS + 1).map_err(|e: anyhow::Error| e)?), Code::TooLarge)?;
        second(stage, bytes_of(release(0)), Code::Malformed)?;
        second(stage, bytes_of(release(MESSAGE_ITEMS + 1)), Code::TooLarge)?;
        second(stage, bytes_of(ClientBody::Publish(Vec::new())), Code::Malformed)?;
        let announce = |count| Ok(ClientBody::Announce(vec!["a".parse()?; count]));
        second(stage, bytes_of(announce(0).map_err(|e: anyhow::Error| e)?), Code::Malformed)?;
        second(stage, bytes_of(announce(MESSAGE_ITEMS + 1).map_err(|e: anyhow::Error| e)?), Code::TooLarge)?;
        let long = Duration::from_secs(3600 * 24);
        second(
            stage,
            bytes_of(ClientBody::Acquire { items: vec![named("a")?], wait: long, device: None }),
            Code::TooLarge,
        )?;
        second(stage, bytes_of(ClientBody::Retire { id: nothing_such(), deadline: long }), Code::TooLarge)
    })
}

#[test]
fn versions_that_are_not_served_are_refused() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let (major, minor) = PROTOCOL_VERSION;
        for version in [(major, minor + 1), (major + 1, minor), (u32::MAX, u32::MAX)] {
            let client = Client::connect(stage.rough.socket())?;
            client.say(1, hello(version))?;
            let refusal = client.refused()?;
            expect_code(&refusal, Code::UnsupportedVersion);
            assert_eq!(refusal.compared()[0].found, format!("{}.{}", version.0, version.1));
            let mut sidecar = Sidecar::connect(&stage.slot())?;
            sidecar.begin(SidecarBody::Hello { version })?;
            expect_code(&sidecar.refused()?, Code::UnsupportedVersion);
        }
        Ok(())
    })
}

#[test]
fn whatever_is_no_hello_cannot_come_first_and_a_hello_comes_once() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let others = [
            ClientBody::Watch,
            ClientBody::Acquire { items: vec![named("good")?], wait: Duration::from_secs(60), device: None },
            ClientBody::Release(vec![LeaseId(0)]),
            ClientBody::Retire { id: nothing_such(), deadline: Duration::ZERO },
            ClientBody::Cancel { request: 1 },
        ];
        for body in others {
            first(stage, bytes_of(body), Code::HelloExpected)?;
        }
        second(stage, bytes_of(hello(PROTOCOL_VERSION)), Code::HelloExpected)?;
        let mut sidecar = Sidecar::connect(&stage.slot())?;
        sidecar.begin(SidecarBody::HandOn(File::open("/dev/null")?.into()))?;
        expect_code(&sidecar.refused()?, Code::HelloExpected);
        to_slot_second(stage, sidecar_hello(), Code::HelloExpected)
    })
}

#[test]
fn a_hello_that_never_comes_is_not_waited_for_for_ever() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let begin = Instant::now();
        let client = Client::connect(stage.rough.socket())?;
        let sidecar = Sidecar::connect(&stage.slot())?;
        expect_code(&client.refused()?, Code::HelloExpected);
        expect_code(&sidecar.refused()?, Code::HelloExpected);
        // Both clocks ran at the same time; the upper bound leaves room for a busy machine.
        let (waited, limit) = (begin.elapsed(), Duration::from_millis(HELLO_MS));
        assert!(waited >= limit && waited < limit * 2, "{waited:?}");
        Ok(())
    })
}

#[test]
fn request_numbers_have_rules() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let zero = encode_client(&ClientMessage { request: 0, body: ClientBody::Watch }).bytes;
        second(stage, zero, Code::Malformed)?;
        let hello = SidecarBody::Hello { version: PROTOCOL_VERSION };
        to_slot(stage, encode_sidecar(SidecarMessage { request: 0, body: hello }).bytes, Code::Malformed)?;
        // A number in use is refused under that number, and the connection goes on.
        let mut client = Client::greeted(stage.rough.socket())?;
        let wait = || {
            Ok::<_, anyhow::Error>(ClientBody::Acquire {
                items: vec![named("never")?],
                wait: Duration::from_secs(60),
                device: None,
            })
        };
        client.say(50, wait()?)?;
        client.say(50, wait()?)?;
        match client.answer(50)? {
            BrokerBody::Refused(refusal) => expect_code(&refusal, Code::Malformed),
            other => panic!("{other:?}"),
        }
        // The first still waits under that number.
        client.say(51, ClientBody::Cancel { request: 50 })?;
        match client.answer(50)? {
            BrokerBody::Acquired(outcomes) => {
                expect_code(outcomes[0].as_ref().unwrap_err(), Code::WaitTimeout)
            }
            other => panic!("{other:?}"),
        }
        // What is unknown or over is cancelled without a word.
        for target in [50, 51, 0, u64::MAX] {
            client.say(52, ClientBody::Cancel { request: target })?;
        }
        assert!(client.acquire(Target::Id(nothing_such()), Duration::ZERO)?.is_err());
        Ok(())
    })
}

#[test]
fn a_body_of_another_version_is_malformed() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        // request = 1, then field 99 with two bytes in it.
        let unknown = vec![0x08, 0x01, 0x9a, 0x06, 0x02, 0x68, 0x69];
        second(stage, unknown.clone(), Code::Malformed)?;
        to_slot_second(stage, unknown, Code::Malformed)?;
        // Beside a body that is known, it is passed over.
        let client = Client::connect(stage.rough.socket())?;
        let mut bytes = bytes_of(hello(PROTOCOL_VERSION));
        bytes.extend([0x9a, 0x06, 0x02, 0x68, 0x69]);
        client.wire.send(bytes, Vec::new())?;
        let mut client = client;
        assert!(matches!(client.answer(1)?, BrokerBody::Welcome(_)));
        Ok(())
    })
}
