//! Pods that cannot take part as they are: all that is wrong, before anything is added.

use gpu_handoff_protocol::Namespace;

use crate::denial::{Denial, DenialCode, Reason, Reasons};
use crate::parts;
use crate::pod::Pod;
use crate::settings::Settings;
use crate::wishes::Wishes;

/// The label by which a node says what it runs.
const OS_LABEL: &str = "kubernetes.io/os";
const WINDOWS: &str = "windows";

/// Finds everything that keeps a pod from taking part.
pub(crate) fn check(
    pod: &Pod,
    wishes: &Wishes,
    namespace: &Namespace,
    settings: &Settings,
) -> Result<(), Denial> {
    let mut reasons = Reasons::default();
    host(pod, &mut reasons);
    operating_system(pod, &mut reasons);
    runtime(pod, settings, &mut reasons);
    foreign_group(wishes, namespace, settings, &mut reasons);
    parts::check(pod, wishes, settings, &mut reasons);
    reasons.into_result()
}

fn host(pod: &Pod, reasons: &mut Reasons) {
    if pod.spec.host_pid {
        reasons.add(Reason::new(DenialCode::HostPid, "spec.hostPID", "false", "true"));
    }
}

fn operating_system(pod: &Pod, reasons: &mut Reasons) {
    let selected = pod.spec.node_selector.get(OS_LABEL).map(String::as_str);
    for (what, os) in [("spec.os.name", Some(pod.spec.os.name.as_str())), ("spec.nodeSelector", selected)] {
        if os == Some(WINDOWS) {
            reasons.add(Reason::new(DenialCode::Windows, what, "linux", WINDOWS));
        }
    }
}

fn runtime(pod: &Pod, settings: &Settings, reasons: &mut Reasons) {
    let sandboxed = &settings.sandboxed_runtime_classes;
    if let Some(class) = pod.spec.runtime_class_name.as_ref().filter(|class| sandboxed.contains(class)) {
        let wanted = format!("none of {}", sandboxed.join(", "));
        reasons.add(Reason::new(DenialCode::SandboxedRuntime, "spec.runtimeClassName", wanted, class));
    }
}

fn foreign_group(wishes: &Wishes, namespace: &Namespace, settings: &Settings, reasons: &mut Reasons) {
    let group = &wishes.group;
    let granted = settings.foreign_groups.iter().any(|g| g.namespace == *namespace && g.group == *group);
    if group.namespace != *namespace && !granted {
        let wanted = format!("a group of namespace {namespace}, or one that it was let into");
        reasons.add(Reason::new(DenialCode::ForeignGroup, "group", wanted, group));
    }
}
