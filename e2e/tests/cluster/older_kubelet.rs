//! A kubelet without the Pods API, as all before Kubernetes 1.37: the daemon watches its node's pods at the API server.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::runtime::wait::conditions::is_deleted;

use crate::ground::Ground;
use crate::members::{self, By};
use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::pods::STARTED;
use crate::product;
use crate::program::agent;
use crate::scene::{Scene, Standard, await_in};

const GROUP: &str = "weights";
const WORD: u32 = 0x001D_BEEF;
/// As they are before 1.37.
const WITHOUT: &str = "--feature-gates=PodsAPI=false";
/// Where the kubelet would serve it.
const SOCKET: &str = "/var/lib/kubelet/pods-api/pods-api.sock";

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone(
        "members_hand_over_where_the_kubelet_has_no_pods_api",
        Standard::Restricted,
        hand_over,
    )]
}

async fn hand_over(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let ground = scene.ground;
    product::install(ground).await?;
    restart_kubelet(ground, &[WITHOUT]).await?;
    let done = by_the_api_server(scene).await;
    restart_kubelet(ground, &[]).await?;
    done?;
    ensure!(asks(ground, "the kubelet's Pods API").await?, "the kubelet has a Pods API again");
    Ok(Outcome::Done)
}

/// And the daemon, which chooses whom to ask when it starts.
async fn restart_kubelet(ground: &Ground, with: &[&str]) -> anyhow::Result<()> {
    ground.daemon(&["stop", "kubelet"]).await?;
    // One that had none has left none.
    let removed = ground.inside(&["rm", "-f", SOCKET]).await;
    ground.daemon(&[&["start", "kubelet"], with].concat()).await?;
    removed?;
    product::delete_pod(ground).await?;
    product::serves(ground).await
}

async fn asks(ground: &Ground, source: &str) -> anyhow::Result<bool> {
    let log = product::log(ground).await?;
    let mut asked = log.lines().filter(|line| line.contains("pods are asked for"));
    Ok(asked.next_back().is_some_and(|line| line.contains(source)))
}

async fn by_the_api_server(scene: &Scene<'_>) -> anyhow::Result<()> {
    ensure!(asks(scene.ground, "the API server").await?, "the kubelet has no Pods API");
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    let claimed = || Gpu::Claim("gpu".to_owned());
    let begin = Instant::now();
    for (pod, group) in [("producer", GROUP), ("consumer", GROUP), ("stranger", "others")] {
        scene.make(agent(pod, claimed()).restricted().member(group)).await?;
    }
    for pod in ["producer", "consumer", "stranger"] {
        scene.runs(pod, STARTED).await?;
    }
    eprintln!("older kubelet: three members run after {:.1} s", begin.elapsed().as_secs_f64());
    let (mut producer, mut consumer) = (scene.app("producer").await?, scene.app("consumer").await?);
    let mut stranger = scene.app("stranger").await?;
    members::connect(scene, &mut producer, "producer", GROUP).await?;
    members::connect(scene, &mut consumer, "consumer", GROUP).await?;
    members::connect(scene, &mut stranger, "stranger", "others").await?;
    members::publish(&mut producer, "w", WORD).await?;
    let acquired = members::acquire(&mut consumer, By::Name("w".to_owned()), "l").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(&mut consumer, "l", WORD).await?;
    members::is_not_there(&mut stranger, By::Name("w".to_owned())).await?;
    // What is told of its end comes from the API server, too.
    let begin = Instant::now();
    let uid = scene.uid("producer").await?;
    scene.all::<Pod>().delete("producer", &DeleteParams::default()).await?;
    await_in(&scene.all::<Pod>(), "producer", "it is gone", STARTED, is_deleted(&uid)).await?;
    scene.note("producer", &["Retiring"]).await.context("its end")?;
    members::is_not_there(&mut consumer, By::Name("w".to_owned())).await?;
    members::release(&mut consumer, "l").await?;
    eprintln!("older kubelet: a member was gone after {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}
