//! Where pods are in Kubernetes objects.

use gpu_handoff_protocol::{IdError, Namespace};
use serde_json::Value;

use crate::limits;

/// Kinds whose pods are known: API group, kind, and the path to a pod or to templates of pods. `*` is every item of a list.
const KINDS: &[(&str, &str, &[&str])] = &[
    ("", "Pod", &[""]),
    ("apps", "Deployment", &["spec/template"]),
    ("apps", "StatefulSet", &["spec/template"]),
    ("apps", "DaemonSet", &["spec/template"]),
    ("apps", "ReplicaSet", &["spec/template"]),
    ("batch", "Job", &["spec/template"]),
    ("batch", "CronJob", &["spec/jobTemplate/spec/template"]),
    (
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        &["spec/leaderWorkerTemplate/leaderTemplate", "spec/leaderWorkerTemplate/workerTemplate"],
    ),
    ("jobset.x-k8s.io", "JobSet", &["spec/replicatedJobs/*/template/spec/template"]),
];

/// The paths of an object's pods and templates, as JSON pointers; `None` where its kind is not known to have any.
pub(crate) fn of(object: &Value) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for path in kind_of(object)? {
        expand(object, String::new(), path, &mut found);
    }
    Some(found)
}

/// Where annotations belong in an object of this kind, with dots; nothing where the kind is not known to have pods.
pub(crate) fn homes(object: &Value) -> Vec<String> {
    if is_list(object) {
        return vec!["the pods and templates among the items of the list".to_owned()];
    }
    let paths = kind_of(object).unwrap_or_default().iter();
    paths
        .map(|path| format!("{path}/metadata/annotations").trim_start_matches('/').replace('/', "."))
        .collect()
}

/// Why an object's namespace is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// It is a number, a list or the like.
    #[error("metadata.namespace is {0}, which is no text")]
    NoText(String),
    /// No namespace has such a name.
    #[error("metadata.namespace is {0}, which is no name of one")]
    NoName(String, #[source] IdError),
}

/// The namespace that an object says; `None` where it says none.
pub(crate) fn namespace(object: &Value) -> Result<Option<Namespace>, NamespaceError> {
    let shown = |value: &Value| {
        let text = value.to_string();
        match text.char_indices().nth(limits::SHOWN_CHARS) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    };
    match &object["metadata"]["namespace"] {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        value @ Value::String(text) => {
            text.parse().map(Some).map_err(|e| NamespaceError::NoName(shown(value), e))
        }
        value => Err(NamespaceError::NoText(shown(value))),
    }
}

/// Whether it is a list of objects.
pub(crate) fn is_list(object: &Value) -> bool {
    group(object).is_empty() && object["kind"] == "List"
}

fn kind_of(object: &Value) -> Option<&'static [&'static str]> {
    let (group, kind) = (group(object), object["kind"].as_str()?);
    let (_, _, paths) = KINDS.iter().find(|(g, k, _)| *g == group && *k == kind)?;
    Some(paths)
}

/// `apps` of `apps/v1`; nothing of `v1`.
fn group(object: &Value) -> &str {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    version.split_once('/').map_or("", |(group, _)| group)
}

fn expand(value: &Value, at: String, path: &str, found: &mut Vec<String>) {
    let (step, rest) = path.split_once('/').unwrap_or((path, ""));
    if step.is_empty() {
        found.push(at);
    } else if step == "*" {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            expand(item, format!("{at}/{index}"), rest, found);
        }
    } else if let Some(inner) = value.get(step).filter(|inner| !inner.is_null()) {
        expand(inner, format!("{at}/{step}"), rest, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kinds_are_told_apart_by_their_group() {
        let paths = |version: &str, kind: &str| {
            of(&json!({"apiVersion": version, "kind": kind, "spec": {"template": {"spec": {}}}}))
        };
        assert_eq!(paths("batch/v1", "Job"), Some(vec!["/spec/template".to_owned()]));
        assert_eq!(paths("batch.volcano.sh/v1alpha1", "Job"), None);
        assert_eq!(paths("v1", "ConfigMap"), None);
        assert_eq!(paths("v1", "Pod"), Some(vec![String::new()]));
        assert_eq!(of(&json!("text")), None);
    }

    #[test]
    fn a_namespace_is_a_name_or_not_there() {
        let of =
            |value: Value| namespace(&json!({"metadata": {"namespace": value}})).map_err(|e| e.to_string());
        assert_eq!(of(json!("ml")), Ok(Some("ml".parse().unwrap())));
        assert_eq!((of(json!("")), of(json!(null))), (Ok(None), Ok(None)));
        assert_eq!(namespace(&json!("text")).unwrap(), None);
        assert_eq!(of(json!(12)).unwrap_err(), "metadata.namespace is 12, which is no text");
        let long = of(json!("ä".repeat(1 << 20))).unwrap_err();
        assert!(
            long.starts_with("metadata.namespace is \"ä") && long.len() < 4 * limits::SHOWN_CHARS,
            "{long}"
        );
    }

    #[test]
    fn templates_that_are_not_there_are_none() {
        let set = json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "spec": {"leaderWorkerTemplate": {"workerTemplate": {}, "leaderTemplate": null}},
        });
        assert_eq!(of(&set).unwrap(), ["/spec/leaderWorkerTemplate/workerTemplate"]);
        let job = json!({"template": {"spec": {"template": {}}}});
        let set = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": [job, {}, job]}});
        let wanted = [
            "/spec/replicatedJobs/0/template/spec/template",
            "/spec/replicatedJobs/2/template/spec/template",
        ];
        assert_eq!(of(&set).unwrap(), wanted);
    }
}
