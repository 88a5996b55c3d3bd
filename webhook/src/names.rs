//! The names of the Kubernetes objects that the webhook meets: `manifests/webhook.yaml` has the same, which a test compares.

/// The webhook's Service; the API server verifies its name.
pub const SERVICE: &str = "gpu-handoff-webhook";
/// The Secret that all replicas have their certificates from.
pub const SECRET: &str = "gpu-handoff-webhook-tls";
/// The MutatingWebhookConfiguration, and the webhook in it. Webhooks are called in the order of these names: after that of
/// LeaderWorkerSet (`lws-…`), which gives pods the labels that name their group.
pub const CONFIGURATION: &str = "pods.gpu-handoff.io";
/// Who is seen to own the field `caBundle` of that.
pub const FIELD_MANAGER: &str = "gpu-handoff-webhook";
/// Where pods are sent.
pub const INJECT_PATH: &str = "/inject";
/// Whether the process does anything.
pub const HEALTH_PATH: &str = "/healthz";
/// Whether it should be asked.
pub const READY_PATH: &str = "/readyz";

/// The name that the API server calls the webhook of this namespace by.
#[must_use]
pub fn host(namespace: &str) -> String {
    format!("{SERVICE}.{namespace}.svc")
}
