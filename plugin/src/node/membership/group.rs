//! What a pod asks for by its annotations.

use gpu_handoff_inject::Wishes;
use gpu_handoff_kubelet::DRIVER;
use gpu_handoff_kubelet::pods::PodFacts;
use gpu_handoff_protocol::Namespace;

/// What the pod asks for; `None` where that cannot be read.
pub(super) fn wishes_of(pod: &PodFacts) -> Option<Wishes> {
    of(pod, &pod.namespace.parse().ok()?).ok()
}

/// The same; an error is a sentence for the pod's user.
pub(super) fn of(pod: &PodFacts, namespace: &Namespace) -> Result<Wishes, String> {
    let wishes =
        Wishes::read(&pod.annotations, &pod.labels, namespace).map_err(|denial| denial.to_string())?;
    wishes.ok_or_else(|| {
        format!(
            "the pod has a volume of {DRIVER}, but names no group: annotate it with `{DRIVER}/group: NAME`, when it is created"
        )
    })
}
