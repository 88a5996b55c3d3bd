//! Where the other pods of a pod's group are, by the label that the injection gives to all of them. Only pods of the pod's own
//! namespace are looked at: whoever may make pods elsewhere may label them as he likes.

use gpu_handoff_inject::keys::GROUP_HASH_LABEL;
use gpu_handoff_kubelet::api::ApiServer;
use gpu_handoff_kubelet::api::labelled::Placed;
use gpu_handoff_kubelet::pods::PodFacts;

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
    api_server: &ApiServer,
    pod: &PodFacts,
    group_hash: &str,
    node: &str,
) -> Result<Vec<Place>, String> {
    let pods = api_server.labelled(&pod.namespace, GROUP_HASH_LABEL, group_hash).await;
    Ok(places(pods.map_err(|e| e.to_string())?, &pod.uid, node))
}

fn places(pods: Vec<Placed>, own_uid: &str, node: &str) -> Vec<Place> {
    let others = pods.into_iter().filter(|pod| pod.uid.as_deref() != Some(own_uid));
    // One of this node that has not come yet is about to.
    others.map(|pod| Place { pod: pod.name, node: pod.node.filter(|on| on != node) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mates_are_not_the_pod_itself_and_those_of_this_node_are_about_to_come() {
        let pods = [
            ("self", Some("node-1")),
            ("here", Some("node-1")),
            ("there", Some("node-2")),
            ("waiting", None),
        ];
        let placed = |(name, node): (&str, Option<&str>)| Placed {
            name: name.to_owned(),
            uid: Some(name.to_owned()),
            node: node.map(str::to_owned),
        };
        let place = |pod: &str, node: Option<&str>| Place { pod: pod.into(), node: node.map(str::to_owned) };
        assert_eq!(
            places(pods.map(placed).into(), "self", "node-1"),
            [place("here", None), place("there", Some("node-2")), place("waiting", None)]
        );
    }
}
