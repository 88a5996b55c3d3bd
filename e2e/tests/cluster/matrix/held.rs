//! Who keeps GPU memory, and GPUs, after a pod's end.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::runtime::wait::conditions;

use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, scenario};
use crate::program::{agent, puppet};
use crate::scene::{Scene, Standard, await_in};

/// So much that it shows beside what all other scenarios use.
const MUCH: u64 = 8 << 30;
const LITTLE: u64 = 4 << 30;

/// How long a pod may take to be gone, and the driver to see that its process is.
const GONE: Duration = Duration::from_secs(30);

/// How long the kubelet may take to tell a driver that is back of what it missed.
const TOLD: Duration = Duration::from_secs(60);

pub(super) fn all() -> Vec<Scenario> {
    vec![
        scenario("matrix_11_a_pod_is_gone_before_its_driver_is_back", Standard::Baseline, driver_away),
        scenario("matrix_19_an_importer_keeps_memory_until_its_end", Standard::Baseline, kept),
        scenario("matrix_20_memory_outlives_its_makers_hold", Standard::Baseline, let_go),
    ]
}

async fn kept(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let pods = scene.two_with_one_claim(puppet).await?;
    let [maker, importer] = scene.actors(&pods)?;
    let shared = maker.share(MUCH, &importer)?;
    end(scene, &pods[0], &DeleteParams::default()).await?;
    let used = importer.used_memory()?;
    anyhow::ensure!(used >= MUCH, "after its maker's end {used} bytes are in use, not {MUCH}");
    let seen = importer.look(&shared)?;
    anyhow::ensure!(seen == "OK", "the importer sees {seen}");
    drop(importer);
    // It ends as its test goes, and its container is started again.
    let next = scene.actor(&pods[1])?;
    gpu_handoff_e2e::wait::until(GONE, "the importer's memory is free", || {
        Ok((next.used_memory()? < LITTLE).then_some(()))
    })?;
    Ok(Outcome::Done)
}

async fn let_go(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let pods = scene.two_with_one_claim(puppet).await?;
    let [maker, importer] = scene.actors(&pods)?;
    let shared = maker.share(MUCH, &importer)?;
    maker.let_go(&shared)?;
    let seen = importer.look(&shared)?;
    anyhow::ensure!(seen == "OK", "the importer sees {seen}");
    Ok(Outcome::Done)
}

/// Removes a pod, and waits until it is gone.
async fn end(scene: &Scene<'_>, pod: &str, how: &DeleteParams) -> anyhow::Result<()> {
    let pods = scene.all::<Pod>();
    let uid = pods.get(pod).await?.metadata.uid.unwrap_or_default();
    pods.delete(pod, how).await?;
    await_in(&pods, pod, "the pod is gone", GONE, conditions::is_deleted(&uid)).await.map(drop)
}

/// A pod is removed by force while the driver that gave it its GPU is away: nobody holds that GPU afterwards.
async fn driver_away(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if scene.ground.scripts().is_none() {
        return Ok(Outcome::NotRun("there is no e2e/cluster/in.sh, which stops the driver".to_owned()));
    }
    let gpus = scene.ground.gpus();
    scene.reserve(gpus).await?;
    scene.claim("all", gpus).await?;
    scene.start(agent("holder", Gpu::Claim("all".to_owned()))).await?;
    let by_force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let removed = match scene.ground.daemon(&["stop", "dra"]).await {
        Ok(()) => end(scene, "holder", &by_force).await,
        other => other,
    };
    // In any case: other scenarios need it.
    let back = scene.ground.daemon(&["start", "dra"]).await;
    removed?;
    back?;
    // Only then it is known to the kubelet again: before, a pod with a claim would wait for the next try, a minute later.
    let told = format!("unprepared claim={}/all", scene.namespace);
    let log = scene.ground.folder.join("log/dra.log");
    gpu_handoff_e2e::wait::until(TOLD, "the driver is told of the pod's end", || {
        Ok(std::fs::read_to_string(&log)?.contains(&told).then_some(()))
    })?;
    scene.give_back_claims().await?;
    scene.claim("again", gpus).await?;
    scene.start(agent("next", Gpu::Claim("again".to_owned()))).await?;
    let devices = scene.exec("next", &["gpu-handoff-plugin", "gpu-survey"]).await?;
    let seen = devices.matches("\"uuid\"").count();
    anyhow::ensure!(seen == gpus, "the next pod sees {seen} GPUs, not {gpus}: {devices}");
    Ok(Outcome::Done)
}
