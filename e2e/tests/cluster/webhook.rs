//! The webhook: pods that are annotated and nothing else get what they need when they are made.

use std::time::Duration;

use anyhow::ensure;
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;

use crate::members::{self, By};
use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product::{self, webhook};
use crate::program::agent;
use crate::scene::{Scene, Standard};

const GROUP: &str = "weights";
const WORD: u32 = 0x003E_B00C;
const KEY: &str = "gpu-handoff.io/group";

/// Pods that are made while the webhook's replicas are replaced.
const MEANWHILE: usize = 4;

/// How long a pod may take to run.
const RUNS: Duration = Duration::from_secs(60);

pub(crate) fn all() -> Vec<Scenario> {
    // Alone: other scenarios' pods would be asked about, too.
    vec![scenario_alone("the_webhook_adds_what_a_pod_needs", Standard::Restricted, adds)]
}

async fn adds(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    webhook::install(scene.ground).await?;
    let done = hand_over(scene).await;
    webhook::remove(scene.ground).await?;
    done.map(|()| Outcome::Done)
}

/// Annotated and no more.
async fn make(scene: &Scene<'_>, plan: Plan, annotations: &[(&str, &str)]) -> kube::Result<Pod> {
    let mut pod = plan.pod();
    let annotations = annotations.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
    pod.metadata.annotations = Some(annotations.collect());
    scene.all::<Pod>().create(&PostParams::default(), &pod).await
}

fn plan(name: &str) -> Plan {
    agent(name, Gpu::Claim("gpu".to_owned())).restricted()
}

async fn hand_over(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    let made = make(scene, plan("producer"), &[(KEY, GROUP)]).await?;
    let added = made.spec.and_then(|spec| spec.init_containers).unwrap_or_default();
    ensure!(added.first().is_some_and(|one| one.name == "gpu-handoff"), "it was given {added:?}");
    make(scene, plan("consumer"), &[(KEY, GROUP)]).await?;
    for pod in ["producer", "consumer"] {
        scene.runs(pod, RUNS).await?;
    }
    let (mut producer, mut consumer) = (scene.app("producer").await?, scene.app("consumer").await?);
    members::connect(scene, &mut producer, "producer", GROUP).await?;
    members::connect(scene, &mut consumer, "consumer", GROUP).await?;
    members::publish(&mut producer, "w", WORD).await?;
    let acquired = members::acquire(&mut consumer, By::Name("w".to_owned()), "l").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(&mut consumer, "l", WORD).await?;
    is_refused(scene).await?;
    // Its replicas are replaced, and pods come all the while.
    let generation = webhook::roll(scene.ground).await?;
    for number in 0..MEANWHILE {
        make(scene, plan(&format!("meanwhile-{number}")), &[(KEY, GROUP)]).await?;
    }
    webhook::has_rolled(scene.ground, generation).await?;
    make(scene, plan("afterwards"), &[(KEY, GROUP)]).await?;
    let newcomers = (0..MEANWHILE).map(|number| format!("meanwhile-{number}"));
    for pod in newcomers.chain(["afterwards".to_owned()]) {
        scene.runs(&pod, RUNS).await?;
        let mut app = scene.app(&pod).await?;
        members::connect(scene, &mut app, &pod, GROUP).await?;
        let acquired = members::acquire(&mut app, By::Name("w".to_owned()), "l").await?;
        ensure!(matches!(acquired, Answer::Acquired { .. }), "{pod}: {acquired:?}");
        members::holds(&mut app, "l", WORD).await?;
    }
    Ok(())
}

/// Who is denied reads why; who asks for nothing is not asked about.
async fn is_refused(scene: &Scene<'_>) -> anyhow::Result<()> {
    let denied: [(&[(&str, &str)], &str); 3] = [
        (&[("gpu-handoff.io/gruop", GROUP)], "gpu-handoff.io/group"),
        (&[(KEY, "kube-system/weights")], "kube-system"),
        (&[(KEY, GROUP), ("gpu-handoff.io/containers", "nobody")], "nobody"),
    ];
    for (annotations, words) in denied {
        match make(scene, plan("denied"), annotations).await {
            Err(kube::Error::Api(status)) => {
                let said = &status.message;
                ensure!(
                    said.contains("pods.gpu-handoff.io") && said.contains(words),
                    "{annotations:?}: {said}"
                );
            }
            other => anyhow::bail!("{annotations:?}: {other:?}"),
        }
    }
    let made = make(scene, plan("plain"), &[]).await?;
    ensure!(made.spec.is_some_and(|spec| spec.init_containers.is_none()), "it has asked for nothing");
    Ok(())
}
