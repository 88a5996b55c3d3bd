//! Where the other pods of a pod's group are, by the label that the injection gives to all of them. Only pods of the pod's own
//! namespace are looked at: whoever may make pods elsewhere may label them as he likes.

use gpu_handoff_inject::keys::GROUP_HASH_LABEL;
use gpu_handoff_kubelet::pods::PodFacts;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::limits;

/// What is known of the group's pods on other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) enum Elsewhere {
    /// It cannot be known, and why.
    Unknown(String),
    /// These, or none.
    Pods(Vec<Place>),
}

/// A pod, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Place {
    /// Its name.
    pub(in crate::node) pod: String,
    /// Its node; `None`: the scheduler has not said yet.
    pub(in crate::node) node: Option<String>,
}

/// Asks the API server. Pods of this node are not among the answer's, except those that are about to come.
pub(super) async fn ask(
    client: &Client,
    pod: &PodFacts,
    group_hash: &str,
    node: &str,
) -> Result<Vec<Place>, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let labelled = format!("{GROUP_HASH_LABEL}={group_hash}");
    let some = ListParams::default().labels(&labelled).limit(limits::MATES);
    let list = pods.list(&some).await.map_err(|e| format!("the API server does not tell: {e}"))?;
    Ok(places(list.items, &pod.uid, node))
}

fn places(pods: Vec<Pod>, own_uid: &str, node: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for pod in pods {
        let phase = pod.status.and_then(|status| status.phase);
        let is_over = pod.metadata.deletion_timestamp.is_some()
            || matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
        let on = pod.spec.and_then(|spec| spec.node_name);
        // One of this node that has not come yet is about to.
        let on = on.filter(|on| on != node);
        if let Some(name) = pod.metadata.name
            && !is_over
            && pod.metadata.uid.as_deref() != Some(own_uid)
        {
            places.push(Place { pod: name, node: on });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: Option<&str>, more: Value) -> Pod {
        let mut pod = json!({ "metadata": { "name": name, "uid": name }, "spec": { "nodeName": node, "containers": [] } });
        pod["metadata"]
            .as_object_mut()
            .unwrap()
            .extend(more["metadata"].as_object().cloned().unwrap_or_default());
        pod["status"] = more["status"].clone();
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn mates_are_those_that_live_and_are_not_the_pod_itself() {
        let none = || json!({});
        let pods = vec![
            pod("self", Some("node-1"), none()),
            pod("here", Some("node-1"), none()),
            pod("there", Some("node-2"), none()),
            pod("waiting", None, none()),
            pod("done", Some("node-2"), json!({ "status": { "phase": "Succeeded" } })),
            pod(
                "going",
                Some("node-2"),
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            ),
        ];
        let place = |pod: &str, node: Option<&str>| Place { pod: pod.into(), node: node.map(str::to_owned) };
        assert_eq!(
            places(pods, "self", "node-1"),
            [place("here", None), place("there", Some("node-2")), place("waiting", None)]
        );
    }
}
