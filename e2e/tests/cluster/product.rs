//! The product on the cluster: its own manifests, with this checkout's images and the driver that the node has.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery;
use kube::{Api, Client};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::ground::Ground;
use crate::scene::await_in;

const MANIFESTS: &str = include_str!("../../../manifests/gpu-handoff.yaml");

/// Its namespace, and what is there.
const NAMESPACE: &str = "gpu-handoff";
const PLUGIN: &str = "gpu-handoff-plugin";

/// Who applies it.
const MANAGER: &str = "gpu-handoff-e2e";

/// How long it may take until the daemon serves.
const READY: Duration = Duration::from_secs(60);

/// Installs the product, and waits until it serves. Again, it changes nothing.
pub(crate) async fn install(ground: &Ground) -> anyhow::Result<()> {
    let client = ground.client.clone();
    for document in serde_yaml::Deserializer::from_str(MANIFESTS) {
        let mut object = Value::deserialize(document).context("read the manifests")?;
        if object["kind"] == "DaemonSet" {
            adapt(&mut object["spec"]["template"]["spec"], ground.is_simulated());
        }
        apply(&client, object).await?;
    }
    let plugins: Api<DaemonSet> = Api::namespaced(client, NAMESPACE);
    let is_ready = |set: Option<&DaemonSet>| {
        let status = set.and_then(|set| set.status.as_ref());
        status.is_some_and(|s| s.number_ready > 0 && s.number_ready == s.desired_number_scheduled)
    };
    await_in(&plugins, PLUGIN, "the plugin is ready", READY, is_ready).await.map(drop)
}

/// This cluster has no registry, and its GPUs are where `e2e/cluster` puts them.
fn adapt(pod: &mut Value, simulated: bool) {
    let container = &mut pod["containers"][0];
    container["image"] = json!("e2e.local/plugin:1");
    container["imagePullPolicy"] = json!("Never");
    let (host, folder) = ("/run/simcuda", "/run/simcuda");
    if !simulated {
        return;
    }
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

fn extend<const N: usize>(list: &mut Value, with: [Value; N]) {
    if let Some(list) = list.as_array_mut() {
        list.extend(with);
    }
}

async fn apply(client: &Client, object: Value) -> anyhow::Result<()> {
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
