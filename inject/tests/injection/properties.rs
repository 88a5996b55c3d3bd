//! What holds for every pod.

use gpu_handoff_inject::{NodeRequirement, Operator, Settings};
use proptest::prelude::*;
use serde_json::Value;

use crate::common::{injected_by, settings};
use crate::generated::pod;

fn settings_with_nodes() -> Settings {
    let gpu =
        NodeRequirement { key: "gpu".to_owned(), operator: Operator::In, values: vec!["yes".to_owned()] };
    Settings { node_selector: vec![gpu], ..settings() }
}

/// Where `before` is not in `after` unchanged: every member of an object, and every item of a list in its order.
fn changed(path: &str, before: &Value, after: &Value) -> Option<String> {
    match (before, after) {
        // What nobody set may be set.
        (Value::Null, _) => None,
        (Value::Object(before), Value::Object(after)) => before.iter().find_map(|(name, value)| {
            changed(&format!("{path}/{name}"), value, after.get(name).unwrap_or(&Value::Null))
        }),
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            let lost = before.iter().position(|item| !rest.any(|after| changed("", item, after).is_none()));
            lost.map(|index| format!("{path}/{index}"))
        }
        _ => (before != after).then(|| path.to_owned()),
    }
}

/// Everything that is in `after` and not in `before`, by path.
fn added(path: &str, before: &Value, after: &Value, out: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (name, value) in after {
                added(&format!("{path}/{name}"), before.get(name).unwrap_or(&Value::Null), value, out);
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            let mut left: Vec<&Value> = before.iter().collect();
            for item in after {
                let name = item["name"].as_str().unwrap_or("*");
                let path = format!("{path}/{name}");
                match left.first() {
                    Some(first) if changed("", first, item).is_none() => {
                        added(&path, left.remove(0), item, out)
                    }
                    _ => out.push(path),
                }
            }
        }
        _ if before == after => {}
        (Value::Null, Value::Object(members)) => {
            for (name, value) in members {
                added(&format!("{path}/{name}"), &Value::Null, value, out);
            }
        }
        (Value::Null, Value::Array(items)) => {
            added(path, &Value::Array(Vec::new()), &Value::Array(items.clone()), out)
        }
        _ => out.push(path.to_owned()),
    }
}

/// The only places where something may be added.
fn is_ours(path: &str) -> bool {
    const NODES: &str =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/";
    let exact = [
        "/metadata/labels/gpu-handoff.io/group-hash",
        "/metadata/annotations/gpu-handoff.io/injected",
        "/metadata/annotations/gpu-handoff.io/group",
        "/spec/volumes/gpu-handoff",
        "/spec/volumes/gpu-handoff-slot",
        "/spec/volumes/gpu-handoff-slot/csi/readOnly",
        "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/*",
        "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution/*",
    ];
    let application = ["a", "b"].iter().any(|name| {
        let inside = path.strip_prefix(&format!("/spec/containers/{name}/"));
        let ours =
            ["env/GPU_HANDOFF_SOCKET", "volumeMounts/gpu-handoff", "volumeMounts/gpu-handoff/readOnly"];
        inside.is_some_and(|inside| ours.contains(&inside))
    });
    exact.contains(&path)
        || application
        || path.starts_with(NODES)
        || path == "/spec/initContainers/gpu-handoff"
        || path.starts_with("/spec/initContainers/gpu-handoff/")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_second_time_changes_nothing(pod in pod()) {
        let once = injected_by(&pod, &settings_with_nodes()).unwrap().object;
        let twice = injected_by(&once, &settings_with_nodes()).unwrap();
        prop_assert_eq!(twice.patch.0.len(), 0);
        prop_assert_eq!(twice.object, once);
    }

    #[test]
    fn what_was_there_is_there_unchanged(pod in pod()) {
        let after = injected_by(&pod, &settings_with_nodes()).unwrap().object;
        prop_assert_eq!(changed("", &pod, &after), None);
    }

    #[test]
    fn nothing_is_added_that_is_not_ours(pod in pod()) {
        let after = injected_by(&pod, &settings_with_nodes()).unwrap().object;
        let mut paths = Vec::new();
        added("", &pod, &after, &mut paths);
        prop_assert!(!paths.is_empty());
        for path in paths {
            prop_assert!(is_ours(&path), "{}", path);
        }
    }
}

#[test]
fn the_comparison_sees_what_is_changed_and_what_is_added() {
    let before = serde_json::json!({"a": 1, "l": [1, 2], "n": null});
    for (after, where_to) in [
        (serde_json::json!({"a": 2, "l": [1, 2]}), "/a"),
        (serde_json::json!({"l": [1, 2]}), "/a"),
        (serde_json::json!({"a": 1, "l": [2, 1]}), "/l/1"),
        (serde_json::json!({"a": 1, "l": [1]}), "/l/1"),
    ] {
        assert_eq!(changed("", &before, &after).as_deref(), Some(where_to));
    }
    let after = serde_json::json!({"a": 1, "l": [0, 1, 2], "n": {"x": 1}});
    assert_eq!(changed("", &before, &after), None);
    let mut paths = Vec::new();
    added("", &before, &after, &mut paths);
    assert_eq!(paths, ["/l/*", "/n/x"]);
}
