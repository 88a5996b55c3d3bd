//! The webhook: pods that are annotated and nothing else get what they need when they are made.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::ground::look_until;
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
    is_asked_about_others(scene).await?;
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

/// What it does not know it denies, and says what it was asked; then it is asked about new pods alone again.
async fn is_asked_about_others(scene: &Scene<'_>) -> anyhow::Result<()> {
    let about = |operation: &str, what: &str| {
        json!({
            "operations": [operation], "apiGroups": [""], "apiVersions": ["v1"], "resources": [what], "scope": "Namespaced",
        })
    };
    let pods = about("CREATE", "pods");
    let others = [pods, about("UPDATE", "pods"), about("CREATE", "configmaps")];
    webhook::is_asked(scene.ground, &others).await?;
    let denied = async {
        let maps = scene.all::<ConfigMap>();
        let annotations = Some(BTreeMap::from([(KEY.to_owned(), GROUP.to_owned())]));
        let metadata = ObjectMeta { name: Some("no-pod".to_owned()), annotations, ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        is_denied("CREATE of v1 configmaps", async || {
            let made = maps.create(&PostParams::default(), &map).await;
            if made.is_ok() {
                maps.delete("no-pod", &DeleteParams::default()).await?;
            }
            made.map(drop)
        })
        .await?;
        let change = Patch::Merge(json!({ "metadata": { "labels": { "changed": "yes" } } }));
        let pods = scene.all::<Pod>();
        is_denied("UPDATE of v1 pods", async || {
            pods.patch("producer", &PatchParams::default(), &change).await.map(drop)
        })
        .await
    };
    let denied = denied.await;
    webhook::install(scene.ground).await?;
    denied
}

/// It is denied once the API server asks.
async fn is_denied(what: &str, ask: impl AsyncFn() -> kube::Result<()>) -> anyhow::Result<()> {
    let said = look_until(RUNS, &format!("{what} is denied"), async || match ask().await {
        Ok(()) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message)),
        Err(other) => Err(other.into()),
    })
    .await?;
    let wanted = format!("denied: WRONG_REQUEST (request: wanted CREATE of v1 pods, found {what})");
    ensure!(said.contains(&wanted), "{what}: {said}");
    Ok(())
}
