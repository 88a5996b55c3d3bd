//! Pods that cannot take part as they are: all that is wrong, before anything is added.

use gpu_handoff_policy::{Party, Policy};
use gpu_handoff_protocol::{Namespace, ServiceAccount};

use crate::denial::{Denial, DenialCode, Reason, Reasons};
use crate::limits;
use crate::parts;
use crate::pod::Pod;
use crate::settings::{Settings, UserNamespaces};
use crate::wishes::Wishes;

/// The label by which a node says what it runs.
const OS_LABEL: &str = "kubernetes.io/os";
const WINDOWS: &str = "windows";

/// The service account of pods that name none.
const DEFAULT: &str = "default";

/// Refuses a pod that is too large to be looked at closely: what names its containers, and what is added, grows with them.
pub(crate) fn size(pod: &Pod) -> Result<(), Denial> {
    let found = pod.spec.containers.len() + pod.spec.init_containers.len();
    if found <= limits::POD_CONTAINERS {
        return Ok(());
    }
    let wanted = format!("at most {}", limits::POD_CONTAINERS);
    Err(Reason::new(DenialCode::TooManyContainers, "containers of the pod", wanted, found).into())
}

/// Finds everything that keeps a pod from taking part.
pub(crate) fn check(
    pod: &Pod,
    wishes: &Wishes,
    namespace: &Namespace,
    settings: &Settings,
    policy: &Policy,
) -> Result<(), Denial> {
    let mut reasons = Reasons::default();
    host(pod, &mut reasons);
    operating_system(pod, &mut reasons);
    runtime(pod, settings, &mut reasons);
    users(pod, settings, &mut reasons);
    policy_says(pod, wishes, namespace, policy, &mut reasons);
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
    if let Some(class) = pod.spec.runtime_class_name.as_ref().filter(|class| settings.is_sandbox(class)) {
        let wanted = format!("none of {}", settings.sandboxed_runtime_classes.join(", "));
        reasons.add(Reason::new(DenialCode::SandboxedRuntime, "spec.runtimeClassName", wanted, class));
    }
}

fn users(pod: &Pod, settings: &Settings, reasons: &mut Reasons) {
    if pod.has_own_users() && settings.user_namespaces == UserNamespaces::Denied {
        reasons.add(Reason::new(DenialCode::OwnUsers, "spec.hostUsers", "true", "false"));
    }
}

/// Whether the policy lets pods of this namespace and account into the group, and grants what the pod asks for; as the node decides it.
fn policy_says(pod: &Pod, wishes: &Wishes, namespace: &Namespace, policy: &Policy, reasons: &mut Reasons) {
    let group = &wishes.group;
    let account = pod.spec.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(DEFAULT);
    let account: Option<ServiceAccount> = account.parse().ok();
    let who = Party { namespace, group, service_account: account.as_ref() };
    if !policy.is_invited(&who) {
        let wanted = format!("a group of namespace {namespace}, or one that the policy lets it into");
        reasons.add(Reason::new(DenialCode::ForeignGroup, "group", wanted, group));
    }
    for refusal in policy.denied_of(&who, wishes.asks()) {
        reasons.add(Reason::not_granted(&refusal));
    }
}
