//! Pods of a namespace that have a label, wherever they are.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use super::{ApiServer, AskError};
use crate::limits;

/// A pod that is not over, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Option<String>,
    /// Its node; `None`: the scheduler has not said yet.
    pub node: Option<String>,
}

impl ApiServer {
    /// Those of this namespace that have this label and are neither over nor about to be; of very many a part.
    ///
    /// # Errors
    /// It does not tell.
    pub async fn labelled(&self, namespace: &str, label: &str, value: &str) -> Result<Vec<Placed>, AskError> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let some = ListParams::default().labels(&format!("{label}={value}")).limit(limits::LABELLED_PODS);
        let list = pods.list(&some).await;
        let list = list.map_err(|why| AskError::Away { what: "", why: Box::new(why) })?;
        Ok(list.items.into_iter().filter_map(placed).collect())
    }
}

fn placed(pod: Pod) -> Option<Placed> {
    let phase = pod.status.and_then(|status| status.phase);
    let is_over =
        pod.metadata.deletion_timestamp.is_some() || matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
    let node = pod.spec.and_then(|spec| spec.node_name);
    let name = pod.metadata.name.filter(|_| !is_over)?;
    Some(Placed { name, uid: pod.metadata.uid, node })
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
    fn those_that_are_over_or_going_are_left_out() {
        let pods = [
            pod("there", Some("node-2"), json!({ "status": { "phase": "Running" } })),
            pod("waiting", None, json!({})),
            pod("done", Some("node-2"), json!({ "status": { "phase": "Succeeded" } })),
            pod("failed", Some("node-2"), json!({ "status": { "phase": "Failed" } })),
            pod(
                "going",
                Some("node-2"),
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            ),
        ];
        let placed: Vec<_> = pods.into_iter().filter_map(placed).collect();
        let expected = [("there", Some("node-2")), ("waiting", None)].map(|(name, node)| Placed {
            name: name.to_owned(),
            uid: Some(name.to_owned()),
            node: node.map(str::to_owned),
        });
        assert_eq!(placed, expected);
    }
}
