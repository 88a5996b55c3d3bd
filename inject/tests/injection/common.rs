//! What the tests of this crate share.

use gpu_handoff_inject::{Denial, DenialCode, Injected, Settings, inject};
use gpu_handoff_policy::Policy;
use serde_json::{Value, json};

pub(crate) fn settings() -> Settings {
    Settings::with_image("sidecar:1")
}

/// Injects as into namespace `ml`, and holds the patch against the whole.
pub(crate) fn injected_by(pod: &Value, settings: &Settings) -> Result<Injected, Denial> {
    injected_under(pod, settings, &Policy::default())
}

pub(crate) fn injected_under(pod: &Value, settings: &Settings, policy: &Policy) -> Result<Injected, Denial> {
    let injected = inject(pod, &"ml".parse().unwrap(), settings, policy)?;
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &injected.patch).unwrap();
    assert_eq!(patched, injected.object, "the patch makes the whole");
    Ok(injected)
}

pub(crate) fn injected(pod: &Value) -> Value {
    injected_by(pod, &settings()).unwrap_or_else(|denial| panic!("{denial}")).object
}

pub(crate) fn codes(pod: &Value) -> Vec<DenialCode> {
    let denial = injected_by(pod, &settings()).unwrap_err();
    denial.reasons().iter().map(|reason| reason.code()).collect()
}

/// A pod of group `llama` with one container, and what `spec` has beside.
pub(crate) fn pod(spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"gpu-handoff.io/group": "llama"}},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    });
    merge(&mut pod["spec"], spec);
    pod
}

/// A pod that asks for that by its annotations (without what they begin with).
pub(crate) fn asking(annotations: &[(&str, &str)]) -> Value {
    let mut pod = pod(json!({}));
    for (key, value) in annotations {
        pod["metadata"]["annotations"][format!("gpu-handoff.io/{key}")] = json!(value);
    }
    pod
}

pub(crate) fn merge(into: &mut Value, from: Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

/// The item of a list that has this name.
pub(crate) fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|item| item["name"] == name).unwrap_or(&Value::Null)
}
