//! Plain one-GPU pods of a device plugin without replicas: each has a GPU that no other pod has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use kube::runtime::wait::conditions;
use serde_json::Value;

use crate::ground::{Ground, look_until};
use crate::members::{By, acquire, connect, publish};
use crate::members_gpus::{APART, is_held_back};
use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product;
use crate::program::agent;
use crate::scene::{Scene, Standard, await_in};

/// What the device plugin offers.
const GPU: &str = "nvidia.com/gpu";
/// The daemon of the node that does.
const DEVICE_PLUGIN: &str = "gpus";
/// How long the kubelet may take to know what it offers.
const OFFERED: Duration = Duration::from_secs(60);
/// How long a pod may take to be gone.
const GONE: Duration = Duration::from_secs(60);
/// Where the simulated machine was asked which of its GPUs reach each other.
const SURVEY: &str = "/run/simcuda/survey.json";
const WORD: u32 = 0x0001_A117;

/// As many as there are GPUs. Of them all is asked which.
const PODS: [&str; 4] = ["plain-0", "plain-1", "plain-2", "plain-3"];

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone("plain_pods_on_gpus_of_their_own_are_told_why_not", Standard::Restricted, plain)]
}

async fn plain(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let (ground, gpus) = (scene.ground, scene.ground.gpus());
    if !ground.is_simulated() || gpus != PODS.len() {
        return Ok(Outcome::NotRun(format!(
            "it takes {} simulated GPUs, and this node has {gpus}",
            PODS.len()
        )));
    }
    product::install(ground).await?;
    let offered = offered(ground).await?;
    ground.daemon(&["stop", DEVICE_PLUGIN]).await?;
    ground.daemon(&["start", DEVICE_PLUGIN, "--replicas=1"]).await?;
    let done = async {
        offers(ground, gpus).await?;
        without_replicas(scene).await
    };
    let done = done.await;
    ground.daemon(&["stop", DEVICE_PLUGIN]).await?;
    ground.daemon(&["start", DEVICE_PLUGIN]).await?;
    offers(ground, offered).await?;
    done.map(|()| Outcome::Done)
}

async fn without_replicas(scene: &Scene<'_>) -> anyhow::Result<()> {
    // Each of a group of its own, to see which GPU it is given.
    let mut of = BTreeMap::new();
    for pod in PODS {
        scene.start(one_gpu(pod, pod)).await?;
        of.insert(scene.visible(pod).await?, pod);
    }
    ensure!(of.len() == PODS.len(), "two of them have one GPU: {of:?}");
    let first = PODS[0];
    let own = of.iter().find(|(_, pod)| **pod == first).map(|(gpu, _)| gpu.clone()).context("its GPU")?;
    let reached = reached_from(scene.ground, &own).await?;
    ensure!(!reached.is_empty() && reached.len() + 1 < of.len(), "{own} reaches {reached:?}");
    let (near, far): (Vec<_>, Vec<_>) =
        of.iter().filter(|(_, pod)| **pod != first).partition(|(gpu, _)| reached.contains(*gpu));

    // The kubelet gives a pod the only GPU that is free. Whether it reaches the other's or not, neither application is started, and
    // the owner reads which of both it is and what to do: a container has the device nodes of its own GPUs alone.
    takes_the_place_of(scene, near[0].1).await?;
    scene.make(one_gpu("near", first)).await?;
    is_told(scene, "near", "GpuNotReachable", [near[0].0, &own]).await?;
    takes_the_place_of(scene, far[0].1).await?;
    scene.make(one_gpu("far", first)).await?;
    is_told(scene, "far", "NoPeerAccess", [far[0].0, ""]).await?;

    // One that starts all the same is refused where its driver would crash.
    takes_the_place_of(scene, "near").await?;
    scene.start(one_gpu("anyway", first).starts_anyway()).await?;
    ensure!(scene.visible("anyway").await? == *near[0].0, "it has another GPU than the one that was free");
    let (mut producer, mut consumer) = (scene.app(first).await?, scene.app("anyway").await?);
    connect(scene, &mut producer, first, first).await?;
    connect(scene, &mut consumer, "anyway", first).await?;
    publish(&mut producer, "w", WORD).await?;
    let refused = acquire(&mut consumer, By::Name("w".to_owned()), "l").await?;
    ensure!(matches!(&refused, Answer::Refused { code, .. } if code == "GPU_NOT_REACHABLE"), "{refused:?}");
    Ok(())
}

fn one_gpu(name: &str, group: &str) -> Plan {
    agent(name, Gpu::Plugin).restricted().member(group)
}

/// Held back for this reason, which names these GPUs.
async fn is_told(scene: &Scene<'_>, pod: &str, reason: &str, gpus: [&str; 2]) -> anyhow::Result<()> {
    is_held_back(scene, pod).await?;
    let notes = scene.notes(pod).await?;
    let told =
        notes.iter().find(|(told, _)| APART.contains(&told.as_str())).context("what it was told first")?;
    ensure!(
        told.0 == reason && gpus.iter().all(|gpu| told.1.contains(gpu)),
        "{pod}: {told:?}, not {reason} of {gpus:?}"
    );
    Ok(())
}

/// A pod ends, and its GPU is the only one that is free.
async fn takes_the_place_of(scene: &Scene<'_>, pod: &str) -> anyhow::Result<()> {
    let pods = scene.all::<Pod>();
    let uid = pods.get(pod).await?.metadata.uid.context("a pod without a UID")?;
    pods.delete(pod, &DeleteParams::default()).await?;
    await_in(&pods, pod, "the pod is gone", GONE, conditions::is_deleted(&uid)).await.map(drop)
}

/// The GPUs that one of them reaches, as the driver says.
async fn reached_from(ground: &Ground, own: &str) -> anyhow::Result<BTreeSet<String>> {
    let survey: Value = serde_json::from_str(&ground.inside(&["cat", SURVEY]).await?)?;
    let links = survey["links"].as_array().context("a survey without links")?;
    let reached = links.iter().filter(|link| link["from"] == own && link["access"] == true);
    Ok(reached.filter_map(|link| link["to"].as_str().map(str::to_owned)).collect())
}

/// How many GPUs the node offers to pods.
async fn offered(ground: &Ground) -> anyhow::Result<usize> {
    let nodes: Api<Node> = Api::all(ground.client.clone());
    let nodes = nodes.list(&ListParams::default()).await?;
    let allocatable =
        nodes.items.iter().filter_map(|node| node.status.as_ref()?.allocatable.as_ref()?.get(GPU));
    allocatable.map(|count| count.0.parse::<usize>().context("a count of GPUs")).sum()
}

async fn offers(ground: &Ground, gpus: usize) -> anyhow::Result<()> {
    look_until(OFFERED, &format!("the node offers {gpus} GPUs"), async || {
        Ok((offered(ground).await? == gpus).then_some(()))
    })
    .await
}
