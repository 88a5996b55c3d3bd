//! Injecting into objects, whatever their kind.

use std::fmt;

use gpu_handoff_inject::keys::PREFIX;
use gpu_handoff_inject::{Denial, Settings, daemon_set_warning, inject};
use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::Namespace;
use serde_json::Value;

use super::{InjectFailure, misplaced, templates};
use crate::failure::write_line;
use crate::limits;

/// An object with a pod that is denied.
#[derive(Debug)]
pub struct Denied {
    place: String,
    denial: Denial,
}

impl Denied {
    /// The object, then each reason with its remedy.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, format_args!("error: {} is denied", self.place))?;
        for reason in self.denial.reasons() {
            let compared = reason.compared();
            write_line(f, format_args!("  {}", reason.code()))?;
            write_line(
                f,
                format_args!("    {}: wanted {}, found {}", compared.what, compared.wanted, compared.found),
            )?;
            write_line(f, format_args!("    remedy: {}", reason.remedy()))?;
            write_line(f, format_args!("    more: gpu-handoff explain {}", reason.code()))?;
        }
        match self.denial.more() {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}

/// Injects into one object after the other, and remembers what there is to say.
pub(crate) struct Injector {
    settings: Settings,
    policy: Policy,
    namespace: Option<Namespace>,
    denied: Vec<Denied>,
    warnings: Vec<String>,
}

impl Injector {
    pub(crate) fn new(settings: Settings, policy: Policy, namespace: Option<Namespace>) -> Self {
        Self { settings, policy, namespace, denied: Vec::new(), warnings: Vec::new() }
    }

    /// What users should know, in the order of their objects.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// # Errors
    /// All that was denied.
    pub(crate) fn into_result(self) -> Result<(), InjectFailure> {
        if self.denied.is_empty() { Ok(()) } else { Err(InjectFailure::Denied(self.denied)) }
    }

    /// Adds to the object what its pods ask for; whether that is anything.
    pub(crate) fn inject(&mut self, object: &mut Value) -> Result<bool, InjectFailure> {
        if templates::is_list(object) {
            return self.inject_list(object);
        }
        let Some(paths) = templates::of(object) else {
            self.look_at_stranger(object);
            return Ok(false);
        };
        let mut changed = false;
        for path in &paths {
            let Some(pod) = object.pointer(path) else { continue };
            let injected = self.inject_pod(object, path, pod)?;
            if let (Some(injected), Some(pod)) = (injected, object.pointer_mut(path)) {
                *pod = injected;
                changed = true;
            }
        }
        self.look_for_misplaced(object, &paths);
        Ok(changed)
    }

    /// In place: lists may be in lists, and what is in the innermost would be copied for each.
    fn inject_list(&mut self, list: &mut Value) -> Result<bool, InjectFailure> {
        self.look_for_misplaced(list, &[]);
        let mut changed = false;
        let items = list.get_mut("items").and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            changed |= self.inject(item)?;
        }
        Ok(changed)
    }

    /// A pod, or the template of one, at this path of the object.
    fn inject_pod(
        &mut self,
        object: &Value,
        path: &str,
        pod: &Value,
    ) -> Result<Option<Value>, InjectFailure> {
        let place = place(object, path);
        let namespace = self.namespace_of(object, &place, has_annotation(pod))?;
        let mut pod = pod.clone();
        if let Some(volumes) = pod.pointer_mut("/spec/volumes") {
            read_file_modes(volumes);
        }
        match inject(&pod, &namespace, &self.settings, &self.policy) {
            Ok(injected) => {
                let told = injected.wishes.as_ref().filter(|_| object["kind"] == "DaemonSet");
                let told = told.and_then(daemon_set_warning).map(str::to_owned);
                let warnings = injected.warnings.into_iter().chain(told);
                self.warnings.extend(warnings.map(|warning| format!("{place}: {warning}")));
                Ok((!injected.patch.0.is_empty()).then_some(injected.object))
            }
            Err(denial) => {
                self.denied.push(Denied { place, denial });
                Ok(None)
            }
        }
    }

    /// The namespace that the object says, or that was given. Where the pod asks for nothing, any will do.
    fn namespace_of(&self, object: &Value, place: &str, asks: bool) -> Result<Namespace, InjectFailure> {
        let own = match templates::namespace(object) {
            Err(error) if asks => return Err(InjectFailure::Namespace(place.to_owned(), error)),
            own => own.ok().flatten(),
        };
        let fallback = || (!asks).then(|| "default".parse().ok()).flatten();
        own.or_else(|| self.namespace.clone())
            .or_else(fallback)
            .ok_or_else(|| InjectFailure::NoNamespace(place.to_owned()))
    }

    /// Says so where a kind that is not known has annotations of ours somewhere in it.
    fn look_at_stranger(&mut self, object: &Value) {
        if let Some(first) = misplaced::of(object, &[]).first() {
            self.warnings.push(format!(
                "{}, {first}: passed on as it is: where its pods are is not known here; the webhook injects them when \
                 they are created",
                place(object, "")
            ));
        }
    }

    /// Says so where a kind that is known has annotations of ours where nobody reads them.
    fn look_for_misplaced(&mut self, object: &Value, pods: &[String]) {
        let found = misplaced::of(object, pods);
        if found.is_empty() {
            return;
        }
        let name = place(object, "");
        let home = templates::homes(object).join(" or ");
        for path in found.iter().take(limits::MISPLACED) {
            self.warnings.push(format!(
                "{name}, {path}: what begins with {PREFIX} does nothing there: it belongs in {home}"
            ));
        }
        if let Some(more @ 1..) = found.len().checked_sub(limits::MISPLACED) {
            self.warnings.push(format!("{name}: and {more} more places"));
        }
    }
}

/// `Deployment ml/server, spec.template`.
fn place(object: &Value, path: &str) -> String {
    let kind = object["kind"].as_str().unwrap_or("an object without a kind");
    let metadata = &object["metadata"];
    let name =
        metadata["name"].as_str().or_else(|| metadata["generateName"].as_str()).unwrap_or("without a name");
    let name = match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let path = path.trim_start_matches('/').replace('/', ".");
    if path.is_empty() { format!("{kind} {name}") } else { format!("{kind} {name}, {path}") }
}

fn has_annotation(object: &Value) -> bool {
    let annotations = object["metadata"]["annotations"].as_object();
    annotations.into_iter().flatten().any(|(key, _)| key.starts_with(PREFIX))
}

/// `defaultMode: 0644` is a number to Kubernetes, in octal, and a text to YAML 1.2. A text cannot be meant there.
fn read_file_modes(volumes: &mut Value) {
    match volumes {
        Value::Object(members) => {
            for (name, value) in members {
                let mode = value.as_str().filter(|_| matches!(name.as_str(), "mode" | "defaultMode"));
                match mode.and_then(|text| u32::from_str_radix(text.strip_prefix('0')?, 8).ok()) {
                    Some(mode) => *value = Value::from(mode),
                    None => read_file_modes(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(read_file_modes),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_in_lists_of_lists_is_not_copied() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "ml", "annotations": {"gpu-handoff.io/group": "g"}},
            "spec": {"containers": [{"name": "a"}]},
        });
        let mut list = json!([pod, {"kind": "ConfigMap", "data": {"a": "b"}}]);
        for _ in 0..50 {
            list = json!([{"apiVersion": "v1", "kind": "List", "items": list}]);
        }
        let mut list = list[0].take();
        let path = "/items/0".repeat(50);
        let text = |list: &Value| {
            list.pointer(&format!("{}/1/data/a", &path[..path.len() - 2]))
                .and_then(Value::as_str)
                .unwrap()
                .as_ptr()
        };
        let before = text(&list);
        let mut injector = Injector::new(Settings::with_image("x"), Policy::default(), None);
        assert!(injector.inject(&mut list).unwrap());
        assert_eq!(text(&list), before);
        assert_eq!(list.pointer(&path).unwrap()["spec"]["initContainers"][0]["name"], "gpu-handoff");
    }
}
