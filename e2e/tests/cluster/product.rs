//! The product on the cluster: its own manifests, with this checkout's images and the driver that the node has.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery;
use kube::runtime::wait::conditions;
use kube::{Api, Client};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::ground::{Ground, look_until};
use crate::scene::await_in;

pub(crate) mod webhook;

const MANIFESTS: &str = include_str!("../../../manifests/gpu-handoff.yaml");
const POLICIES: &str = include_str!("../../../manifests/policy.yaml");

/// Its namespace, and what is there.
pub(crate) const NAMESPACE: &str = "gpu-handoff";
pub(crate) const PLUGIN: &str = "gpu-handoff-plugin";
const POLICY: &str = "gpu-handoff-policy";
/// What the daemon logs when a policy is in force.
const GOES_BY: &str = "another policy is in force";
const LABELS: &str = "app.kubernetes.io/name=gpu-handoff,app.kubernetes.io/component=plugin";
/// Its program, as this checkout has it.
pub(crate) const IMAGE: &str = "e2e.local/plugin:1";

/// Who applies it.
const MANAGER: &str = "gpu-handoff-e2e";

/// How long it may take until another policy is in force.
const CHANGED: Duration = Duration::from_secs(120);

/// How long it may take until the daemon serves.
const READY: Duration = Duration::from_secs(60);

/// Installs the product, and waits until it serves. Again, it changes nothing.
pub(crate) async fn install(ground: &Ground) -> anyhow::Result<()> {
    install_image(ground, IMAGE).await
}

/// The same with another image of the daemon.
pub(crate) async fn install_image(ground: &Ground, image: &str) -> anyhow::Result<()> {
    let client = ground.client.clone();
    for mut object in documents(MANIFESTS)?.into_iter().chain(documents(POLICIES)?) {
        if object["kind"] == "DaemonSet" {
            let pod = &mut object["spec"]["template"]["spec"];
            pod["containers"][0]["image"] = json!(image);
            adapt(pod, ground.is_simulated());
        }
        apply(&client, object).await?;
    }
    let set = daemons(ground).get(PLUGIN).await?;
    has_rolled(ground, set.metadata.generation.context("a daemon set without a generation")?).await
}

/// What the daemon has logged since it was started.
pub(crate) async fn log(ground: &Ground) -> anyhow::Result<String> {
    let pods: Api<Pod> = Api::namespaced(ground.client.clone(), NAMESPACE);
    let there = pods.list(&ListParams::default().labels(LABELS)).await?;
    let is_running = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    let pod =
        there.items.into_iter().find(is_running).and_then(|pod| pod.metadata.name).context("no daemon")?;
    Ok(pods.logs(&pod, &LogParams::default()).await?)
}

fn documents(manifests: &str) -> anyhow::Result<Vec<Value>> {
    let documents = serde_yaml::Deserializer::from_str(manifests).map(Value::deserialize);
    documents.collect::<Result<_, _>>().context("read the manifests")
}

/// Waits until the daemon is ready.
pub(crate) async fn serves(ground: &Ground) -> anyhow::Result<()> {
    let is_ready = |set: Option<&DaemonSet>| set.is_some_and(is_ready);
    await_in(&daemons(ground), PLUGIN, "the plugin is ready", READY, is_ready).await.map(drop)
}

fn is_ready(set: &DaemonSet) -> bool {
    let status = set.status.as_ref();
    status.is_some_and(|s| s.number_ready > 0 && s.number_ready == s.desired_number_scheduled)
}

fn daemons(ground: &Ground) -> Api<DaemonSet> {
    Api::namespaced(ground.client.clone(), NAMESPACE)
}

/// Has the daemon go by this policy, and waits until it does. Of scenarios that have the cluster alone: there is one policy.
pub(crate) async fn go_by(ground: &Ground, policy: &Value) -> anyhow::Result<()> {
    let before = count_in_log(ground, GOES_BY).await?;
    let text = serde_yaml::to_string(policy)?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": POLICY, "namespace": NAMESPACE },
        "data": { "policy.yaml": text },
    });
    apply(&ground.client, map).await?;
    // The kubelet looks at the ConfigMap when something is new about the pod, and else once a minute.
    let touched = json!({ "metadata": { "annotations": { "e2e.local/policy": before.to_string() } } });
    for pod in pods(ground).await? {
        let name = pod.metadata.name.unwrap_or_default();
        plugin_pods(ground).patch(&name, &PatchParams::default(), &Patch::Merge(&touched)).await?;
    }
    look_until(CHANGED, "another policy is in force", async || {
        Ok((count_in_log(ground, GOES_BY).await? > before).then_some(()))
    })
    .await
}

/// How often the daemon has written this to its log.
pub(crate) async fn count_in_log(ground: &Ground, text: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    for pod in pods(ground).await? {
        let name = pod.metadata.name.unwrap_or_default();
        let log = plugin_pods(ground).logs(&name, &LogParams::default()).await?;
        count += log.lines().filter(|line| line.contains(text)).count();
    }
    Ok(count)
}

/// The daemon's pods.
pub(crate) async fn pods(ground: &Ground) -> anyhow::Result<Vec<Pod>> {
    let there = plugin_pods(ground).list(&ListParams::default().labels(LABELS)).await?;
    ensure!(!there.items.is_empty(), "the plugin has no pod");
    Ok(there.items)
}

/// How often a pod's containers have been started again.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|container| container.restart_count).sum()
}

/// Whether these are the same pods, with the same containers.
pub(crate) fn are_the_same(before: &[Pod], now: &[Pod]) -> bool {
    let of = |pods: &[Pod]| -> BTreeMap<_, _> {
        pods.iter().map(|pod| (pod.metadata.uid.clone(), restarts(pod))).collect()
    };
    of(before) == of(now)
}

/// Has the daemon go from all nodes, or come again.
pub(crate) async fn be_away(ground: &Ground, away: bool) -> anyhow::Result<()> {
    let there = pods(ground).await;
    let nowhere = if away { json!("yes") } else { Value::Null };
    let patch =
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "e2e.local/nowhere": nowhere } } } } });
    let set = daemons(ground).patch(PLUGIN, &PatchParams::default(), &Patch::Merge(patch)).await?;
    if !away {
        return has_rolled(ground, set.metadata.generation.context("a daemon set without a generation")?)
            .await;
    }
    for pod in there? {
        let (name, uid) = (pod.metadata.name.unwrap_or_default(), pod.metadata.uid.unwrap_or_default());
        await_in(&plugin_pods(ground), &name, "the plugin is away", READY, conditions::is_deleted(&uid))
            .await?;
    }
    Ok(())
}

fn plugin_pods(ground: &Ground) -> Api<Pod> {
    Api::namespaced(ground.client.clone(), NAMESPACE)
}

/// Deletes the daemon's pod; another one comes.
pub(crate) async fn delete_pod(ground: &Ground) -> anyhow::Result<()> {
    let there = self::pods(ground).await?;
    let pods = plugin_pods(ground);
    for pod in there {
        let (name, uid) = (pod.metadata.name.unwrap_or_default(), pod.metadata.uid.unwrap_or_default());
        pods.delete(&name, &DeleteParams::default()).await?;
        await_in(&pods, &name, "the plugin's pod is gone", READY, conditions::is_deleted(&uid)).await?;
    }
    Ok(())
}

/// Sends the daemon a signal: itself alone, the process whose children hear the pods.
pub(crate) async fn signal(ground: &Ground, signal: &str) -> anyhow::Result<()> {
    let script = format!(
        r#"
        for process in /proc/[0-9]*; do
            if tr '\0' ' ' < "$process/cmdline" 2>/dev/null | grep -q '^[^ ]*gpu-handoff-plugin node '; then
                kill -{signal} "${{process#/proc/}}" && signalled=yes
            fi
        done
        [ "${{signalled:-}}" ]
        "#
    );
    ground.inside(&["sh", "-c", &script]).await.map(drop)
}

/// Begins a rolling update of the daemon, to what it is already; gives what [`has_rolled`] is to wait for.
pub(crate) async fn roll(ground: &Ground) -> anyhow::Result<i64> {
    let set = daemons(ground).patch(PLUGIN, &PatchParams::default(), &Patch::Strategic(rolled()?)).await?;
    set.metadata.generation.context("a daemon set without a generation")
}

/// What has all pods of a workload replaced.
fn rolled() -> anyhow::Result<Value> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos().to_string();
    Ok(json!({ "spec": { "template": { "metadata": { "annotations": { "e2e.local/rolled": now } } } } }))
}

/// Gives the daemon this variable, or takes it away, by an update; gives what [`has_rolled`] is to wait for.
pub(crate) async fn update(ground: &Ground, variable: Value) -> anyhow::Result<i64> {
    change(ground, json!({ "name": "plugin", "env": [variable] })).await
}

/// Changes the daemon's container so, by an update; gives what [`has_rolled`] is to wait for.
pub(crate) async fn change(ground: &Ground, container: Value) -> anyhow::Result<i64> {
    let patch = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
    let set = daemons(ground).patch(PLUGIN, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    set.metadata.generation.context("a daemon set without a generation")
}

/// What the cluster says of the daemons.
pub(crate) async fn daemon_set(ground: &Ground) -> anyhow::Result<DaemonSet> {
    Ok(daemons(ground).get(PLUGIN).await?)
}

/// Waits until this is told of a pod of the daemon that is there and was not among those; gives it.
pub(crate) async fn warning(
    ground: &Ground,
    reason: &str,
    text: &str,
    before: &[Pod],
) -> anyhow::Result<Pod> {
    let events: Api<Event> = Api::namespaced(ground.client.clone(), NAMESPACE);
    let uid = |pod: &Pod| pod.metadata.uid.clone();
    let known: Vec<_> = before.iter().map(uid).collect();
    look_until(READY, &format!("{reason} of the daemon is told: {text}"), async || {
        let there = plugin_pods(ground).list(&ListParams::default().labels(LABELS)).await?;
        for pod in there.items.into_iter().filter(|pod| !known.contains(&uid(pod))) {
            let of = format!("reason={reason},involvedObject.uid={}", uid(&pod).unwrap_or_default());
            let told = events.list(&ListParams::default().fields(&of)).await?.items;
            if told.iter().any(|event| event.message.as_ref().is_some_and(|said| said.contains(text))) {
                return Ok(Some(plugin_pods(ground).get(&pod.metadata.name.unwrap_or_default()).await?));
            }
        }
        Ok(None)
    })
    .await
}

/// Waits until the update is done.
pub(crate) async fn has_rolled(ground: &Ground, generation: i64) -> anyhow::Result<()> {
    let has_rolled = move |set: Option<&DaemonSet>| {
        set.is_some_and(|set| {
            let status = set.status.as_ref();
            let updated = status.is_some_and(|s| {
                s.observed_generation >= Some(generation)
                    && s.updated_number_scheduled == Some(s.desired_number_scheduled)
            });
            updated && is_ready(set)
        })
    };
    await_in(&daemons(ground), PLUGIN, "the plugin is updated", READY, has_rolled).await.map(drop)
}

/// This cluster has no registry, and its GPUs are where `e2e/cluster` puts them.
fn adapt(pod: &mut Value, simulated: bool) {
    let container = &mut pod["containers"][0];
    container["imagePullPolicy"] = json!("Never");
    if !simulated {
        return mount_driver(pod);
    }
    let (host, folder) = ("/run/simcuda", "/run/simcuda");
    let args = ["--nvidia-proc-root", "/run/simcuda/proc", "--nvidia-dev-root", "/run/simcuda/dev"];
    extend(&mut container["args"], args.map(|arg| json!(arg)));
    extend(&mut container["env"], [json!({ "name": "SIMCUDA_DIR", "value": folder })]);
    let library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1";
    extend(
        &mut container["volumeMounts"],
        [
            json!({ "name": "machine", "mountPath": folder }),
            json!({ "name": "driver", "mountPath": library, "readOnly": true }),
        ],
    );
    extend(
        &mut pod["volumes"],
        [
            json!({ "name": "machine", "hostPath": { "path": format!("{host}/machine"), "type": "Directory" } }),
            json!({ "name": "driver", "hostPath": { "path": format!("{host}/driver/libcuda.so.1"), "type": "File" } }),
        ],
    );
}

/// As docs/kubernetes.md says for nodes without NVIDIA's container toolkit.
fn mount_driver(pod: &mut Value) {
    let folder =
        std::env::var("GPU_HANDOFF_E2E_DRIVER").unwrap_or_else(|_| "/usr/local/nvidia/lib64".to_owned());
    let container = &mut pod["containers"][0];
    extend(&mut container["env"], [json!({ "name": "LD_LIBRARY_PATH", "value": folder })]);
    extend(
        &mut container["volumeMounts"],
        [json!({ "name": "driver", "mountPath": folder, "readOnly": true })],
    );
    let host = json!({ "name": "driver", "hostPath": { "path": folder, "type": "Directory" } });
    extend(&mut pod["volumes"], [host]);
}

fn extend<const N: usize>(list: &mut Value, with: [Value; N]) {
    if let Some(list) = list.as_array_mut() {
        list.extend(with);
    }
}

/// Applies an object of a manifest.
pub(crate) async fn apply(client: &Client, object: Value) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.as_ref().context("an object without a kind")?;
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let kind = GroupVersionKind::gvk(group, version, &types.kind);
    let name = object.metadata.name.clone().context("an object without a name")?;
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = match (&object.metadata.namespace, capabilities.scope) {
        (Some(namespace), discovery::Scope::Namespaced) => {
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
        _ => Api::all_with(client.clone(), &resource),
    };
    let how = PatchParams::apply(MANAGER).force();
    api.patch(&name, &how, &Patch::Apply(&object))
        .await
        .with_context(|| format!("apply {} {name}", kind.kind))?;
    Ok(())
}
