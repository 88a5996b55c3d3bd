//! Requests that are well formed and not granted: each is answered by a refusal, and the connection goes on.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, legacy, vmm};
use gpu_handoff_protocol::message::{BrokerBody, Carrier, ClientBody, Event, Target, Wanted};
use gpu_handoff_protocol::{BootTag, BufferId, Code, DeviceUuid, LeaseId, Lifetime};

use crate::scene::{BYTES, Scene, expect_code, refused_with};
use crate::source::SOURCE;

const NOW: Duration = Duration::ZERO;

fn device() -> DeviceUuid {
    DeviceUuid::from_bytes([1; 16])
}

fn name(text: &str) -> anyhow::Result<Target> {
    Ok(Target::Name(text.parse()?))
}

#[test]
fn acquire_of_what_is_not_there() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let real = grant.buffer.id;
        let never = BufferId { random: real.random ^ 1, ..real };
        refused_with(client.acquire(Target::Id(never), NOW)?, Code::NotFound);
        // An id never comes to be: waiting for one is over at once.
        let begin = Instant::now();
        refused_with(client.acquire(Target::Id(never), Duration::from_secs(60))?, Code::NotFound);
        assert!(begin.elapsed() < Duration::from_secs(10));
        refused_with(client.acquire(name("never")?, NOW)?, Code::NotFound);
        refused_with(client.acquire(name("never")?, Duration::from_millis(50))?, Code::WaitTimeout);
        let newer = Wanted { target: name(SOURCE)?, newer_than: u64::MAX };
        match client.ask(ClientBody::Acquire {
            items: vec![newer],
            wait: Duration::from_millis(50),
            device: None,
        })? {
            BrokerBody::Acquired(outcomes) => {
                expect_code(outcomes[0].as_ref().unwrap_err(), Code::WaitTimeout)
            }
            other => panic!("{other:?}"),
        }
        // From before a reboot, or from another node.
        let stale = BufferId { boot: BootTag(real.boot.0 ^ 1), ..real };
        let refusal = client.acquire(Target::Id(stale), NOW)?.unwrap_err();
        expect_code(&refusal, Code::StaleHandle);
        assert_eq!(refusal.compared()[0].wanted, format!("{:016x}", real.boot.0));
        // Of several, each is answered for itself.
        let wanted = |target| Wanted { target, newer_than: 0 };
        let items = vec![wanted(Target::Id(real)), wanted(Target::Id(never)), wanted(name(SOURCE)?)];
        match client.ask(ClientBody::Acquire { items, wait: NOW, device: None })? {
            BrokerBody::Acquired(outcomes) => {
                assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
                expect_code(outcomes[1].as_ref().unwrap_err(), Code::NotFound);
            }
            other => panic!("{other:?}"),
        }
        drop((client, grant));
        source.finish()
    })
}

#[test]
fn acquire_of_what_is_retired() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut owner = Client::greeted(stage.rough.socket())?;
        let mut other = Client::greeted(stage.rough.socket())?;
        let id = owner.publish_one(legacy("soon-over", device(), BYTES)?)??.id;
        assert_eq!(owner.retire(id, NOW)?.unwrap(), 0);
        refused_with(other.acquire(Target::Id(id), NOW)?, Code::Retired);
        refused_with(other.acquire(name("soon-over")?, NOW)?, Code::NotFound);
        refused_with(owner.retire(id, NOW)?, Code::Retired);
        refused_with(other.retire(id, NOW)?, Code::Retired);
        // With a lease left, and with the owner gone.
        let receipt = owner.publish_one(legacy("soon-over", device(), BYTES)?)??;
        // The test's process publishes and acquires: equal process numbers need the proof that they can be cured.
        let tested = stage.node.wait_for_log("self-test of legacy handles")?;
        let grant = match other.acquire(name("soon-over")?, NOW)? {
            Err(refusal) => {
                expect_code(&refusal, Code::PidCollision);
                ensure!(!tested.contains("proven=true"), "the cure is proven, and yet: {refusal}");
                let all = std::env::var("GPU_HANDOFF_TESTS").as_deref() == Ok("all");
                ensure!(!all, "the self-test of legacy handles did not pass: {tested}");
                let why = format!("the self-test of legacy handles did not pass here: {tested}");
                writeln!(std::io::stderr(), "SKIPPED: acquire_of_what_is_retired, second half: {why}")?;
                return Ok(());
            }
            Ok(grant) => grant,
        };
        assert_eq!(owner.retire(receipt.id, Duration::from_secs(60))?.unwrap(), 1);
        refused_with(owner.retire(receipt.id, NOW)?, Code::Retired);
        refused_with(other.acquire(Target::Id(receipt.id), NOW)?, Code::Retired);
        drop(owner);
        let orphaned = |message: &gpu_handoff_protocol::message::BrokerMessage| {
            matches!(&message.body, BrokerBody::Event(Event::Orphaned { id, leases: 1, .. }) if *id == receipt.id)
        };
        while !orphaned(&other.hear()?.context("the orphan is announced")?) {}
        refused_with(other.acquire(Target::Id(receipt.id), NOW)?, Code::Retired);
        assert!(other.release(vec![grant.lease])?[0].is_ok());
        refused_with(other.acquire(Target::Id(receipt.id), NOW)?, Code::Retired);
        Ok(())
    })
}

#[test]
fn release_of_what_is_not_held() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let (mut other, others) = stage.with_memory()?;
        // Somebody else's, unknown ones, and one of one's own, in one packet.
        let unknown = [LeaseId(0), LeaseId(u64::MAX), LeaseId(grant.lease.0.wrapping_add(1_000_000))];
        let outcomes = client.release(vec![others.lease, unknown[0], grant.lease, unknown[1], unknown[2]])?;
        for (i, outcome) in outcomes.into_iter().enumerate() {
            if i == 2 {
                assert!(outcome.is_ok());
            } else {
                refused_with(outcome, Code::NotLeased);
            }
        }
        // Twice, and twice in one packet.
        refused_with(client.release(vec![grant.lease])?.remove(0), Code::NotLeased);
        let outcomes = other.release(vec![others.lease; 2])?;
        assert!(outcomes[0].is_ok());
        refused_with(outcomes.into_iter().nth(1).context("two outcomes")?, Code::NotLeased);
        drop((client, grant, other, others));
        source.finish()
    })
}

#[test]
fn retire_of_what_is_not_ones_own() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let id = grant.buffer.id;
        refused_with(client.retire(id, NOW)?, Code::NotOwner);
        refused_with(client.retire(BufferId { random: id.random ^ 1, ..id }, NOW)?, Code::NotFound);
        refused_with(client.retire(BufferId { boot: BootTag(7), ..id }, NOW)?, Code::StaleHandle);
        // The buffer lives on.
        assert!(client.acquire(Target::Id(id), NOW)?.is_ok());
        drop((client, grant));
        source.finish()
    })
}

#[test]
fn publish_and_acquire_against_the_policy() -> anyhow::Result<()> {
    let policy = serde_json::json!({ "quota": { "buffers": 3, "bytes": 4 * BYTES, "leases": 2 } });
    Scene::with_policy(&policy)?.run(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("a legacy buffer") };
        let device = grant.buffer.facts.device;
        let item = |name: &str| vmm(name, device, BYTES, memory.clone());
        refused_with(client.publish_one(legacy("handle", device, BYTES)?)?, Code::PolicyDenied);
        let mut lasting = item("lasting")?;
        lasting.facts.lifetime = Lifetime::Pod;
        refused_with(client.publish_one(lasting)?, Code::PolicyDenied);
        // Two more with the source's.
        let outcomes = client.publish(vec![item("one")?, item("two")?, item("three")?])?;
        assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 2);
        refused_with(outcomes.into_iter().nth(2).context("three outcomes")?, Code::QuotaBuffers);
        assert!(client.acquire(name("one")?, NOW)?.is_ok());
        refused_with(client.acquire(name("two")?, NOW)?, Code::QuotaLeases);
        drop((client, grant));
        source.finish()
    })
}

#[test]
fn requests_that_wait_have_a_limit() -> anyhow::Result<()> {
    let policy = serde_json::json!({ "quota": { "requests": 10 } });
    Scene::with_policy(&policy)?.run(|stage| {
        let mut client = Client::greeted(stage.rough.socket())?;
        let wait = || {
            let items = vec![Wanted { target: name("never")?, newer_than: 0 }];
            Ok::<_, anyhow::Error>(ClientBody::Acquire { items, wait: Duration::from_secs(60), device: None })
        };
        let waiting: Vec<u64> = (0..9).map(|_| client.begin(wait()?)).collect::<Result<_, _>>()?;
        let watch = client.begin(ClientBody::Watch)?;
        for body in [wait()?, ClientBody::Watch] {
            match client.ask(body)? {
                BrokerBody::Refused(refusal) => expect_code(&refusal, Code::TooManyRequests),
                other => panic!("{other:?}"),
            }
        }
        // What needs no waiting is served, and a place given back is free.
        assert!(client.acquire_nothing()?);
        client.begin(ClientBody::Cancel { request: waiting[3] })?;
        assert!(matches!(client.answer(waiting[3])?, BrokerBody::Acquired(_)));
        let again = client.begin(wait()?)?;
        client.begin(ClientBody::Cancel { request: again })?;
        assert!(matches!(client.answer(again)?, BrokerBody::Acquired(_)));
        client.begin(ClientBody::Cancel { request: watch })?;
        while !matches!(client.answer(watch)?, BrokerBody::Cancelled) {}
        Ok(())
    })
}
