//! What is printed of a scenario that failed: events, pods, their logs, and what kubelet, container runtime and stand-ins said
//! of them.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{ListParams, LogParams};

use crate::scene::Scene;

/// Lines of each log, the last ones.
const LINES: usize = 40;

/// The node's logs that may name a pod.
const LOGS: [&str; 4] = ["kubelet", "containerd", "gpus", "dra"];

/// What they say of every pod, whatever becomes of it.
const EVERYDAY: [&str; 6] = [
    " operation_generator.go",
    " pod_startup_latency_tracker.go",
    " reconciler_common.go",
    " reflector.go",
    "Finished parsing log file",
    "Pod update broadcasted",
];

pub(crate) async fn of(scene: &Scene<'_>) -> String {
    let mut told = format!("---- namespace {} ({:?})\n", scene.namespace, scene.standard);
    let pods = scene.all::<Pod>().list(&ListParams::default()).await;
    let pods = pods.map(|list| list.items).unwrap_or_default();
    for pod in &pods {
        tell_pod(&mut told, pod);
        tell_logs(&mut told, scene, pod).await;
    }
    tell_claims(&mut told, scene).await;
    tell_events(&mut told, scene).await;
    let mut about: Vec<String> = vec![scene.namespace.clone()];
    about.extend(pods.iter().flat_map(identities));
    for log in LOGS {
        let path = scene.ground.folder.join("log").join(format!("{log}.log"));
        let Ok(text) = std::fs::read(&path) else { continue };
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| about.iter().any(|one| line.contains(one)));
        let lines = lines.filter(|line| !EVERYDAY.iter().any(|one| line.contains(one)));
        tell_last(&mut told, &format!("{log} of these pods"), lines);
    }
    told
}

fn tell(told: &mut String, line: std::fmt::Arguments<'_>) {
    // A string takes whatever is written to it.
    let _ = writeln!(told, "{line}");
}

fn tell_last<'a>(told: &mut String, title: &str, lines: impl Iterator<Item = &'a str>) {
    let lines: Vec<_> = lines.collect();
    let left_out = lines.len().saturating_sub(LINES);
    tell(told, format_args!("---- {title} ({} lines, the last {LINES} at most)", lines.len()));
    lines[left_out..].iter().for_each(|line| tell(told, format_args!("{line}")));
}

fn tell_pod(told: &mut String, pod: &Pod) {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let Some(status) = &pod.status else { return };
    let phase = status.phase.as_deref().unwrap_or("no phase");
    tell(told, format_args!("---- pod {name}: {phase} {}", status.message.as_deref().unwrap_or_default()));
    for condition in status.conditions.iter().flatten().filter(|one| one.status != "True") {
        let message = condition.message.as_deref().unwrap_or_default();
        tell(told, format_args!("not {}: {message}", condition.type_));
    }
    for container in status.container_statuses.iter().flatten() {
        let state = serde_json::to_string(&container.state).unwrap_or_default();
        tell(
            told,
            format_args!("container {}: {state}, restarted {}", container.name, container.restart_count),
        );
    }
}

async fn tell_logs(told: &mut String, scene: &Scene<'_>, pod: &Pod) {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        let how = LogParams { container: Some(container.name.clone()), ..LogParams::default() };
        match scene.all::<Pod>().logs(name, &how).await {
            Ok(text) => tell_last(told, &format!("log of {name}, {}", container.name), text.lines()),
            Err(error) => tell(told, format_args!("no log of {name}, {}: {error}", container.name)),
        }
    }
}

async fn tell_claims(told: &mut String, scene: &Scene<'_>) {
    let claims = scene.all::<ResourceClaim>().list(&ListParams::default()).await;
    for claim in claims.map(|list| list.items).unwrap_or_default() {
        let status = serde_json::to_string(&claim.status).unwrap_or_default();
        tell(told, format_args!("---- claim {}: {status}", claim.metadata.name.unwrap_or_default()));
    }
}

async fn tell_events(told: &mut String, scene: &Scene<'_>) {
    let events = scene.all::<Event>().list(&ListParams::default()).await;
    let events = events.map(|list| list.items).unwrap_or_default();
    let lines: Vec<String> = events.iter().map(event).collect();
    tell_last(told, "events", lines.iter().map(String::as_str));
}

fn event(event: &Event) -> String {
    let of = |word: &Option<String>| word.clone().unwrap_or_default();
    let subject = format!("{} {}", of(&event.involved_object.kind), of(&event.involved_object.name));
    format!("{} {subject}: {}: {}", of(&event.type_), of(&event.reason), of(&event.message))
}

/// What a log may call a pod by: its UID, and the ids of its containers.
fn identities(pod: &Pod) -> Vec<String> {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ids = containers.filter_map(|one| one.container_id.as_deref()?.split("//").nth(1));
    pod.metadata.uid.iter().map(String::as_str).chain(ids).map(str::to_owned).collect()
}
