//! The sidecar: a native one, the first of the init containers, so that others of them can use it too.

use serde_json::{Map, Value, json};

use crate::denial::{Denial, DenialCode, Reason, Reasons};
use crate::edit::{Edit, at};
use crate::keys::{SIDECAR, SLOT_FOLDER, SLOT_VOLUME, SOCKET, SOCKET_FOLDER, SOCKET_VOLUME};
use crate::pod::{Container, Pod};
use crate::qos::Qos;
use crate::settings::{Amounts, Settings};
use crate::words::OnFailure;

/// What makes an init container a sidecar.
const ALWAYS: &str = "Always";
/// Pause between two looks at whether the sidecar is ready, in seconds.
const PROBE_PERIOD_S: u32 = 1;
/// How often it may not be before it is started anew. It holds the applications back meanwhile.
const PROBE_FAILURES: u32 = 120;
/// How long a look may take, in seconds: longer than the program itself waits.
const PROBE_TIMEOUT_S: u32 = 5;

/// What the sidecar is told.
fn arguments() -> [String; 5] {
    ["serve", "--slot", &format!("{SLOT_FOLDER}/slot.sock"), "--listen", SOCKET].map(str::to_owned)
}

/// Its mounts: volume, folder, and whether it is read-only.
const MOUNTS: [(&str, &str, bool); 2] =
    [(SLOT_VOLUME, SLOT_FOLDER, true), (SOCKET_VOLUME, SOCKET_FOLDER, false)];

pub(super) fn check(pod: &Pod, settings: &Settings, reasons: &mut Reasons) {
    let what = format!("container {SIDECAR}");
    let mut refuse = |what: &str, wanted: &str, found: &str| {
        reasons.add(Reason::new(DenialCode::NameTaken, what, wanted, found));
    };
    if pod.spec.containers.iter().any(|container| container.name == SIDECAR) {
        refuse(&what, "no application of that name", "one");
    }
    let Some((_, found)) = existing(pod) else { return };
    let policy = found.restart_policy.as_deref().unwrap_or(ALWAYS);
    if policy != ALWAYS {
        refuse(&format!("restartPolicy of {what}"), ALWAYS, policy);
    }
    if !found.command.is_empty() {
        refuse(&format!("command of {what}"), "the image's own", &found.command.join(" "));
    }
    if !found.args.is_empty() && found.args != arguments() {
        refuse(&format!("args of {what}"), &arguments().join(" "), &found.args.join(" "));
    }
    // With our arguments it is ours, of whatever version.
    let image = found.image.as_deref().filter(|image| *image != settings.image && found.args.is_empty());
    if let Some(image) = image {
        refuse(&format!("image of {what}"), &settings.image, image);
    }
    for (volume, folder, _) in MOUNTS {
        for mount in found.volume_mounts.iter().filter(|mount| mount.is_at(folder) && mount.name != volume) {
            refuse(&format!("mount {folder} of {what}"), &format!("volume {volume}"), &mount.name);
        }
    }
}

pub(super) fn add(
    pod: &Pod,
    on_failure: OnFailure,
    settings: &Settings,
    edit: &mut Edit,
) -> Result<(), Denial> {
    let list = at(["spec", "initContainers"]);
    let mut wanted = sidecar(pod, on_failure, settings);
    let Some((index, found)) = existing(pod) else {
        let mounts: Vec<Value> = MOUNTS.map(mount).into();
        wanted.insert("volumeMounts".to_owned(), mounts.into());
        return edit.prepend(&list, wanted.into());
    };
    let container = list.with_trailing_token(index);
    if !found.resources.is_empty() {
        // Half of them would change what its user meant.
        wanted.remove("resources");
    }
    edit.complete(&container, wanted.into())?;
    for missing in MOUNTS.iter().filter(|(_, folder, _)| !found.volume_mounts.iter().any(|m| m.is_at(folder)))
    {
        edit.append(&container.with_trailing_token("volumeMounts"), mount(*missing))?;
    }
    Ok(())
}

fn existing(pod: &Pod) -> Option<(usize, &Container)> {
    pod.spec.init_containers.iter().enumerate().find(|(_, container)| container.name == SIDECAR)
}

fn mount((volume, folder, read_only): (&str, &str, bool)) -> Value {
    let mut mount = json!({ "name": volume, "mountPath": folder });
    if read_only {
        mount["readOnly"] = json!(true);
    }
    mount
}

/// The container, without its mounts.
fn sidecar(pod: &Pod, on_failure: OnFailure, settings: &Settings) -> Map<String, Value> {
    let mut sidecar = Map::new();
    let mut set = |name: &str, value: Value| sidecar.insert(name.to_owned(), value);
    set("name", json!(SIDECAR));
    set("image", json!(settings.image));
    set("imagePullPolicy", json!(settings.image_pull_policy.as_str()));
    set("args", json!(arguments()));
    set("restartPolicy", json!(ALWAYS));
    set("securityContext", security(pod, settings));
    if on_failure == OnFailure::Block {
        set("startupProbe", probe());
    }
    if let Some(resources) = resources(pod, settings) {
        set("resources", resources);
    }
    sidecar
}

/// What the restricted Pod Security Standard asks for.
fn security(pod: &Pod, settings: &Settings) -> Value {
    let mut security = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    let own = &pod.spec.security_context;
    // Where the pod has a user, the sidecar inherits it; as root it would not be started.
    if own.run_as_user.is_none_or(|user| user == 0)
        && let Some(user) = settings.run_as_user
    {
        security["runAsUser"] = json!(user);
        if own.run_as_group.is_none_or(|group| group == 0) {
            security["runAsGroup"] = json!(user);
        }
    }
    security
}

/// A real round trip to the node daemon.
fn probe() -> Value {
    json!({
        "exec": { "command": ["gpu-handoff-sidecar", "ready", "--socket", SOCKET] },
        "periodSeconds": PROBE_PERIOD_S,
        "timeoutSeconds": PROBE_TIMEOUT_S,
        "failureThreshold": PROBE_FAILURES,
    })
}

/// What keeps the pod's quality-of-service class. Where the pod as a whole asks for something, the sidecar is part of it.
fn resources(pod: &Pod, settings: &Settings) -> Option<Value> {
    let amounts = |amounts: &Amounts| json!({ "cpu": amounts.cpu, "memory": amounts.memory });
    if pod.spec.resources.is_some() {
        return None;
    }
    let own = existing(pod).filter(|(_, container)| container.resources.is_empty()).map(|(index, _)| index);
    match Qos::of(&pod.spec, own) {
        Qos::BestEffort => None,
        Qos::Burstable => Some(json!({ "requests": amounts(&settings.resources.burstable) })),
        Qos::Guaranteed => {
            let amounts = amounts(&settings.resources.guaranteed);
            Some(json!({ "requests": amounts, "limits": amounts }))
        }
    }
}
