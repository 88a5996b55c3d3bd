//! The label that the group's pods find each other by, and the annotations that say what was done.

use serde_json::json;

use crate::denial::{Denial, DenialCode, Reason, Reasons};
use crate::edit::{Edit, at};
use crate::group::group_hash;
use crate::keys::{GROUP_HASH_LABEL, Key};
use crate::pod::Pod;
use crate::wishes::Wishes;

pub(super) fn check(pod: &Pod, wishes: &Wishes, reasons: &mut Reasons) {
    let wanted = group_hash(&wishes.group);
    if let Some(found) = pod.metadata.labels.get(GROUP_HASH_LABEL).filter(|found| **found != wanted) {
        let wanted = format!("{wanted}, of group {}", wishes.group);
        let reason = Reason::new(DenialCode::NameTaken, format!("label {GROUP_HASH_LABEL}"), wanted, found);
        reasons.add(reason.with_remedy(
            "remove the label: the injection sets it; if `gpu-handoff inject` did, give it the namespace that the pod \
             will be in",
        ));
    }
}

pub(super) fn add(pod: &Pod, wishes: &Wishes, edit: &mut Edit) -> Result<(), Denial> {
    edit.complete(&at(["metadata"]), json!({ "labels": { GROUP_HASH_LABEL: group_hash(&wishes.group) } }))?;
    let mut annotations = json!({ Key::Injected.as_str(): crate::VERSION });
    if !pod.metadata.annotations.contains_key(Key::Group.as_str()) {
        // Labels may change while the pod lives, and its group does not.
        annotations[Key::Group.as_str()] = json!(wishes.group.name.as_str());
    }
    edit.complete(&at(["metadata"]), json!({ "annotations": annotations }))
}
