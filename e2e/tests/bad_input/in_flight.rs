//! Descriptors that are sent and not read, or received and not decided: each member has its share of them, and who uses it
//! up waits alone.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, Sidecar, vmm};
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, SidecarBody, Target, Wanted};
use gpu_handoff_protocol::{Code, Refusal, SetPart};

use crate::scene::{BYTES, Scene, Stage, device, eventually, expect_code};
use crate::source::SOURCE;

/// More descriptors than a member may have in flight, whatever the limit of open files is.
const MANY: usize = 1_024 + 8 * MESSAGE_ITEMS;

/// So many leases of the source in one request.
fn leases(count: usize) -> anyhow::Result<ClientBody> {
    let item = Wanted { target: Target::Name(SOURCE.parse()?), newer_than: 0 };
    Ok(ClientBody::Acquire { items: vec![item; count], wait: Duration::ZERO, device: None })
}

/// What a client is answered: grants, and refusals.
fn outcomes(client: &mut Client, request: u64) -> anyhow::Result<(usize, Vec<Refusal>)> {
    let BrokerBody::Acquired(outcomes) = client.answer(request)? else { anyhow::bail!("no outcomes") };
    let (granted, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    Ok((granted.len(), refused.into_iter().filter_map(Result::err).collect()))
}

/// Whether the misbehaving pod is refused a lease because of what it has not read.
fn is_refused(stage: &Stage) -> anyhow::Result<bool> {
    let mut client = Client::greeted(stage.rough.socket())?;
    let request = client.begin(leases(1)?)?;
    match outcomes(&mut client, request)?.1.first() {
        None => Ok(false),
        Some(refusal) => {
            expect_code(refusal, Code::QuotaInFlight);
            Ok(true)
        }
    }
}

/// Another pod of the group is given the source while the misbehaving one is not.
fn others_are_served(stage: &Stage) -> anyhow::Result<()> {
    let mut other = Client::greeted(stage.consumer_socket())?;
    let request = other.begin(leases(1)?)?;
    ensure!(outcomes(&mut other, request)?.0 == 1, "another member is refused");
    stage.sample()
}

#[test]
fn a_process_that_does_not_read_what_it_is_given() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let mut deaf = Client::greeted(stage.rough.socket())?;
        let all: Vec<u64> = (0..MANY / MESSAGE_ITEMS)
            .map(|_| deaf.begin(leases(MESSAGE_ITEMS)?))
            .collect::<anyhow::Result<_>>()?;
        eventually("its pod is refused more", || is_refused(stage))?;
        others_are_served(stage)?;
        // The connection was not ended: all that was promised comes, and what was asked for too much is refused.
        let (mut granted, mut refused) = (0, Vec::new());
        for request in all {
            let (some, no) = outcomes(&mut deaf, request)?;
            granted += some;
            refused.extend(no);
        }
        let first = refused.first().context("a refusal")?;
        expect_code(first, Code::QuotaInFlight);
        let limit: usize = first.compared()[0].wanted.trim_start_matches("fewer than ").parse()?;
        // What it asked for last found room while it read.
        assert!(granted >= limit, "{granted} granted, {limit} allowed");
        assert_eq!(granted + refused.len(), MANY);
        ensure!(!is_refused(stage)?, "the pod is refused though everything was read");
        drop(deaf);
        source.finish()
    })
}

/// A connection that the daemon ends while much on it is unread does not make room for the next.
#[test]
fn connections_that_are_ended_with_grants_unread() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let (mut ended, mut asked) = (Vec::new(), 0);
        while !is_refused(stage)? {
            let mut client = Client::greeted(stage.rough.socket())?;
            client.begin(leases(MESSAGE_ITEMS)?)?;
            // Answered in order: when this is refused, the leases were granted.
            client.wire.send(b"no message".to_vec(), Vec::new())?;
            asked += MESSAGE_ITEMS;
            ended.push(client);
            ensure!(asked <= MANY, "the pod may leave any number of descriptors unread");
        }
        others_are_served(stage)?;
        drop(ended);
        eventually("its pod is given buffers again", || Ok(!is_refused(stage)?))?;
        source.finish()
    })
}

#[test]
fn a_sidecar_that_does_not_read_what_it_is_to_keep() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        stage.with_lent(|mut client, memory| {
            let mut deaf: Vec<Sidecar> = Vec::new();
            // The real one, and two that are told of everything one after the other, and read nothing.
            for round in 0..2 {
                let mut sidecar = stage.rough_sidecar()?;
                sidecar.begin(SidecarBody::OfferDone)?;
                deaf.push(sidecar);
                for packet in 0..8 {
                    let item = |i| vmm(&format!("{round}-{packet}-{i}"), device(0), BYTES, memory.clone());
                    let items = (0..MESSAGE_ITEMS).map(item).collect::<anyhow::Result<_>>()?;
                    ensure!(client.publish(items)?.iter().all(Result::is_ok), "a publication is refused");
                }
            }
            others_are_served(stage)?;
            // The pod's applications are given buffers, or told why not; who reads is served again when they are gone.
            is_refused(stage)?;
            drop(deaf);
            eventually("its pod is given buffers again", || Ok(!is_refused(stage)?))?;
            Ok(())
        })
    })
}

/// What is more than the share as a whole comes bit by bit, as it is read.
#[test]
fn a_set_of_more_buffers_than_the_share() -> anyhow::Result<()> {
    const TOTAL: u32 = 2_048;
    Scene::start()?.with_masses().run(|stage| {
        stage.with_lent(|mut owner, memory| {
            for first in (0..TOTAL).step_by(MESSAGE_ITEMS) {
                let item = |i| vmm(&format!("{first}-{i}"), device(0), BYTES, memory.clone());
                let items = (0..MESSAGE_ITEMS).map(item).collect::<anyhow::Result<_>>()?;
                let part = SetPart { name: "large".parse()?, total: TOTAL, first };
                match owner.ask(ClientBody::PublishSet { part, items })? {
                    BrokerBody::Published(outcomes) if outcomes.iter().all(Result::is_ok) => {}
                    other => anyhow::bail!("{other:?}"),
                }
            }
            let mut reader = Client::greeted(stage.rough.socket())?;
            let (name, begin) = ("large".parse()?, Instant::now());
            let ask = ClientBody::AcquireSet { name, newer_than: 0, wait: Duration::ZERO, device: None };
            let request = reader.begin(ask)?;
            // Another process of the pod asks meanwhile, and is not refused for what is about to be read.
            let mut sibling = Client::greeted(stage.rough.socket())?;
            let asked = sibling.begin(leases(1)?)?;
            match reader.answer(request)? {
                BrokerBody::AcquiredSet { grants, .. } => assert_eq!(grants.len(), TOTAL as usize),
                other => anyhow::bail!("{other:?}"),
            }
            println!("{TOTAL} descriptors were read in {:?}", begin.elapsed());
            let (granted, refused) = outcomes(&mut sibling, asked)?;
            ensure!(granted == 1, "{refused:?}");
            Ok(())
        })
    })
}

/// The answer to a publish of many descriptors.
fn publish(client: &mut Client, name: &str, memory: &Arc<OwnedFd>) -> anyhow::Result<u64> {
    let item = |i| vmm(&format!("{name}-{i}"), device(0), BYTES, Arc::clone(memory));
    client.begin(ClientBody::Publish((0..MESSAGE_ITEMS).map(item).collect::<anyhow::Result<_>>()?))
}

#[test]
fn more_publications_than_can_be_decided() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        stage.with_lent(|_client, memory| {
            let mut clients: Vec<Client> = (0..MANY / MESSAGE_ITEMS)
                .map(|_| Client::greeted(stage.rough.socket()))
                .collect::<anyhow::Result<_>>()?;
            let asked = clients.iter_mut().enumerate();
            let requests: Vec<u64> = asked
                .map(|(i, client)| publish(client, &i.to_string(), memory))
                .collect::<anyhow::Result<_>>()?;
            let mut refused = 0;
            for (client, request) in clients.iter_mut().zip(requests) {
                let BrokerBody::Published(outcomes) = client.answer(request)? else {
                    anyhow::bail!("no outcomes")
                };
                assert_eq!(outcomes.len(), MESSAGE_ITEMS);
                let refusals: Vec<Refusal> = outcomes.into_iter().filter_map(Result::err).collect();
                refusals.iter().for_each(|refusal| expect_code(refusal, Code::QuotaInFlight));
                // A packet is taken in as a whole, or not at all.
                assert!(refusals.is_empty() || refusals.len() == MESSAGE_ITEMS, "{}", refusals.len());
                refused += refusals.len();
            }
            println!("{refused} of {MANY} were refused");
            // With nothing under way there is room again.
            let last = clients.last_mut().context("a client")?;
            ensure!(last.publish_one(vmm("after", device(0), BYTES, memory.clone())?)?.is_ok(), "no room");
            Ok(())
        })
    })
}
