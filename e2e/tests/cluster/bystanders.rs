//! Two pods that hand memory over, and go on doing so whatever others do.

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::Pod;

use crate::members::{self, By};
use crate::plan::{Gpu, Plan};
use crate::product;
use crate::program::{App, agent};
use crate::scene::Scene;

pub(crate) const PRODUCER: &str = "producer";
pub(crate) const CONSUMER: &str = "consumer";
pub(crate) const GROUP: &str = "victims";
/// The buffer that they have from the start.
pub(crate) const BUFFER: &str = "secret";
const WORD: u32 = 0x5EC2_E700;
const LEASE: &str = "held";

/// Both of them.
pub(crate) struct Bystanders {
    pub(crate) producer: App,
    pub(crate) consumer: App,
    /// The id of what they have from the start.
    pub(crate) buffer: String,
    producer_uid: String,
    rounds: u32,
}

/// The GPU that all of a scenario's pods share.
pub(crate) fn gpu() -> Gpu {
    Gpu::Claim("gpu".to_owned())
}

impl Bystanders {
    /// Installs the product, starts both, and hands a buffer over.
    pub(crate) async fn start(scene: &Scene<'_>) -> anyhow::Result<Self> {
        product::install(scene.ground).await?;
        scene.reserve(1).await?;
        scene.claim("gpu", 1).await?;
        for name in [PRODUCER, CONSUMER] {
            scene.start(plan(name)).await?;
        }
        let (mut producer, mut consumer) = (scene.app(PRODUCER).await?, scene.app(CONSUMER).await?);
        members::connect(scene, &mut producer, PRODUCER, GROUP).await?;
        members::connect(scene, &mut consumer, CONSUMER, GROUP).await?;
        let buffer = members::publish(&mut producer, BUFFER, WORD).await?;
        let acquired = members::acquire(&mut consumer, By::Name(BUFFER.to_owned()), LEASE).await?;
        ensure!(matches!(acquired, Answer::Acquired { .. }), "the consumer: {acquired:?}");
        let producer_uid = scene.uid(PRODUCER).await?;
        let both = Self { producer, consumer, buffer, producer_uid, rounds: 0 };
        Ok(both)
    }

    /// What they have they still have, and one more buffer goes from one to the other.
    pub(crate) async fn go_on(&mut self) -> anyhow::Result<()> {
        members::holds(&mut self.consumer, LEASE, WORD).await.context("what the consumer had")?;
        self.rounds += 1;
        let name = format!("round-{}", self.rounds);
        members::publish(&mut self.producer, &name, self.rounds).await?;
        let acquired = members::acquire(&mut self.consumer, By::Name(name.clone()), &name).await?;
        ensure!(matches!(acquired, Answer::Acquired { .. }), "{name}: {acquired:?}");
        members::holds(&mut self.consumer, &name, self.rounds).await?;
        members::release(&mut self.consumer, &name).await
    }

    /// What a stranger is told has nothing of them.
    pub(crate) fn are_not_in(&self, told: &str) -> anyhow::Result<()> {
        for of_them in [PRODUCER, CONSUMER, GROUP, BUFFER, &self.buffer, &self.producer_uid] {
            ensure!(!told.contains(of_them), "a stranger learns of {of_them}: {told}");
        }
        Ok(())
    }
}

fn plan(name: &str) -> Plan {
    agent(name, gpu()).restricted().member(GROUP)
}

impl Scene<'_> {
    pub(crate) async fn uid(&self, pod: &str) -> anyhow::Result<String> {
        self.all::<Pod>().get(pod).await?.metadata.uid.context("a pod without a UID")
    }

    /// The number of a pod's container, without the runtime's name.
    pub(crate) async fn container_number(&self, pod: &str) -> anyhow::Result<String> {
        let pod = self.all::<Pod>().get(pod).await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let id = statuses.into_iter().find_map(|one| one.container_id).context("no container")?;
        Ok(id.split_once("://").context("a container's number without a runtime")?.1.to_owned())
    }
}
