//! An update of the daemon goes on when the new one serves, and not before.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::ground::look_until;
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::pods::STARTED;
use crate::product;
use crate::scene::{Scene, Standard};

/// Where the daemon looks for its kubelet.
const ROOT: &str = "GPU_HANDOFF_KUBELET_ROOT";
/// Where it may make its sockets, and no kubelet comes.
const NOBODYS: &str = "/run/gpu-handoff/nobodys-kubelet";

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone("an_update_waits_until_the_daemon_serves", Standard::Restricted, waits)]
}

async fn waits(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let ground = scene.ground;
    product::install(ground).await?;
    let before = product::pods(ground).await?;
    let before: Vec<_> = before.into_iter().filter_map(|pod| pod.metadata.name).collect();
    product::update(ground, json!({ "name": ROOT, "value": NOBODYS })).await?;
    let waited = is_waited_for(scene, &before).await;
    let generation = product::update(ground, json!({ "name": ROOT, "$patch": "delete" })).await?;
    product::has_rolled(ground, generation).await?;
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
async fn is_waited_for(scene: &Scene<'_>, before: &[String]) -> anyhow::Result<()> {
    let why = "the kubelet has not come to ask for the driver";
    let pod = product::warning(scene.ground, "Unhealthy", why, before).await?;
    let set: DaemonSet = product::daemon_set(scene.ground).await?;
    let status = set.status.unwrap_or_default();
    ensure!(status.number_ready == 0 && status.number_available.unwrap_or_default() == 0, "{status:?}");
    let pods = product::pods(scene.ground).await?;
    let daemon = pods.iter().find(|one| one.metadata.name.as_deref() == Some(&pod)).context("no such pod")?;
    ensure!(runs_since_its_start(daemon), "{pod}: {:?}", daemon.status);
    Ok(())
}

fn runs_since_its_start(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let is_first = |container: &Value| {
        container["restartCount"] == 0
            && container["ready"] == false
            && container["state"]["running"].is_object()
    };
    let containers = containers.into_iter().flatten().map(|container| json!(container));
    containers.collect::<Vec<_>>().iter().all(is_first)
}
