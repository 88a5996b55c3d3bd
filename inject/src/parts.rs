//! What is added to a pod, part by part. Each part has a check (what of ours is there and is something else?), and adds
//! what is missing.

use gpu_handoff_protocol::Namespace;

use crate::denial::{Denial, Reasons};
use crate::edit::Edit;
use crate::pod::Pod;
use crate::settings::Settings;
use crate::wishes::Wishes;
use crate::words::OnFailure;

mod applications;
mod marks;
mod placement;
mod processes;
mod sidecar;
mod volumes;

/// Finds what of ours is there and is something else.
pub(crate) fn check(pod: &Pod, wishes: &Wishes, settings: &Settings, reasons: &mut Reasons) {
    marks::check(pod, wishes, reasons);
    volumes::check(pod, reasons);
    sidecar::check(pod, settings, reasons);
    applications::check(pod, wishes, reasons);
}

/// Adds what is missing. The sidecar comes last: it moves the other init containers.
pub(crate) fn add(
    pod: &Pod,
    wishes: &Wishes,
    namespace: &Namespace,
    settings: &Settings,
    on_failure: OnFailure,
    edit: &mut Edit,
) -> Result<(), Denial> {
    marks::add(pod, wishes, edit)?;
    placement::add(pod, wishes, namespace, settings, edit)?;
    processes::add(wishes, edit)?;
    volumes::add(pod, edit)?;
    applications::add(pod, wishes, edit)?;
    sidecar::add(pod, on_failure, settings, edit)
}
