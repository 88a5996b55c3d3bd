//! What the daemon's probes are for: an update goes on when the new one serves, and not before; one that is stuck is restarted, and
//! that costs no buffer.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::ground::look_until;
use crate::members::{self, By};
use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::pods::STARTED;
use crate::product;
use crate::program::agent;
use crate::scene::{Scene, Standard};

/// How long until the kubelet has noticed, has asked it to end in vain, and has started it anew.
const RESTARTED: Duration = Duration::from_secs(90);
/// How long a container has then run, in seconds: longer than the impatient kubelet waits for one that does not answer.
const OUT_OF_PATIENCE_S: i64 = 15;
const GROUP: &str = "stuck";
const WORD: u32 = 0x0570_CCED;

/// Where the daemon looks for its kubelet.
const ROOT: &str = "GPU_HANDOFF_KUBELET_ROOT";
/// Where it may make its sockets, and no kubelet comes.
const NOBODYS: &str = "/run/gpu-handoff/nobodys";

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario_alone("an_update_waits_until_the_daemon_serves", Standard::Restricted, waits),
        scenario_alone("a_daemon_that_is_stuck_is_restarted_and_no_buffer_lost", Standard::Restricted, stuck),
    ]
}

/// The daemon of the manifest, but that the kubelet is out of patience sooner.
async fn stuck(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let ground = scene.ground;
    product::install(ground).await?;
    let generation =
        product::change(ground, json!({ "name": "plugin", "livenessProbe": impatient() })).await?;
    product::has_rolled(ground, generation).await?;
    let done = is_restarted(scene).await;
    product::install(ground).await?;
    done.map(|()| Outcome::Done)
}

/// A liveness probe whose kubelet is soon out of patience.
fn impatient() -> Value {
    json!({ "periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 5 })
}

async fn is_restarted(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    let plan = |pod: &str| agent(pod, Gpu::Claim("gpu".to_owned())).restricted().member(GROUP);
    for pod in ["producer", "consumer"] {
        scene.start(plan(pod)).await?;
    }
    let (mut producer, mut consumer) = (scene.app("producer").await?, scene.app("consumer").await?);
    members::connect(scene, &mut producer, "producer", GROUP).await?;
    members::connect(scene, &mut consumer, "consumer", GROUP).await?;
    members::publish(&mut producer, "w", WORD).await?;
    members::acquire(&mut consumer, By::Name("w".to_owned()), "before").await?;

    let begin = Instant::now();
    product::signal(scene.ground, "STOP").await?;
    look_until(RESTARTED, "the stuck daemon is restarted", async || {
        let pods = product::pods(scene.ground).await?;
        Ok(pods.iter().any(|pod| product::restarts(pod) == 1).then_some(()))
    })
    .await?;
    product::serves(scene.ground).await?;
    eprintln!("updates: a stuck daemon serves again after {:.1} s", begin.elapsed().as_secs_f64());
    members::holds(&mut consumer, "before", WORD).await?;
    let acquired = members::acquire(&mut consumer, By::Name("w".to_owned()), "after").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(&mut consumer, "after", WORD).await
}

async fn waits(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let ground = scene.ground;
    product::install(ground).await?;
    let before = product::pods(ground).await?;
    let nobodys = json!([{ "name": ROOT, "value": NOBODYS }]);
    product::change(ground, json!({ "name": "plugin", "env": nobodys, "livenessProbe": impatient() }))
        .await?;
    let waited = is_waited_for(scene, &before).await;
    product::update(ground, json!({ "name": ROOT, "$patch": "delete" })).await?;
    product::install(ground).await?;
    waited?;
    // And after some more time it counts as done.
    look_until(STARTED, "the update is done", async || {
        let status = product::daemon_set(ground).await?.status.unwrap_or_default();
        Ok((status.number_available == Some(status.desired_number_scheduled)).then_some(()))
    })
    .await?;
    Ok(Outcome::Done)
}

/// A daemon that runs and that no kubelet knows: its owner reads why, it is not restarted, and the update is not done.
async fn is_waited_for(scene: &Scene<'_>, before: &[Pod]) -> anyhow::Result<()> {
    let why = "the kubelet has not come to ask for the driver";
    let daemon = product::warning(scene.ground, "Unhealthy", why, before).await?;
    look_until(STARTED, "no daemon counts as ready", async || {
        let status = product::daemon_set(scene.ground).await?.status.unwrap_or_default();
        Ok((status.number_ready == 0 && status.number_available.unwrap_or_default() == 0).then_some(()))
    })
    .await?;
    look_until(STARTED, "the daemon has run for longer than its kubelet is patient", async || {
        let pods = product::pods(scene.ground).await?;
        let pod = pods.iter().find(|pod| pod.metadata.uid == daemon.metadata.uid);
        let pod = pod.context("the daemon's pod is gone")?;
        ensure!(runs_since_its_start(pod), "{:?}", pod.status);
        Ok((runs_for_s(pod) > OUT_OF_PATIENCE_S).then_some(()))
    })
    .await
}

fn runs_since_its_start(pod: &Pod) -> bool {
    containers(pod).iter().all(|container| {
        container["restartCount"] == 0
            && container["ready"] == false
            && container["state"]["running"].is_object()
    })
}

/// For how long its youngest container has.
fn runs_for_s(pod: &Pod) -> i64 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let starts = statuses.filter_map(|one| one.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    let youngest = starts.map(|start| start.0.as_second()).max();
    youngest.map_or(0, |start| Timestamp::now().as_second() - start)
}

/// What is said of a pod's containers.
fn containers(pod: &Pod) -> Vec<Value> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|container| json!(container)).collect()
}
