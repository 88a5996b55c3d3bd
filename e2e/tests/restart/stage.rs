//! A node with three pods, and what the tests do with it.

use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, bail};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::gpu::Gpu;
use gpu_handoff_e2e::node::{Member, Node, PATIENCE, kill};
use gpu_handoff_e2e::rough::{Client, Sidecar, Wire};
use gpu_handoff_e2e::wait;
use gpu_handoff_protocol::message::{
    BrokerBody, Claim, ClientBody, Keepsake, Reattached, SidecarBody, SlotBody, SlotMessage,
};
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::{BufferId, Receipt, Refusal};

/// Size of the buffers, in bytes: the granularity of GPU memory.
pub(crate) const BYTES: u64 = 2 << 20;
/// What the buffers hold.
const WORD: u32 = 0x0bad_cafe;

/// A node for the pods `producer`, `consumer` and `other`, all of one group.
pub(crate) fn node() -> anyhow::Result<Node> {
    node_with(&serde_json::json!({ "legacy": "within-namespace" }))
}

/// The same, with this policy.
pub(crate) fn node_with(policy: &serde_json::Value) -> anyhow::Result<Node> {
    let member = |pod| Member { pod, group: "group" };
    let members = [member("producer"), member("consumer"), member("other")];
    Node::start_with(&Folder::shared()?, Arc::new(Gpu::simulated(&Folder::shared()?)?), &members, policy)
}

/// `kill -9` of the broker; the node starts another, which serves when this comes back.
pub(crate) fn kill_broker(node: &Node) -> anyhow::Result<()> {
    let served = |node: &Node| node.log().matches("the broker serves").count();
    let (before, broker) = (served(node), node.broker_pid()?);
    kill(broker)?;
    wait::until(PATIENCE, "another broker serves", || Ok((served(node) > before).then_some(())))
        .with_context(|| tail(node))
}

/// The end of the node's log.
pub(crate) fn tail(node: &Node) -> String {
    let log = node.log();
    let lines: Vec<&str> = log.lines().collect();
    format!("the node's log ends with:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"))
}

/// Publishes memory of its own under this name, and gives the buffer's id and version back.
pub(crate) fn publish(app: &mut App, name: &str) -> anyhow::Result<(String, u64)> {
    let memory = name.to_owned();
    app.done(&Command::Fill { memory: memory.clone(), bytes: BYTES, kind: MemoryKind::Vmm, word: WORD })?;
    app.expect(&Command::Publish { memory, name: name.to_owned() }, |answer| match answer {
        Answer::Published { id, generation, .. } => Ok((id, generation)),
        other => Err(other),
    })
}

/// Acquires by name, as a lease of that name, and gives the buffer's id back.
pub(crate) fn acquire(app: &mut App, name: &str) -> anyhow::Result<String> {
    let (wait_ms, lease) = (u64::try_from(PATIENCE.as_millis())?, name.to_owned());
    let name = Some(name.to_owned());
    let command = Command::Acquire { name, id: None, newer_than: 0, wait_ms, lease, announce: false };
    app.expect(&command, |answer| match answer {
        Answer::Acquired { id, .. } => Ok(id),
        other => Err(other),
    })
}

pub(crate) fn verify(app: &mut App, lease: &str) -> anyhow::Result<()> {
    let command = Command::Verify { lease: lease.to_owned(), word: WORD };
    app.expect(&command, |answer| match answer {
        Answer::Verified { wrong: 0, words } if words == BYTES / 4 => Ok(()),
        other => Err(other),
    })
}

pub(crate) fn release(app: &mut App, lease: &str) -> anyhow::Result<()> {
    app.done(&Command::Release { lease: lease.to_owned() })
}

pub(crate) fn revoke(app: &mut App, name: &str) -> anyhow::Result<u32> {
    app.expect(&Command::Retire { name: name.to_owned(), deadline_ms: 0 }, |answer| match answer {
        Answer::Retired { leases } => Ok(leases),
        other => Err(other),
    })
}

/// A sidecar that the test plays itself, and that keeps what it is told to.
pub(crate) struct Hand {
    pub(crate) sidecar: Sidecar,
    pub(crate) kept: Vec<Keepsake>,
}

impl Hand {
    /// A sidecar in a pod's slot that has offered these, with the outcomes.
    pub(crate) fn with(
        node: &Node,
        pod: &str,
        offers: Vec<Keepsake>,
    ) -> anyhow::Result<(Self, Vec<Result<(), Refusal>>)> {
        let mut hand = Self { sidecar: Sidecar::greeted(&node.slot(pod))?, kept: Vec::new() };
        let outcomes = if offers.is_empty() { Vec::new() } else { hand.offer(offers)? };
        hand.sidecar.begin(SidecarBody::OfferDone)?;
        Ok((hand, outcomes))
    }

    pub(crate) fn new(node: &Node, pod: &str) -> anyhow::Result<Self> {
        Ok(Self::with(node, pod, Vec::new())?.0)
    }

    pub(crate) fn offer(&mut self, items: Vec<Keepsake>) -> anyhow::Result<Vec<Result<(), Refusal>>> {
        let request = self.sidecar.begin(SidecarBody::Offer(items))?;
        match self.hear()? {
            SlotMessage { request: answered, body: SlotBody::Offered(outcomes) } if answered == request => {
                Ok(outcomes)
            }
            other => bail!("an offer was answered by {other:?}"),
        }
    }

    /// An application that the test plays itself: its connection is handed on, and it has said hello.
    pub(crate) fn client(&mut self) -> anyhow::Result<Client> {
        let (own, broker) = SeqPacket::pair()?;
        let request = self.sidecar.begin(SidecarBody::HandOn(broker.as_fd().try_clone_to_owned()?))?;
        drop(broker);
        match self.hear()? {
            SlotMessage { request: answered, body: SlotBody::HandedOn(Ok(())) } if answered == request => {}
            other => bail!("a connection handed on was answered by {other:?}"),
        }
        let mut client = Client::new(Wire::new(own));
        client.greet()?;
        Ok(client)
    }

    /// Waits until it keeps this buffer, and gives that back.
    pub(crate) fn keepsake(&mut self, id: BufferId) -> anyhow::Result<Keepsake> {
        loop {
            if let Some(found) = self.kept.iter().find(|k| k.id == id) {
                return Ok(found.clone());
            }
            let message = self.sidecar.hear()?.context("the slot ended the connection")?;
            self.note(message);
        }
    }

    /// Waits until it was told to keep this buffer no longer.
    pub(crate) fn forgets(&mut self, id: BufferId) -> anyhow::Result<()> {
        while self.kept.iter().any(|k| k.id == id) {
            let message = self.sidecar.hear()?.context("the slot ended the connection")?;
            self.note(message);
        }
        Ok(())
    }

    /// The next answer; what is to be kept is noted on the way.
    fn hear(&mut self) -> anyhow::Result<SlotMessage> {
        loop {
            let message = self.sidecar.hear()?.context("the slot ended the connection")?;
            if message.request != 0 {
                return Ok(message);
            }
            self.note(message);
        }
    }

    fn note(&mut self, message: SlotMessage) {
        match message.body {
            SlotBody::Keep(more) => self.kept.extend(more),
            SlotBody::Forget(ids) => self.kept.retain(|k| !ids.contains(&k.id)),
            _ => {}
        }
    }
}

/// Shows a receipt as the application's own.
pub(crate) fn claim(
    client: &mut Client,
    receipt: &Receipt,
    descriptor: Option<gpu_handoff_e2e::rough::Shared>,
) -> anyhow::Result<Result<Reattached, Refusal>> {
    let claim = Claim { receipt: receipt.clone(), descriptor };
    match client.ask(ClientBody::Reattach(vec![claim]))? {
        BrokerBody::Reattached(mut outcomes) => outcomes.pop().context("one outcome"),
        other => bail!("a claim was answered by {other:?}"),
    }
}
