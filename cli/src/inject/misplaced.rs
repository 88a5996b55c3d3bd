//! Annotations of ours where nobody reads them.

use std::collections::HashSet;
use std::ptr;

use gpu_handoff_inject::keys::{Key, PREFIX};
use serde_json::Value;

use super::templates;

/// Where in an object annotations of ours stand, other than in the metadata of these pods: paths with dots, in the
/// object's order. The items of a list are objects of their own.
pub(super) fn of(object: &Value, pods: &[String]) -> Vec<String> {
    // Labels that look like annotations of ours, the injection itself tells.
    let read = pods.iter().flat_map(|pod| ["annotations", "labels"].map(|of| format!("{pod}/metadata/{of}")));
    let mut elsewhere: HashSet<_> =
        read.filter_map(|path| object.pointer(&path)).map(ptr::from_ref).collect();
    if templates::is_list(object) {
        elsewhere.extend(object.get("items").filter(|items| items.is_array()).map(ptr::from_ref));
    }
    let mut found = Vec::new();
    look(object, &mut Vec::new(), &elsewhere, &mut found);
    found
}

fn look<'a>(
    value: &'a Value,
    at: &mut Vec<Step<'a>>,
    elsewhere: &HashSet<*const Value>,
    found: &mut Vec<String>,
) {
    if elsewhere.contains(&ptr::from_ref(value)) {
        return;
    }
    match value {
        Value::Object(members) => {
            let are_annotations = matches!(at.last(), Some(Step::Name("annotations")));
            if members.keys().any(|name| is_ours(name, are_annotations)) {
                found.push(shown(at));
            }
            for (name, inner) in members {
                at.push(Step::Name(name));
                look(inner, at, elsewhere, found);
                at.pop();
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                at.push(Step::Index(index));
                look(inner, at, elsewhere, found);
                at.pop();
            }
        }
        _ => {}
    }
}

enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

/// Misspelt ones too, where annotations stand; elsewhere it may be a label, or the name of a file.
fn is_ours(name: &str, are_annotations: bool) -> bool {
    name.starts_with(PREFIX) && (are_annotations || Key::ALL.iter().any(|key| key.as_str() == name))
}

fn shown(at: &[Step<'_>]) -> String {
    let steps = at.iter().map(|step| match step {
        Step::Name(name) => (*name).to_owned(),
        Step::Index(index) => index.to_string(),
    });
    steps.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_but_a_pods_own_are_found() {
        let ours =
            || json!({"annotations": {"gpu-handoff.io/gruop": "g"}, "labels": {"gpu-handoff.io/group": "g"}});
        let object = json!({
            "metadata": ours(),
            "spec": {
                "template": {
                    "metadata": ours(),
                    "annotations": {"gpu-handoff.io/group": "g"},
                    "spec": {"nodeSelector": {"gpu-handoff.io/group-hash": "x"}},
                },
                "gpu-handoff.io/group": "g",
                "podAnnotations": {"gpu-handoff.io/group": "g"},
                "volumeClaimTemplates": [{"metadata": {"annotations": {"example.com/a": "b"}}}, {"metadata": ours()}],
            },
        });
        let wanted = [
            "metadata.annotations",
            "metadata.labels",
            "spec",
            "spec.podAnnotations",
            "spec.template.annotations",
            "spec.volumeClaimTemplates.1.metadata.annotations",
            "spec.volumeClaimTemplates.1.metadata.labels",
        ];
        assert_eq!(of(&object, &["/spec/template".to_owned()]), wanted);
    }

    #[test]
    fn items_of_a_list_are_not_its_own() {
        let pod = json!({"metadata": {"annotations": {"gpu-handoff.io/group": "g"}}});
        let list = |items: Value| json!({"apiVersion": "v1", "kind": "List", "items": items});
        assert_eq!(of(&list(json!([pod])), &[]), [] as [&str; 0]);
        assert_eq!(of(&list(json!({"a": pod})), &[]), ["items.a.metadata.annotations"]);
    }
}
