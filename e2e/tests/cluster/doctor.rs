//! `gpu-handoff doctor` in the plugin's pod: what is well, and what is not.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::{AttachParams, DeleteParams, ListParams, Patch, PatchParams};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::ground::look_until;
use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product::{self, NAMESPACE};
use crate::program::agent;
use crate::scene::{Scene, Standard, await_in};

const MANIFESTS: &str = include_str!("../../../manifests/webhook.yaml");
const PROGRAM: &str = "gpu-handoff-webhook";
const DRIVER: &str = "gpu-handoff.io";
const CONFIGURATION: &str = "pods.gpu-handoff.io";

/// How long the webhook may take to serve, and the cluster to tell what has changed.
const READY: Duration = Duration::from_secs(90);

/// How long the command may take.
const COMMAND: Duration = Duration::from_secs(30);

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone("doctor_finds_what_is_wrong", Standard::Restricted, finds)]
}

/// Where all is installed it finds nothing, and then what is taken away, with what to do about it.
async fn finds(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    scene.start(agent("member", Gpu::Plugin).restricted().member("weights")).await?;
    let (code, told) = asked(scene, &["status", "-o", "json"]).await?;
    let told: Value = serde_json::from_str(&told).with_context(|| format!("exit code {code}: {told}"))?;
    anyhow::ensure!(told["kubelet"]["registration"] == "REGISTERED", "the kubelet: {told:#}");
    let is_ours = |one: &Value| one["namespace"] == scene.namespace.as_str() && one["pod"] == "member";
    let ours = told["slots"]["members"].as_array().and_then(|all| all.iter().find(|&one| is_ours(one)));
    let ours = ours.with_context(|| format!("no member: {told:#}"))?;
    anyhow::ensure!(ours["containers"].as_u64() >= Some(2), "its containers: {ours:#}");

    install_webhook(scene).await?;
    let told = until(scene, 0, "all is well").await?;
    let of_node =
        ["kubelet.registration", "kubelet.pods", "kubelet.devices", "gpus.driver", "cluster.csi-driver"];
    let of_webhook = ["webhook.configuration", "webhook.endpoints", "webhook.version", "webhook.namespaces"];
    for id in of_node.into_iter().chain(of_webhook) {
        anyhow::ensure!(of(&told, id)["verdict"] == "ok", "{id}: {told:#}");
    }

    pod_info(scene, false).await?;
    let told = until(scene, 1, "whose a volume is is not told").await?;
    let found = of(&told, "cluster.csi-driver");
    anyhow::ensure!(found["verdict"] == "problem", "{told:#}");
    let seen = found["seen"].as_str().unwrap_or_default();
    anyhow::ensure!(seen.contains("podInfoOnMount is not true"), "{found:#}");
    pod_info(scene, true).await?;
    until(scene, 0, "all is well again").await?;

    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client());
    configurations.delete(CONFIGURATION, &DeleteParams::default()).await?;
    let told = until(scene, 1, "the webhook's configuration is missed").await?;
    let found = of(&told, "webhook.configuration");
    anyhow::ensure!(found["verdict"] == "problem", "{told:#}");
    let remedy = found["remedy"].as_str().unwrap_or_default();
    anyhow::ensure!(remedy.contains("kubectl apply -f manifests/webhook.yaml"), "{found:#}");
    let (code, text) = asked(scene, &["doctor"]).await?;
    anyhow::ensure!(code == 1 && text.contains("problem  webhook.configuration"), "as text: {text}");

    let deployments: Api<Deployment> = Api::namespaced(scene.client(), NAMESPACE);
    deployments.delete(PROGRAM, &DeleteParams::foreground()).await?;
    look_until(READY, "the webhook's pods are missed", async || {
        let (_, told) = asked(scene, &["doctor", "-o", "json"]).await?;
        let told: Value = serde_json::from_str(&told)?;
        let missed = of(&told, "webhook.endpoints")["verdict"] == "problem";
        Ok((missed && of(&told, "webhook.version")["verdict"] == "could-not-check").then_some(()))
    })
    .await?;
    Ok(Outcome::Done)
}

/// Has the kubelet say whose a volume is, or not.
async fn pod_info(scene: &Scene<'_>, told: bool) -> anyhow::Result<()> {
    let drivers: Api<CSIDriver> = Api::all(scene.client());
    let change = Patch::Merge(json!({ "spec": { "podInfoOnMount": told } }));
    drivers.patch(DRIVER, &PatchParams::default(), &change).await.map(drop).context("change the CSIDriver")
}

/// What a check has found.
fn of<'a>(told: &'a Value, id: &str) -> &'a Value {
    let found = told["checks"].as_array().and_then(|all| all.iter().find(|one| one["id"] == id));
    found.unwrap_or(&Value::Null)
}

/// Has the doctor look until it ends with this code, and gives what it says.
async fn until(scene: &Scene<'_>, wanted: i32, what: &str) -> anyhow::Result<Value> {
    let last = std::cell::RefCell::new(String::new());
    let looked = look_until(READY, what, async || {
        let (code, told) = asked(scene, &["doctor", "-o", "json"]).await?;
        let found = (code == wanted).then(|| serde_json::from_str(&told)).transpose()?;
        *last.borrow_mut() = told;
        Ok(found)
    });
    looked.await.with_context(|| format!("it says {}", last.borrow()))
}

/// Runs the command in the plugin's pod: its exit code and what it writes.
async fn asked(scene: &Scene<'_>, arguments: &[&str]) -> anyhow::Result<(i32, String)> {
    let pods: Api<Pod> = Api::namespaced(scene.client(), NAMESPACE);
    let plugins = ListParams::default().labels("app.kubernetes.io/component=plugin");
    let pod = pods.list(&plugins).await?.items.into_iter().find_map(|pod| pod.metadata.name);
    let pod = pod.context("no pod of the plugin")?;
    let command: Vec<&str> = ["gpu-handoff"].iter().chain(arguments).copied().collect();
    let how = AttachParams::default().container("plugin").stdout(true).stderr(true);
    tokio::time::timeout(COMMAND, async {
        let mut process = pods.exec(&pod, command, &how).await?;
        let (mut out, mut error) = (String::new(), String::new());
        let (mut stdout, mut stderr) =
            (process.stdout().context("no output")?, process.stderr().context("no error output")?);
        let ended = process.take_status().context("no status")?;
        tokio::try_join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut error))?;
        let status = ended.await.context("the command's end is not told")?;
        if status.status.as_deref() == Some("Success") {
            return Ok((0, out));
        }
        let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
        let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
        let code = code.and_then(|cause| cause.message.as_deref()?.parse().ok());
        code.map(|code| (code, out)).with_context(|| format!("{:?}: {error}", status.message))
    })
    .await
    .map_err(|_| anyhow::anyhow!("{arguments:?} took longer than {COMMAND:?}"))?
}

/// Installs the webhook, for pods of this scenario's namespace alone: what is left of it in the end concerns nobody else.
async fn install_webhook(scene: &Scene<'_>) -> anyhow::Result<()> {
    let mut configuration = None;
    for document in serde_yaml::Deserializer::from_str(MANIFESTS) {
        let mut object = Value::deserialize(document).context("read the manifests")?;
        match object["kind"].as_str() {
            Some("Deployment") => {
                let container = &mut object["spec"]["template"]["spec"]["containers"][0];
                container["image"] = json!(product::IMAGE);
                container["imagePullPolicy"] = json!("Never");
            }
            Some("MutatingWebhookConfiguration") => {
                let terms = &mut object["webhooks"][0]["namespaceSelector"]["matchExpressions"];
                let own = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": [scene.namespace] });
                terms.as_array_mut().context("no terms of namespaces")?.push(own);
                configuration = Some(object);
                continue;
            }
            _ => {}
        }
        product::apply(&scene.client(), object).await?;
    }
    product::apply(&scene.client(), configuration.context("no configuration of a webhook")?).await?;
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), NAMESPACE);
    let is_ready = |found: Option<&Deployment>| {
        let status = found.and_then(|found| found.status.as_ref());
        status.is_some_and(|status| status.ready_replicas == Some(2))
    };
    await_in(&deployments, PROGRAM, "the webhook is ready", READY, is_ready).await.map(drop)
}
