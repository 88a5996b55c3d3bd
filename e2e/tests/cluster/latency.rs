//! How long a hand-over between two pods takes: the same as the benchmark's, which starts its pods without Kubernetes.

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use gpu_handoff_e2e::agent::stream::{Plan, StreamTimes, Supply};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use gpu_handoff_e2e::bench::report::Percentiles;
use gpu_handoff_e2e::bench::{Mode, WARM_UP, total_us};

use serde_json::json;

use crate::ground::look_until;
use crate::members;
use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product;
use crate::program::{App, agent};
use crate::scene::{SHARED_AT, Scene, Standard};

/// Rounds of each case, if not as few as these.
const ROUNDS: &str = "GPU_HANDOFF_E2E_ROUNDS";
const FEW: usize = 20;

/// Sizes of the buffer, in MiB; on simulated GPUs the first alone, whose memory is the host's.
const MIB: [u64; 2] = [2, 1024];

const GROUP: &str = "latency";

/// What the daemon logs when legacy handles of equal process numbers can be had.
const PROVEN: &str = "self-test of legacy handles done proven=true";
/// How long until it does, from the policy that allows some.
const PROVEN_AFTER: Duration = Duration::from_secs(60);

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone("latency_of_a_hand_over_between_members", Standard::Restricted, measure)]
}

async fn measure(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let rounds = crate::number(ROUNDS, FEW)?;
    product::install(scene.ground).await?;
    // Both applications have the same number in their pods: legacy handles need the cure, and that its proof.
    let terms = json!({ "version": "gpu-handoff.io/v1", "namespaces": { &scene.namespace: { "legacy": "within-namespace" } } });
    product::go_by(scene.ground, &terms).await?;
    look_until(PROVEN_AFTER, "the self-test of legacy handles has passed", async || {
        Ok((product::count_in_log(scene.ground, PROVEN).await? > 0).then_some(()))
    })
    .await?;
    let pods = scene.two_on_one_gpu(|name| agent(name, Gpu::Plugin).restricted().member(GROUP)).await?;
    let mut apps = [scene.app(&pods[0]).await?, scene.app(&pods[1]).await?];
    for (app, pod) in apps.iter_mut().zip(&pods) {
        members::connect(scene, app, pod, GROUP).await?;
    }
    let sizes = if scene.ground.is_simulated() { &MIB[..1] } else { &MIB[..] };
    let cases = [MemoryKind::Vmm, MemoryKind::Legacy]
        .into_iter()
        .flat_map(|kind| sizes.iter().map(move |mib| (kind, *mib)));
    for (kind, mib) in cases {
        for (mode, supply) in [(Mode::Fresh, Supply::Fresh), (Mode::Exported, Supply::Published)] {
            let case = format!("{kind:?}-{mode:?}-{mib}");
            let socket = Path::new(SHARED_AT).join(&case);
            let plan = Plan { socket, supply, rounds: WARM_UP + rounds, prefix: case, pause_us: 0 };
            let [producer, consumer] = &mut apps;
            let times = total_us(mode, hand_over(producer, consumer, plan, kind, mib << 20).await?);
            ensure!(times.len() == rounds, "{} of {rounds} rounds were measured", times.len());
            if let Some(Percentiles { p50_us, p99_us }) = Percentiles::of(&times) {
                eprintln!(
                    "latency: {kind:?} {mib} MiB {mode:?}: p50 {p50_us:.0} us, p99 {p99_us:.0} us, {rounds} rounds"
                );
            }
        }
    }
    Ok(Outcome::Done)
}

/// What the producer and the consumer measured.
async fn hand_over(
    producer: &mut App,
    consumer: &mut App,
    plan: Plan,
    kind: MemoryKind,
    bytes: u64,
) -> anyhow::Result<[StreamTimes; 2]> {
    producer.tell(&Command::Produce { plan: plan.clone(), kind, bytes }).await?;
    let got = consumer.ask(&Command::Consume { plan }).await?;
    match (producer.hear().await?, got) {
        (Answer::Stream(made), Answer::Stream(got)) => Ok([made, got]),
        (made, got) => bail!("the producer: {made:?}; the consumer: {got:?}"),
    }
}
