//! The group that a pod asks for by its annotations.

use gpu_handoff_inject::Wishes;
use gpu_handoff_kubelet::DRIVER;
use gpu_handoff_kubelet::pods::PodFacts;
use gpu_handoff_protocol::{GroupKey, Namespace};

/// What the pod asks for; `None` where that cannot be read.
pub(super) fn wishes_of(pod: &PodFacts) -> Option<Wishes> {
    let namespace = pod.namespace.parse().ok()?;
    Wishes::read(&pod.annotations, &pod.labels, &namespace).ok()?
}

/// The pod's group; an error is a sentence for the pod's user.
pub(super) fn of(pod: &PodFacts, namespace: &Namespace) -> Result<GroupKey, String> {
    let wishes =
        Wishes::read(&pod.annotations, &pod.labels, namespace).map_err(|denial| denial.to_string())?;
    let Some(wishes) = wishes else {
        return Err(format!(
            "the pod has a volume of {DRIVER}, but names no group: annotate it with `{DRIVER}/group: NAME`, when it is created"
        ));
    };
    Ok(wishes.group)
}
