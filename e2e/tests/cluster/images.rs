//! The product's own images, as its Dockerfile makes them: what they start, as whom, and with which libraries.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::Api;
use kube::api::{ListParams, LogParams, PostParams};

use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario};
use crate::scene::{Scene, Standard, await_in};

const SIDECAR: &str = "e2e.local/sidecar:1";
const PLUGIN: &str = "e2e.local/plugin:1";

/// All of the workspace's packages have one.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long a pod may take until its program has ended.
const ENDED: Duration = Duration::from_secs(60);

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario("image_of_the_sidecar", Standard::Restricted, sidecar),
        scenario("image_of_the_plugin", Standard::Baseline, plugin),
    ]
}

/// It passes the restricted standard as it is: the pod names no user, and the kubelet looks whether the image's is root.
async fn sidecar(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if let Some(lacking) = lacking(scene, SIDECAR).await? {
        return Ok(lacking);
    }
    let plan = |name, command| Plan::new(name, Gpu::None, command).restricted();
    let said = said_by(scene, plan("sidecar", &[]), SIDECAR, &["--version"]).await?;
    anyhow::ensure!(said == format!("gpu-handoff-sidecar {VERSION}\n"), "it says {said:?}");
    let explain = ["gpu-handoff", "explain", "NOT_FOUND"];
    let said = said_by(scene, plan("command", &explain), SIDECAR, &[]).await?;
    anyhow::ensure!(said.starts_with("NOT_FOUND"), "the command says {said:?}");
    Ok(Outcome::Done)
}

/// It has what the driver that the node brings is linked against.
async fn plugin(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if let Some(lacking) = lacking(scene, PLUGIN).await? {
        return Ok(lacking);
    }
    let said = said_by(scene, Plan::new("plugin", Gpu::None, &[]), PLUGIN, &["--version"]).await?;
    anyhow::ensure!(said == format!("gpu-handoff-plugin {VERSION}\n"), "it says {said:?}");
    let survey = said_by(scene, Plan::new("survey", Gpu::Plugin, &[]), PLUGIN, &["gpu-survey"]).await?;
    let told: serde_json::Value =
        serde_json::from_str(&survey).with_context(|| format!("the survey says {survey:?}"))?;
    let gpus = told["devices"].as_array().map(Vec::len);
    anyhow::ensure!(gpus == Some(1), "the pod has one GPU, and the survey says {survey}");
    Ok(Outcome::Done)
}

/// The outcome, if the node does not have the image.
async fn lacking(scene: &Scene<'_>, image: &str) -> anyhow::Result<Option<Outcome>> {
    let nodes = Api::<Node>::all(scene.client()).list(&ListParams::default()).await?;
    let images = nodes.items.iter().filter_map(|node| node.status.as_ref()?.images.as_ref()).flatten();
    let mut names = images.filter_map(|one| one.names.as_ref()).flatten();
    let why = || Outcome::NotRun(format!("no {image}: it takes a builder (apt-get install buildah)"));
    Ok((!names.any(|name| name == image)).then(why))
}

/// Runs an image as the user that it names, until its program ends well, and gives what that writes.
async fn said_by(scene: &Scene<'_>, plan: Plan, image: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut pod = plan.pod();
    let spec = pod.spec.as_mut().context("a pod without a specification")?;
    spec.restart_policy = Some("Never".to_owned());
    spec.containers.iter_mut().for_each(|container| start_image(container, image, arguments));
    let pods = scene.all::<Pod>();
    let name =
        pods.create(&PostParams::default(), &pod).await?.metadata.name.context("a pod without a name")?;
    let phase = |pod: Option<&Pod>| pod.and_then(|pod| pod.status.as_ref()?.phase.clone());
    let ended = |pod: Option<&Pod>| phase(pod).is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    let pod = await_in(&pods, &name, "the program has ended", ENDED, ended).await?;
    let said = pods.logs(&name, &LogParams::default()).await?;
    let phase = phase(pod.as_ref());
    anyhow::ensure!(phase.as_deref() == Some("Succeeded"), "{image} with {arguments:?}: {phase:?}: {said}");
    Ok(said)
}

fn start_image(container: &mut Container, image: &str, arguments: &[&str]) {
    container.image = Some(image.to_owned());
    container.args = Some(arguments.iter().map(|&word| word.to_owned()).collect());
    if let Some(security) = &mut container.security_context {
        security.run_as_user = None;
    }
}
