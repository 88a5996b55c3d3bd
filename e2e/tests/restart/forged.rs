//! Receipts that are forged, of others, of what is over, or of another boot: each is refused by name and changes nothing.

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use anyhow::Context;
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::node::{Node, kill};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_e2e::rough::{self, Client, Shared};
use gpu_handoff_protocol::message::{Carrier, Keepsake, Reattached, Target};
use gpu_handoff_protocol::{BootTag, BufferId, Code, LeaseId, Receipt, Refusal};

use crate::stage::{BYTES, Hand, claim, kill_broker, node, publish};

/// The test's own sidecar of `other` with an application, and GPU memory that it got from a real producer.
struct Table {
    node: Node,
    _producer_pod: Pod,
    _producer: App,
    hand: Hand,
    client: Client,
    memory: Shared,
    device: gpu_handoff_protocol::DeviceUuid,
}

impl Table {
    fn lay() -> anyhow::Result<Self> {
        let node = node()?;
        let producer_pod = Pod::start(&node, "producer", Walls::None)?;
        let mut producer = producer_pod.connected(&node)?;
        publish(&mut producer, "source")?;
        let mut hand = Hand::new(&node, "other")?;
        let mut client = hand.client()?;
        let grant = client.acquire(Target::Name("source".parse()?), Duration::from_secs(5))??;
        let Carrier::Descriptor(memory) = grant.carrier else { anyhow::bail!("a descriptor") };
        client.release(vec![grant.lease])?;
        let device = grant.buffer.facts.device;
        Ok(Self { node, _producer_pod: producer_pod, _producer: producer, hand, client, memory, device })
    }

    /// Publishes, and gives what the sidecar was told to keep of it.
    fn publish(&mut self, name: &str) -> anyhow::Result<Keepsake> {
        let item = rough::vmm(name, self.device, BYTES, self.memory.clone())?;
        let published = self.client.publish_one(item)??;
        let kept = self.hand.keepsake(published.id)?;
        assert_eq!(published.receipt.context("a receipt")?, kept.receipt, "both have the same");
        Ok(kept)
    }

    /// A lease of the test's own buffer, with its receipt.
    fn lease(&mut self, id: BufferId) -> anyhow::Result<(LeaseId, Receipt)> {
        let grant = self.client.acquire(Target::Id(id), Duration::ZERO)??;
        Ok((grant.lease, grant.receipt.context("a receipt")?))
    }

    /// The broker is killed; the test's sidecar offers `kept` to the next, and its application connects again.
    fn restart_with(&mut self, kept: Vec<Keepsake>) -> anyhow::Result<Vec<Result<(), Refusal>>> {
        kill_broker(&self.node)?;
        let (hand, outcomes) = Hand::with(&self.node, "other", kept)?;
        self.hand = hand;
        self.client = self.hand.client()?;
        Ok(outcomes)
    }

    fn has(&mut self, id: BufferId) -> anyhow::Result<Result<(), Code>> {
        let outcome = self.client.acquire(Target::Id(id), Duration::ZERO)?;
        match outcome {
            Ok(grant) => {
                self.client.release(vec![grant.lease])?;
                Ok(Ok(()))
            }
            Err(refusal) => Ok(Err(refusal.code())),
        }
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, code: Code) {
    let found = outcome.as_ref().map_err(Refusal::code);
    assert!(matches!(found, Err(found) if found == code), "{outcome:?} instead of {code}");
}

fn flipped(receipt: &Receipt, byte: usize) -> anyhow::Result<Receipt> {
    let mut bytes = receipt.as_bytes().to_vec();
    let at = byte % bytes.len();
    bytes[at] ^= 1;
    Ok(Receipt::new(bytes)?)
}

#[test]
fn what_was_alive_is_restored_by_hand_too() -> anyhow::Result<()> {
    let mut t = Table::lay()?;
    let kept = t.publish("mine")?;
    let (lease, lease_receipt) = t.lease(kept.id)?;
    assert_eq!(t.restart_with(vec![kept.clone()])?, [Ok(())]);
    assert_eq!(claim(&mut t.client, &kept.receipt, None)??, Reattached::Restored);
    assert_eq!(claim(&mut t.client, &lease_receipt, None)??, Reattached::Restored);
    assert_eq!(t.client.release(vec![lease])?, [Ok(())]);
    // Without a sidecar that keeps anything the process is asked for the memory.
    t.restart_with(Vec::new())?;
    assert_eq!(claim(&mut t.client, &kept.receipt, None)??, Reattached::DescriptorWanted);
    let memory = t.memory.clone();
    assert_eq!(claim(&mut t.client, &kept.receipt, Some(memory))??, Reattached::Restored);
    assert_eq!(t.hand.keepsake(kept.id)?.receipt, kept.receipt, "the sidecar is told to keep it");
    assert_eq!(t.has(kept.id)?, Ok(()));
    assert_eq!(t.client.retire(kept.id, Duration::ZERO)??, 0);
    t.hand.forgets(kept.id)
}

#[test]
fn a_snapshot_that_is_forged_changes_nothing() -> anyhow::Result<()> {
    let mut t = Table::lay()?;
    let (kept, second) = (t.publish("mine")?, t.publish("another")?);
    let not_memory: Shared = std::sync::Arc::new(std::fs::File::open("/dev/null")?.into());
    let mut forged = vec![
        // Another buffer's receipt, and no receipt at all.
        Keepsake { id: second.id, ..kept.clone() },
        Keepsake { receipt: Receipt::new(vec![7; 200])?, ..kept.clone() },
        // Whatever byte is changed: of id, owner, kind, device, size, lifetime, process, or of the MAC.
        Keepsake { descriptor: Some(not_memory), ..kept.clone() },
    ];
    for byte in (0..kept.receipt.as_bytes().len()).step_by(9) {
        forged.push(Keepsake { receipt: flipped(&kept.receipt, byte)?, ..kept.clone() });
    }
    let outcomes = t.restart_with(forged)?;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        refused(outcome, if n == 2 { Code::NotGpuMemory } else { Code::ReceiptInvalid });
    }
    for byte in (0..kept.receipt.as_bytes().len()).step_by(9) {
        refused(claim(&mut t.client, &flipped(&kept.receipt, byte)?, None)?, Code::ReceiptInvalid);
    }
    // The true one still works.
    let memory = Some(t.memory.clone());
    assert_eq!(claim(&mut t.client, &kept.receipt, memory)??, Reattached::Restored);
    assert_eq!(t.has(kept.id)?, Ok(()));
    Ok(())
}

#[test]
fn receipts_of_what_is_over_are_of_no_use() -> anyhow::Result<()> {
    let mut t = Table::lay()?;
    let (revoked, kept) = (t.publish("revoked")?, t.publish("kept")?);
    let (lease, lease_receipt) = t.lease(kept.id)?;
    t.client.release(vec![lease])?;
    assert_eq!(t.client.retire(revoked.id, Duration::ZERO)??, 0);
    let outcomes = t.restart_with(vec![revoked.clone(), kept.clone()])?;
    let [of_revoked, of_kept] = <[_; 2]>::try_from(outcomes).map_err(|_| anyhow::anyhow!("two outcomes"))?;
    refused(of_revoked, Code::Retired);
    of_kept?;
    let memory = Some(t.memory.clone());
    refused(claim(&mut t.client, &revoked.receipt, memory)?, Code::Retired);
    refused(claim(&mut t.client, &lease_receipt, None)?, Code::NotLeased);
    assert_eq!(t.has(revoked.id)?, Err(Code::Retired), "the journal remembers");
    assert_eq!(claim(&mut t.client, &kept.receipt, None)??, Reattached::Restored);
    Ok(())
}

#[test]
fn receipts_of_another_process_or_pod_are_of_no_use() -> anyhow::Result<()> {
    let mut t = Table::lay()?;
    let own = t.publish("mine")?;
    // A second sidecar in the producer's slot is told to keep the producer's buffer: so the test has its receipt.
    let mut thief = Hand::new(&t.node, "producer")?;
    let grant = t.client.acquire(Target::Name("source".parse()?), Duration::ZERO)??;
    let stolen = thief.keepsake(grant.buffer.id)?;
    refused(claim(&mut t.client, &stolen.receipt, None)?, Code::NotOwner);
    let mut in_its_pod = thief.client()?;
    refused(claim(&mut in_its_pod, &stolen.receipt, stolen.descriptor.clone())?, Code::NotOwner);
    refused(claim(&mut in_its_pod, &own.receipt, own.descriptor.clone())?, Code::NotOwner);
    let outcomes = t.restart_with(vec![stolen.clone(), own.clone()])?;
    let [of_stolen, of_own] = <[_; 2]>::try_from(outcomes).map_err(|_| anyhow::anyhow!("two outcomes"))?;
    refused(of_stolen, Code::NotOwner);
    of_own?;
    let mut thief = Hand::new(&t.node, "producer")?;
    let mut in_its_pod = thief.client()?;
    refused(claim(&mut in_its_pod, &stolen.receipt, stolen.descriptor)?, Code::NotOwner);
    assert_eq!(claim(&mut t.client, &own.receipt, None)??, Reattached::Restored);
    Ok(())
}

#[test]
fn nothing_outlives_a_boot() -> anyhow::Result<()> {
    let mut t = Table::lay()?;
    let kept = t.publish("mine")?;
    let (_, lease_receipt) = t.lease(kept.id)?;
    // The state folder says that it is of another boot, as after a reboot with the folder on a disk.
    let mut key = std::fs::File::options().read(true).write(true).open(t.node.dir().join("state/key"))?;
    key.seek(SeekFrom::Start(8))?;
    let mut first = [0];
    key.read_exact(&mut first)?;
    key.seek(SeekFrom::Start(8))?;
    key.write_all(&[first[0] ^ 1])?;
    let outcomes = t.restart_with(vec![kept.clone()])?;
    refused(outcomes.into_iter().next().context("an outcome")?, Code::ReceiptInvalid);
    let memory = Some(t.memory.clone());
    refused(claim(&mut t.client, &kept.receipt, memory)?, Code::ReceiptInvalid);
    refused(claim(&mut t.client, &lease_receipt, None)?, Code::ReceiptInvalid);
    let of_another = BufferId { boot: BootTag(kept.id.boot.0 ^ 1), random: kept.id.random };
    assert_eq!(t.has(of_another)?, Err(Code::StaleHandle));
    Ok(())
}

#[test]
fn a_sidecar_that_keeps_what_it_was_told_to_forget_restores_nothing() -> anyhow::Result<()> {
    let mut t = Table::lay()?;
    let kept = t.publish("mine")?;
    let stale = kept.clone();
    assert_eq!(t.client.retire(kept.id, Duration::ZERO)??, 0);
    t.hand.forgets(kept.id)?;
    // It kept a copy all the same, and offers it again and again, in this life and the next.
    refused(t.hand.offer(vec![stale.clone()])?.remove(0), Code::Retired);
    let outcomes = t.restart_with(vec![stale.clone(), stale])?;
    outcomes.into_iter().for_each(|outcome| refused(outcome, Code::Retired));
    assert_eq!(t.has(kept.id)?, Err(Code::Retired));
    Ok(())
}

#[test]
fn a_process_that_died_while_the_broker_was_away_has_nothing() -> anyhow::Result<()> {
    let mut t = Table::lay()?;
    let mut hand = Hand::new(&t.node, "producer")?;
    let grant = t.client.acquire(Target::Name("source".parse()?), Duration::ZERO)??;
    let kept = hand.keepsake(grant.buffer.id)?;
    kill(t._producer.pid()?)?;
    // Its sidecar keeps the memory, and the journal may or may not know of the death yet.
    let outcomes = t.restart_with(Vec::new())?;
    assert!(outcomes.is_empty());
    let (_hand, _) = Hand::with(&t.node, "producer", vec![kept.clone()])?;
    let gone = |t: &mut Table| t.client.acquire(Target::Id(kept.id), Duration::ZERO);
    refused(gone(&mut t)?, Code::Retired);
    Ok(())
}
