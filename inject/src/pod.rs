//! What is read of a pod. Only that: everything else in it, known to this version or not, is nobody's business here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::Value;

use crate::denial::{Denial, DenialCode, Reason};
use crate::quantity::Quantity;

/// A pod, or the template of one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    #[serde(deserialize_with = "or_default")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) owner_references: Vec<Owner>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Owner {
    pub(crate) kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spec {
    #[serde(rename = "hostPID", deserialize_with = "or_default")]
    pub(crate) host_pid: bool,
    pub(crate) host_users: Option<bool>,
    pub(crate) share_process_namespace: Option<bool>,
    pub(crate) runtime_class_name: Option<String>,
    pub(crate) service_account_name: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) os: Os,
    #[serde(deserialize_with = "or_default")]
    pub(crate) node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) security_context: SecurityContext,
    #[serde(deserialize_with = "or_default")]
    pub(crate) containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) init_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) volumes: Vec<Volume>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) affinity: Affinity,
    /// What the pod as a whole asks for, where it does.
    pub(crate) resources: Option<Resources>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Os {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SecurityContext {
    pub(crate) run_as_user: Option<i64>,
    pub(crate) run_as_group: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Container {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) image: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) command: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) args: Vec<String>,
    pub(crate) restart_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) env: Vec<Named>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) volume_mounts: Vec<Mount>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) resources: Resources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Mount {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) mount_path: String,
    pub(crate) read_only: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Volume {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) csi: Option<Csi>,
    pub(crate) empty_dir: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Csi {
    #[serde(deserialize_with = "or_default")]
    pub(crate) driver: String,
    pub(crate) read_only: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub(crate) requests: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) limits: BTreeMap<String, Quantity>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Affinity {
    #[serde(deserialize_with = "or_default")]
    pub(crate) node_affinity: NodeAffinity,
    #[serde(deserialize_with = "or_default")]
    pub(crate) pod_affinity: PodAffinity,
    #[serde(deserialize_with = "or_default")]
    pub(crate) pod_anti_affinity: PodAffinity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    pub(crate) required: NodeSelector,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeSelector {
    #[serde(deserialize_with = "or_default")]
    pub(crate) node_selector_terms: Vec<NodeTerm>,
}

/// One of the alternatives of a node selector; one that says nothing matches no node.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeTerm {
    #[serde(deserialize_with = "or_default")]
    pub(crate) match_expressions: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) match_fields: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    pub(crate) required: Vec<Value>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "or_default")]
    pub(crate) preferred: Vec<Value>,
}

impl Pod {
    /// Reads a pod or a template.
    pub(crate) fn read(object: &Value) -> Result<Self, Denial> {
        // A list would pass for one whose fields are in some order.
        if !object.is_object() {
            let kind = match object {
                Value::Null => "nothing",
                Value::Array(_) => "a list",
                _ => "a single value",
            };
            return Err(Reason::new(DenialCode::PodUnreadable, "pod", "an object", kind).into());
        }
        serde_path_to_error::deserialize(object).map_err(|e| {
            let (path, e) = (e.path().to_string(), e.into_inner().to_string());
            Denial::from(Reason::new(DenialCode::PodUnreadable, path, "what the Kubernetes API has there", e))
        })
    }

    /// Whether it has a user namespace of its own.
    pub(crate) fn has_own_users(&self) -> bool {
        self.spec.host_users == Some(false)
    }

    /// Whether a node only shows it: it runs it from a file of its own.
    pub(crate) fn is_mirror(&self) -> bool {
        self.metadata.annotations.contains_key("kubernetes.io/config.mirror")
    }
}

impl Resources {
    /// Whether nothing is asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

/// `null` is what a field is that nobody set.
fn or_default<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_nobody_set_and_what_nobody_knows_is_no_matter() {
        for pod in [
            json!({}),
            json!({"metadata": null, "spec": {"volumes": null, "affinity": {"podAffinity": null}}}),
            json!({"spec": {"fromTheFuture": [1], "containers": [{"name": "a", "futuristic": {}}]}}),
        ] {
            Pod::read(&pod).unwrap();
        }
    }

    #[test]
    fn what_is_no_pod_is_denied_with_the_field() {
        for (pod, field) in [
            (json!({"spec": {"containers": [{"name": "a"}, {"name": 7}]}}), "spec.containers[1].name"),
            (json!({"spec": {"hostPID": "yes"}}), "spec.hostPID"),
            (
                json!({"metadata": {"annotations": {"gpu-handoff.io/group": 7}}}),
                "metadata.annotations.gpu-handoff.io/group",
            ),
            (
                json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}),
                "spec.containers[0].resources.limits.cpu",
            ),
        ] {
            let denial = Pod::read(&pod).unwrap_err();
            assert_eq!(denial.reasons()[0].compared().what, field);
        }
        for pod in [json!(7), json!("pod"), json!(null)] {
            assert!(Pod::read(&pod).is_err(), "{pod}");
        }
    }
}
