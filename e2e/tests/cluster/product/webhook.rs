//! The product's webhook on the cluster: its own manifest, with this checkout's images.

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::wait::conditions;
use serde_json::{Value, json};

use super::{NAMESPACE, READY, apply, documents, rolled};
use crate::ground::Ground;
use crate::plan::SIDECAR;
use crate::scene::await_in;

const MANIFESTS: &str = include_str!("../../../../manifests/webhook.yaml");
const WEBHOOK: &str = "gpu-handoff-webhook";
const CONFIGURATION: &str = "pods.gpu-handoff.io";

/// Installs it, and waits until it answers.
pub(crate) async fn install(ground: &Ground) -> anyhow::Result<()> {
    for mut object in documents(MANIFESTS)? {
        if object["kind"] == "Deployment" {
            let container = &mut object["spec"]["template"]["spec"]["containers"][0];
            container["image"] = json!("e2e.local/plugin:1");
            container["imagePullPolicy"] = json!("Never");
        }
        if object["kind"] == "ConfigMap" {
            let settings = format!("image: {SIDECAR}\nimage-pull-policy: Never\n");
            object["data"]["injection.yaml"] = json!(settings);
        }
        apply(&ground.client, object).await?;
    }
    let is_ready = |deployment: Option<&Deployment>| deployment.is_some_and(is_ready);
    await_in(&deployments(ground), WEBHOOK, "the webhook is ready", READY, is_ready).await?;
    let is_trusted = |configuration: Option<&MutatingWebhookConfiguration>| {
        let webhooks = configuration.and_then(|configuration| configuration.webhooks.as_ref());
        webhooks.is_some_and(|all| all.iter().all(|one| one.client_config.ca_bundle.is_some()))
    };
    let what = "the API server is told of its authority";
    await_in(&configurations(ground), CONFIGURATION, what, READY, is_trusted).await.map(drop)
}

/// Has the API server ask it about these as well, until it is installed again.
pub(crate) async fn is_asked(ground: &Ground, about: &[Value]) -> anyhow::Result<()> {
    let patch = json!({ "webhooks": [{ "name": CONFIGURATION, "rules": about }] });
    let how = PatchParams::default();
    configurations(ground).patch(CONFIGURATION, &how, &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Removes what has others' pods ask it, and then itself.
pub(crate) async fn remove(ground: &Ground) -> anyhow::Result<()> {
    configurations(ground).delete(CONFIGURATION, &DeleteParams::default()).await?;
    let gone = conditions::is_deleted;
    let deployment = deployments(ground).get(WEBHOOK).await?.metadata.uid.unwrap_or_default();
    deployments(ground).delete(WEBHOOK, &DeleteParams::default()).await?;
    await_in(&deployments(ground), WEBHOOK, "the webhook is gone", READY, gone(&deployment)).await.map(drop)
}

/// Begins to replace its replicas; gives what [`has_rolled`] is to wait for.
pub(crate) async fn roll(ground: &Ground) -> anyhow::Result<i64> {
    let deployments = deployments(ground);
    let rolled = deployments.patch(WEBHOOK, &PatchParams::default(), &Patch::Strategic(rolled()?)).await?;
    rolled.metadata.generation.context("a deployment without a generation")
}

/// Waits until others are in their place.
pub(crate) async fn has_rolled(ground: &Ground, generation: i64) -> anyhow::Result<()> {
    let has_rolled = move |deployment: Option<&Deployment>| {
        deployment.is_some_and(|deployment| {
            let seen = deployment.status.as_ref().and_then(|status| status.observed_generation);
            seen >= Some(generation) && is_ready(deployment)
        })
    };
    await_in(&deployments(ground), WEBHOOK, "the webhook is replaced", READY, has_rolled).await.map(drop)
}

/// All of its replicas answer, and none is of an earlier kind.
fn is_ready(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.replicas;
    deployment.status.as_ref().is_some_and(|status| {
        [status.replicas, status.updated_replicas, status.ready_replicas].iter().all(|count| *count == wanted)
    })
}

fn deployments(ground: &Ground) -> Api<Deployment> {
    Api::namespaced(ground.client.clone(), NAMESPACE)
}

fn configurations(ground: &Ground) -> Api<MutatingWebhookConfiguration> {
    Api::all(ground.client.clone())
}
