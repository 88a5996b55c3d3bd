//! What is not wrong, and still not what its user may have meant.

use serde_json::Value;

use crate::denial;
use crate::keys::{GROUP_HASH_LABEL, HOSTNAME, Key, PREFIX};
use crate::limits;
use crate::nearest::nearest;
use crate::pod::Pod;
use crate::wishes::Wishes;
use crate::words::{Colocate, Pids};

const ONE_NODE_FOR_A_DAEMON_SET: &str = "a DaemonSet has a pod on every node, and gpu-handoff.io/colocate: required, \
    which is the default, has a group's pods on one: all but one stay Pending; set gpu-handoff.io/colocate to none";

const OURS: &str = "ours begin with gpu-handoff.io/";

const OWN_USERS: &str = "hostUsers: false: a hand-over works in a user namespace, but NVIDIA's GPU Operator does not support containers with GPUs \
    there (26.3.1): if the runtime says that it cannot create the container, remove it";

const OWN_PROCESSES: &str = "shareProcessNamespace: false: the main process of each container has the number 1, as those of \
    the group's other pods may, and the driver takes two processes with one number for one: memory and events that they pass to \
    each other by CUDA's own calls (cudaIpc...) cannot be opened; processes that they start have numbers of the pod's own; \
    remove it unless a container needs the number 1";

/// Of pods that take part and are of a DaemonSet, which the template of one does not say: one on every node, and all on one.
#[must_use]
pub fn daemon_set_warning(wishes: &Wishes) -> Option<&'static str> {
    (wishes.colocate == Colocate::Required).then_some(ONE_NODE_FOR_A_DAEMON_SET)
}

/// Of a pod that takes part.
pub(crate) fn of_member(pod: &Pod, wishes: &Wishes) -> Vec<String> {
    let mut warnings = Vec::new();
    if pod.metadata.owner_references.iter().any(|owner| owner.kind == "DaemonSet") {
        warnings.extend(daemon_set_warning(wishes).map(str::to_owned));
    }
    if pod.has_own_users() {
        warnings.push(OWN_USERS.to_owned());
    }
    if wishes.pids == Pids::Distinct && pod.spec.share_process_namespace == Some(false) {
        warnings.push(OWN_PROCESSES.to_owned());
    }
    if wishes.colocate == Colocate::Required {
        let hash = crate::group_hash(&wishes.group);
        if pod.spec.affinity.pod_affinity.required.iter().any(|term| !selects_group(term, &hash)) {
            warnings.push(
                "the pod has required pod affinity of its own, and the scheduler wants one pod that matches all of it: \
                 the first pod of the group is put on a node only if it matches its own terms too; set \
                 gpu-handoff.io/colocate to preferred if it stays Pending"
                    .to_owned(),
            );
        }
    }
    if wishes.colocate == Colocate::Required && avoids_its_like(pod) {
        warnings.push(
            "the pod has required anti-affinity to pods of its own labels on one node, and its group shall be on one \
             node: a second pod like it stays Pending; set gpu-handoff.io/colocate to preferred or none, or remove the \
             anti-affinity"
                .to_owned(),
        );
    }
    warnings
}

/// Whether the pod keeps away from nodes that have a pod of the same labels: the next one made of the same template.
/// A term with expressions is not looked into.
fn avoids_its_like(pod: &Pod) -> bool {
    pod.spec.affinity.pod_anti_affinity.required.iter().any(|term| {
        let selector = &term["labelSelector"];
        let expressions = selector["matchExpressions"].as_array().is_some_and(|list| !list.is_empty());
        let labels = selector["matchLabels"].as_object().filter(|labels| !labels.is_empty());
        let is_own =
            |(key, value): (&String, &Value)| pod.metadata.labels.get(key).is_some_and(|own| value == own);
        term["topologyKey"] == HOSTNAME
            && !expressions
            && labels.is_some_and(|labels| labels.iter().all(is_own))
    })
}

/// Of a pod that has no annotation of ours: one that is written wrong where nobody else looks. So many are named, and the others counted: nobody has
/// looked at how many, and of what length, a pod has.
pub(crate) fn of_bystander(pod: &Pod) -> Vec<String> {
    let ours =
        pod.metadata.labels.keys().filter(|label| label.starts_with(PREFIX) && *label != GROUP_HASH_LABEL);
    let labels = ours.map(|label| (label, "label", "gpu-handoff reads annotations"));
    let prefix = PREFIX.trim_end_matches('/');
    let near = pod.metadata.annotations.keys().filter(|key| {
        key.split_once('/').is_some_and(|(before, name)| {
            nearest(before, [prefix]).is_some()
                && Key::ALL.iter().any(|key| key.as_str()[PREFIX.len()..] == *name)
        })
    });
    let near = near.map(|key| (key, "annotation", OURS));
    let mut all = labels.chain(near);
    let told = all.by_ref().take(limits::WARNINGS);
    let told = told.map(|(name, what, why)| {
        format!("the {what} {} does nothing: {why}", denial::shown(name, limits::SHOWN_BYTES))
    });
    let mut warnings: Vec<_> = told.collect();
    match all.count() {
        0 => {}
        more => warnings.push(format!("and {more} more labels and annotations that do nothing")),
    }
    warnings
}

/// Of a pod that a node runs from a file, and only shows.
pub(crate) fn of_mirror(pod: &Pod) -> Vec<String> {
    if !pod.metadata.annotations.keys().any(|key| key.starts_with(PREFIX)) {
        return Vec::new();
    }
    vec![
        "a static pod cannot take part: it is run from its node's file, the API server cannot add to it, and its kubelet runs none with \
         a CSI volume; a DaemonSet makes a pod on each node, too"
            .to_owned(),
    ]
}

/// Whether a term of pod affinity is the injection's.
pub(crate) fn selects_group(term: &Value, hash: &str) -> bool {
    term["topologyKey"] == HOSTNAME && term["labelSelector"]["matchLabels"][GROUP_HASH_LABEL] == hash
}
