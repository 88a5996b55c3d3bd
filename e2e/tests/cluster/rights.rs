//! What the daemon's own token can do at the API server, and what not.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Node, NodeSpec, Pod, PodSpec, Secret, ServiceAccount, Toleration,
};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::json;

use crate::ground::look_until;
use crate::plan::{ANY_USER, Gpu};
use crate::play::{Outcome, Scenario, scenario};
use crate::product;
use crate::program::agent;
use crate::scene::{Scene, Standard};

/// The API's answer where something is not allowed.
const FORBIDDEN: u16 = 403;

/// How long the API server may take to know of what it was told.
const KNOWN: std::time::Duration = std::time::Duration::from_secs(20);

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario("rights_end_at_the_own_node", Standard::Restricted, end_at_the_own_node)]
}

async fn end_at_the_own_node(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    scene.start(agent("member", Gpu::None).restricted().member("rights")).await?;
    let daemon = scene.ground.as_whoever_has(&token(scene).await?).await?;
    let elsewhere = format!("elsewhere-{}", scene.namespace);
    make_far_pod(scene, &elsewhere).await?;
    let tried = try_all(scene, &daemon, &elsewhere).await;
    // Nobody runs that node: what is bound to it goes at once, or never.
    let now = DeleteParams::default().grace_period(0);
    scene.all::<Pod>().delete("far", &now).await.context("remove the far pod")?;
    nodes(scene).delete(&elsewhere, &DeleteParams::default()).await.context("remove the far node")?;
    tried.map(|()| Outcome::Done)
}

async fn try_all(scene: &Scene<'_>, daemon: &Client, elsewhere: &str) -> anyhow::Result<()> {
    let far = look_until(KNOWN, "the far pod's eviction is refused", async || {
        // A pod that has just been made is not known to the admission yet.
        Ok(evict(scene, daemon, "far", Form::Right).await.err())
    })
    .await?;
    ensure!(far.contains(elsewhere) && far.starts_with("403"), "the pod of another node: {far}");
    for form in [Form::WithoutLabel, Form::WithoutUid] {
        for pod in ["member", "far"] {
            let refused = evict(scene, daemon, pod, form).await.err().unwrap_or_default();
            ensure!(refused.starts_with("403"), "{form:?} of {pod}: {refused}");
        }
    }
    evict(scene, daemon, "member", Form::Right).await.map_err(|e| anyhow::anyhow!("its own member: {e}"))?;
    let unbound = scene.ground.as_whoever_has(&unbound_token(scene).await?).await?;
    let refused = evict(scene, &unbound, "member", Form::Right).await.err().unwrap_or_default();
    ensure!(refused.starts_with("403"), "by a token of no node: {refused}");
    nothing_else(scene, daemon).await
}

/// What else somebody who has taken a node over would like to do.
async fn nothing_else(scene: &Scene<'_>, daemon: &Client) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(daemon.clone(), &scene.namespace);
    let how = PatchParams::default();
    let status = json!({ "status": { "phase": "Failed" } });
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    for pod in ["member", "far"] {
        forbidden("write a status", pods.patch_status(pod, &how, &Patch::Merge(&status)).await)?;
        forbidden("write a label", pods.patch(pod, &how, &Patch::Merge(&label)).await)?;
        forbidden("delete", pods.delete(pod, &DeleteParams::default()).await)?;
        forbidden("read", pods.get(pod).await)?;
        forbidden("read a log", pods.logs(pod, &kube::api::LogParams::default()).await)?;
    }
    let node = json!({ "spec": { "unschedulable": true } });
    let all = ListParams::default();
    let its_nodes: Api<Node> = Api::all(daemon.clone());
    for node_name in nodes(scene).list(&all).await?.into_iter().filter_map(|node| node.metadata.name) {
        forbidden("write a node", its_nodes.patch(&node_name, &how, &Patch::Merge(&node)).await)?;
    }
    forbidden("read secrets", Api::<Secret>::all(daemon.clone()).list(&all).await)?;
    let own: Api<ConfigMap> = Api::namespaced(daemon.clone(), product::NAMESPACE);
    let policy = json!({ "data": { "policy.yaml": "version: gpu-handoff.io/v1\norphans: kill\n" } });
    forbidden("write the policy", own.patch("gpu-handoff-policy", &how, &Patch::Merge(&policy)).await)
}

fn forbidden<T>(what: &str, outcome: Result<T, kube::Error>) -> anyhow::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => Ok(()),
        Err(e) => Err(anyhow::Error::new(e).context(format!("{what}: not forbidden, but"))),
        Ok(_) => Err(anyhow::anyhow!("the daemon's token can {what}")),
    }
}

/// How an eviction is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Right,
    WithoutLabel,
    WithoutUid,
}

/// Asks for an eviction, to be tried only; else says the code and why not.
async fn evict(scene: &Scene<'_>, daemon: &Client, pod: &str, form: Form) -> Result<(), String> {
    let there = scene.all::<Pod>().get(pod).await.map_err(|e| e.to_string())?;
    let uid = there.metadata.uid.filter(|_| form != Form::WithoutUid);
    let label = ("gpu-handoff.io/own-node".to_owned(), "only".to_owned());
    let labels = (form != Form::WithoutLabel).then(|| BTreeMap::from([label]));
    let preconditions = Preconditions { uid, resource_version: None };
    let eviction = Eviction {
        metadata: ObjectMeta {
            name: Some(pod.to_owned()),
            namespace: Some(scene.namespace.clone()),
            labels,
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            dry_run: Some(vec!["All".to_owned()]),
            preconditions: Some(preconditions),
            ..DeleteOptions::default()
        }),
    };
    let pods: Api<Pod> = Api::namespaced(daemon.clone(), &scene.namespace);
    let asked: Result<Status, kube::Error> =
        pods.create_subresource("eviction", pod, &PostParams::default(), &eviction).await;
    match asked {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(format!("{} {}", status.code, status.message)),
        Err(e) => Err(e.to_string()),
    }
}

/// A token as the daemon's pod has one.
async fn token(scene: &Scene<'_>) -> anyhow::Result<String> {
    let pod = product::pods(scene.ground).await?.into_iter().next().context("the plugin has no pod")?;
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.metadata.name,
        uid: pod.metadata.uid,
    };
    request_token(scene, Some(bound)).await
}

/// One of the same account, and of no pod.
async fn unbound_token(scene: &Scene<'_>) -> anyhow::Result<String> {
    request_token(scene, None).await
}

async fn request_token(scene: &Scene<'_>, bound: Option<BoundObjectReference>) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(scene.client(), product::NAMESPACE);
    let spec = TokenRequestSpec { bound_object_ref: bound, ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let given = accounts.create_token_request(product::PLUGIN, &PostParams::default(), &request).await?;
    given.status.and_then(|status| status.token).context("a token request without a token")
}

/// A pod on a node that nobody runs.
async fn make_far_pod(scene: &Scene<'_>, node: &str) -> anyhow::Result<()> {
    let metadata = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let spec = NodeSpec { unschedulable: Some(true), ..NodeSpec::default() };
    let made = Node { metadata: metadata(node), spec: Some(spec), status: None };
    nodes(scene).create(&PostParams::default(), &made).await.context("make a node")?;
    let pod = Pod {
        metadata: metadata("far"),
        spec: Some(PodSpec {
            node_name: Some(node.to_owned()),
            containers: vec![restricted()?],
            tolerations: Some(vec![Toleration {
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            }]),
            ..PodSpec::default()
        }),
        status: None,
    };
    scene.all::<Pod>().create(&PostParams::default(), &pod).await.context("make a pod there").map(drop)
}

fn restricted() -> anyhow::Result<Container> {
    Ok(serde_json::from_value(json!({
        "name": "nothing", "image": "nothing",
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": ANY_USER, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
        },
    }))?)
}

fn nodes(scene: &Scene<'_>) -> Api<Node> {
    Api::all(scene.client())
}
