//! What the plugin needs to know of a pod, and how it is read from the pod itself.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::proto::core;
use crate::{DRIVER, limits, names};

/// A pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its annotations whose key begins with `gpu-handoff.io/`.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its service account; empty for a static pod.
    pub service_account: String,
    /// Whether it has the node's network.
    pub host_network: bool,
    /// Whether it has the node's processes.
    pub host_pid: bool,
    /// It is being deleted, and is to be gone by then (its grace period counted in).
    pub deletion: Option<SystemTime>,
    /// The kubelet ends it without deleting it, which is not taken back: it is evicted because the node is short of something,
    /// gives way to a critical pod, or the node shuts down. What others announce (the Eviction API, the scheduler) may come to
    /// nothing; where it does not, [`deletion`](Self::deletion) says so.
    pub ended_by_kubelet: bool,
    /// How far it is.
    pub phase: Phase,
    /// Its containers, in the order of its specification: init containers and sidecars, applications, ephemeral ones.
    pub containers: Vec<ContainerFacts>,
    /// Its class of service.
    pub qos: Qos,
    /// It has more labels, annotations of ours or containers than are kept ([`limits`]): what is missing is unknown, not absent.
    pub truncated: bool,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Its name in the pod.
    pub name: String,
    /// What it is.
    pub kind: ContainerKind,
    /// The runtime's id of the container that is, or was last, without `containerd://`; none before the first.
    pub container_id: Option<String>,
    /// How often it was started again.
    pub restart_count: u32,
}

/// What a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerKind {
    /// Ends before the next one starts.
    Init,
    /// An init container that is always restarted.
    Sidecar,
    /// An application.
    App,
    /// Added to a running pod.
    Ephemeral,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not all containers have been started yet.
    Pending,
    /// All have been.
    Running,
    /// All have ended well.
    Succeeded,
    /// All have ended, one of them badly.
    Failed,
    /// Not known.
    #[default]
    Unknown,
}

/// A pod's class of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Qos {
    /// Requests equal limits.
    Guaranteed,
    /// Something is requested.
    Burstable,
    /// Nothing is.
    BestEffort,
    /// Not known.
    #[default]
    Unknown,
}

/// It is no pod that could be followed.
#[derive(Debug, thiserror::Error)]
#[error("a pod whose namespace {namespace:?}, name {name:?} or UID {uid:?} is not well formed")]
pub(crate) struct Malformed {
    namespace: String,
    name: String,
    uid: String,
}

/// A pod's own names; all that is told of one that is gone.
pub(crate) fn identity(pod: &core::Pod) -> Result<(String, String, String), Malformed> {
    let own = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let metadata = pod.metadata.as_ref();
    let namespace = own(metadata.map(core::ObjectMeta::namespace));
    let name = own(metadata.map(core::ObjectMeta::name));
    let uid = own(metadata.map(core::ObjectMeta::uid));
    if names::is_label(&namespace) && names::is_subdomain(&name) && names::is_pod_uid(&uid) {
        Ok((namespace, name, uid))
    } else {
        let short = |text| crate::serving::cut(text, limits::SUBDOMAIN_BYTES);
        Err(Malformed { namespace: short(namespace), name: short(name), uid: short(uid) })
    }
}

/// What is needed of a pod. Pure; whatever source it comes from.
pub(crate) fn facts(pod: core::Pod) -> Result<PodFacts, Malformed> {
    let (namespace, name, uid) = identity(&pod)?;
    let metadata = pod.metadata.unwrap_or_default();
    let spec = pod.spec.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let mut truncated = false;
    let prefix = format!("{DRIVER}/");
    let ours = metadata.annotations.into_iter().filter(|(key, _)| key.starts_with(&prefix));
    let annotations = keep(ours, limits::ANNOTATIONS, limits::ANNOTATIONS_BYTES, &mut truncated);
    let labels = keep(metadata.labels.into_iter(), limits::LABELS, limits::LABELS_BYTES, &mut truncated);
    Ok(PodFacts {
        namespace,
        name,
        uid,
        annotations,
        labels,
        host_network: spec.host_network(),
        host_pid: spec.host_pid(),
        deletion: metadata.deletion_timestamp.map(|time| time_of(&time)),
        ended_by_kubelet: is_ended_by_kubelet(&status),
        phase: phase(status.phase()),
        qos: qos(status.qos_class()),
        containers: containers(&spec, &status, &mut truncated),
        service_account: spec.service_account_name.unwrap_or_default(),
        truncated,
    })
}

fn keep(
    entries: impl Iterator<Item = (String, String)>,
    count: usize,
    bytes: usize,
    truncated: &mut bool,
) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    let mut room = bytes;
    for (key, value) in entries {
        match room.checked_sub(key.len() + value.len()) {
            Some(left) if kept.len() < count => {
                room = left;
                kept.insert(key, value);
            }
            _ => *truncated = true,
        }
    }
    kept
}

fn time_of(time: &core::Time) -> SystemTime {
    let seconds = Duration::from_secs(u64::try_from(time.seconds()).unwrap_or(0));
    // A time that cannot be is one that is over: the pod is being deleted, whatever it says.
    UNIX_EPOCH.checked_add(seconds).unwrap_or(UNIX_EPOCH)
}

fn is_ended_by_kubelet(status: &core::PodStatus) -> bool {
    let is = |condition: &core::PodCondition| {
        (condition.r#type(), condition.status(), condition.reason())
            == ("DisruptionTarget", "True", "TerminationByKubelet")
    };
    status.conditions.iter().any(is)
}

fn phase(text: &str) -> Phase {
    match text {
        "Pending" => Phase::Pending,
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        _ => Phase::Unknown,
    }
}

fn qos(text: &str) -> Qos {
    match text {
        "Guaranteed" => Qos::Guaranteed,
        "Burstable" => Qos::Burstable,
        "BestEffort" => Qos::BestEffort,
        _ => Qos::Unknown,
    }
}

fn containers(spec: &core::PodSpec, status: &core::PodStatus, truncated: &mut bool) -> Vec<ContainerFacts> {
    let init = spec.init_containers.iter().map(|container| {
        let sidecar = container.restart_policy() == "Always";
        let kind = if sidecar { ContainerKind::Sidecar } else { ContainerKind::Init };
        (container.name(), kind, &status.init_container_statuses)
    });
    let apps = spec
        .containers
        .iter()
        .map(|container| (container.name(), ContainerKind::App, &status.container_statuses));
    let ephemeral = spec.ephemeral_containers.iter().map(|container| {
        let name = container.ephemeral_container_common.as_ref().map_or("", |common| common.name());
        (name, ContainerKind::Ephemeral, &status.ephemeral_container_statuses)
    });
    let mut all = init.chain(apps).chain(ephemeral);
    let kept = all.by_ref().take(limits::CONTAINERS).map(|(name, kind, statuses)| {
        let status = statuses.iter().find(|status| status.name() == name);
        ContainerFacts {
            name: name.to_owned(),
            kind,
            container_id: status.and_then(|status| container_id(status.container_id())),
            restart_count: status.map_or(0, |status| u32::try_from(status.restart_count()).unwrap_or(0)),
        }
    });
    let kept = kept.collect();
    *truncated |= all.next().is_some();
    kept
}

/// The id in `containerd://ID`.
fn container_id(text: &str) -> Option<String> {
    let id = text.split_once("://").map_or(text, |(_, id)| id);
    (!id.is_empty() && id.len() <= limits::CONTAINER_ID_BYTES).then(|| id.to_owned())
}

#[cfg(test)]
mod tests;
