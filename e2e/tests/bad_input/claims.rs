//! Receipts, sets and orders that are not what they are said to be: by the packet, again and again, from everywhere.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, Shared, legacy, vmm};
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{
    BrokerBody, Carrier, Claim, ClientBody, Keepsake, Publication, Reattached, SidecarBody, Target,
};
use gpu_handoff_protocol::{BufferId, Code, Kind, Order, Receipt, Refusal, SetPart};

use crate::scene::{BYTES, Scene, device, eventually, refused_with};

/// The last word of a timeline of [`BYTES`].
const LAST_WORD: u32 = (2 << 20) / 8 - 1;
/// Buffers of a set that never is whole.
const TOTAL: u32 = 1_024;

type Outcome = Result<Reattached, Refusal>;

fn claim(client: &mut Client, claims: Vec<Claim>) -> anyhow::Result<Vec<Outcome>> {
    match client.ask(ClientBody::Reattach(claims))? {
        BrokerBody::Reattached(outcomes) => Ok(outcomes),
        other => anyhow::bail!("{other:?}"),
    }
}

fn claims(receipt: &Receipt, descriptor: Option<&Shared>) -> Vec<Claim> {
    vec![Claim { receipt: receipt.clone(), descriptor: descriptor.cloned() }; MESSAGE_ITEMS]
}

#[test]
fn receipts_by_the_packet_with_memory_and_without() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let (mut owner, grant) = stage.with_memory()?;
        let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("a legacy buffer") };
        let published = owner.publish_one(vmm("mine", device(0), BYTES, memory.clone())?)??;
        let (receipt, lease) =
            (published.receipt.context("a receipt")?, grant.receipt.clone().context("a receipt")?);
        let null: Shared = Arc::new(File::open("/dev/null")?.into());
        // Strangers: another pod of the group, and one of another group.
        for socket in [stage.consumer_socket(), stage.stranger.socket()] {
            let mut thief = Client::greeted(socket)?;
            for receipt in [&receipt, &lease] {
                for outcome in claim(&mut thief, claims(receipt, None))? {
                    refused_with(outcome, Code::NotOwner);
                }
            }
            for outcome in claim(&mut thief, claims(&receipt, Some(memory)))? {
                refused_with(outcome, Code::NotOwner);
            }
            for outcome in claim(&mut thief, claims(&receipt, Some(&null)))? {
                refused_with(outcome, Code::NotGpuMemory);
            }
            for outcome in claim(&mut thief, claims(&lease, Some(memory)))? {
                refused_with(outcome, Code::DescriptorCount);
            }
        }
        // Its own process by another connection, while the first one is there; both at once, over and over.
        let mut second = Client::greeted(stage.rough.socket())?;
        for outcome in claim(&mut second, claims(&receipt, Some(memory)))? {
            refused_with(outcome, Code::NotOwner);
        }
        for outcome in claim(&mut owner, claims(&receipt, Some(memory)))? {
            ensure!(outcome == Ok(Reattached::Restored), "{outcome:?}");
        }
        // Nothing of that has made another lease or buffer: the one of each goes, once.
        ensure!(owner.retire(published.id, Duration::ZERO)? == Ok(0), "leases of nobody");
        refused_with(claim(&mut owner, claims(&receipt, None))?.remove(0), Code::Retired);
        let released = owner.release(vec![grant.lease, grant.lease])?;
        ensure!(released[0].is_ok() && released[1].is_err(), "{released:?}");
        refused_with(claim(&mut owner, claims(&lease, None))?.remove(0), Code::NotLeased);
        drop((owner, second, grant));
        source.finish()
    })
}

#[test]
fn a_flood_of_offers() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let null: Shared = Arc::new(File::open("/dev/null")?.into());
        let id = BufferId { boot: gpu_handoff_protocol::BootTag(7), random: 7 };
        let item = Keepsake { id, receipt: Receipt::new(vec![7; 300])?, descriptor: Some(null) };
        let goal = stage.rounds() + 40;
        let mut offers = 0;
        while stage.rounds() < goal {
            let mut sidecar = stage.rough_sidecar()?;
            // Until it is not listened to: it reads no answer.
            for _ in 0..200 {
                if sidecar.begin(SidecarBody::Offer(vec![item.clone(); MESSAGE_ITEMS])).is_err() {
                    break;
                }
                offers += 1;
            }
        }
        println!("{offers} offers of {MESSAGE_ITEMS} items");
        let mut client = Client::greeted(stage.rough.socket())?;
        ensure!(client.acquire_nothing()?, "the pod is not served any more");
        Ok(())
    })
}

fn part(name: &str, first: u32) -> anyhow::Result<ClientBody> {
    let item = |i| legacy(&format!("{name}-{first}-{i}"), device(0), BYTES);
    let items = (0..MESSAGE_ITEMS).map(item).collect::<anyhow::Result<Vec<Publication>>>()?;
    Ok(ClientBody::PublishSet { part: SetPart { name: name.parse()?, total: TOTAL, first }, items })
}

#[test]
fn sets_that_are_never_complete() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut clients = Vec::new();
        let mut refused = 0;
        for n in 0..40 {
            let mut client = Client::greeted(stage.rough.socket())?;
            // One begins many, another goes on with one for as long as it is let.
            for round in 0..8_u32 {
                let (name, first) = match n % 2 {
                    0 => (format!("set-{n}-{round}"), 0),
                    _ => (format!("set-{n}"), round * 64),
                };
                let BrokerBody::Published(outcomes) = client.ask(part(&name, first)?)? else {
                    anyhow::bail!("no outcomes")
                };
                refused += outcomes.iter().filter(|outcome| outcome.is_err()).count();
            }
            clients.push(client);
        }
        let asked = 40 * 8 * MESSAGE_ITEMS;
        println!("{refused} of {asked} refused");
        ensure!(refused < asked, "no part of a set was taken");
        // Nobody sees any of it.
        let mut other = Client::greeted(stage.consumer_socket())?;
        for name in ["set-1", "set-0-0", "set-1-0-0"] {
            refused_with(other.acquire(Target::Name(name.parse()?), Duration::ZERO)?, Code::NotFound);
        }
        stage.sample()?;
        drop(clients);
        // What was charged for them is given back.
        let mut client = Client::greeted(stage.rough.socket())?;
        eventually("the quota is free again", || {
            let items = (0..MESSAGE_ITEMS)
                .map(|i| legacy(&format!("set-1-0-{i}"), device(0), BYTES))
                .collect::<Result<_, _>>()?;
            Ok(client.publish(items)?.iter().all(Result::is_ok))
        })
    })
}

#[test]
fn orders_on_what_is_not_ones_own_timeline() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        stage.with_lent(|mut client, memory| {
            let timeline = |name: &str| {
                let mut item = vmm(name, device(0), BYTES, memory.clone())?;
                item.facts.kind = Kind::Timeline;
                anyhow::Ok(item)
            };
            let ordered = |name: &str, timeline: BufferId, first_seat_word: u32, seats: u32| {
                let mut item = vmm(name, device(0), BYTES, memory.clone())?;
                item.facts.order = Some(Order { timeline, ready_word: 0, value: 1, first_seat_word, seats });
                anyhow::Ok(item)
            };
            let own = client.publish_one(timeline("own")?)??.id;
            let mut sibling = Client::greeted(stage.rough.socket())?;
            let mut other = Client::greeted(stage.consumer_socket())?;
            let mut stranger = Client::greeted(stage.stranger.socket())?;
            // Another process of the pod, another pod, another group (to which it does not exist), nobody's, and no timeline.
            refused_with(sibling.publish_one(ordered("a", own, 1, 1)?)?, Code::NotOwner);
            refused_with(other.publish_one(ordered("a", own, 1, 1)?)?, Code::NotOwner);
            refused_with(stranger.publish_one(ordered("a", own, 1, 1)?)?, Code::NotFound);
            let nobodys = BufferId { random: own.random ^ 1, ..own };
            refused_with(client.publish_one(ordered("a", nobodys, 1, 1)?)?, Code::NotFound);
            let plain = client.publish_one(vmm("plain", device(0), BYTES, memory.clone())?)??.id;
            refused_with(client.publish_one(ordered("a", plain, 1, 1)?)?, Code::UnsupportedKind);
            // Words beyond the timeline, and all seats taken by one pod that never gives them back.
            ensure!(client.publish_one(ordered("a", own, LAST_WORD, 2)?)?.is_err(), "beyond the timeline");
            let seated = client.publish_one(ordered("seats", own, 1, 4)?)??.id;
            let mut leases = Vec::new();
            for _ in 0..4 {
                leases.push(other.acquire(Target::Id(seated), Duration::ZERO)??.lease);
            }
            refused_with(sibling.acquire(Target::Id(seated), Duration::ZERO)?, Code::NoSeat);
            other.release(vec![leases[2]])?;
            let again = sibling.acquire(Target::Id(seated), Duration::ZERO)??;
            ensure!(again.seat.is_some_and(|seat| seat.0 == 2), "{:?}", again.seat);
            drop(other);
            eventually("the seats of a connection that is gone are free", || {
                Ok(sibling.acquire(Target::Id(seated), Duration::ZERO)?.is_ok())
            })?;
            stage.sample()?;
            Ok(())
        })
    })
}
