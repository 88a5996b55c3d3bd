//! Whether the cluster knows the driver, and as what it has to be.

use k8s_openapi::api::storage::v1::CSIDriver;

use crate::doctor::Seen;
use crate::doctor::cluster::DRIVER;
use crate::doctor::facts::{Facts, said};

const REMEDY: &str = "kubectl apply -f manifests/gpu-handoff.yaml; where the API server says that a field is immutable, delete the \
    CSIDriver first: pods that run are not touched";

pub(super) fn is_right(facts: &Facts) -> Option<Seen> {
    said(facts.objects().and_then(|objects| {
        let absent =
            || Seen::problem(format!("there is no CSIDriver {DRIVER}: no pod gets its slot"), REMEDY);
        Ok(match fault(objects.csi_driver.or_absent(absent)?) {
            None => Seen::ok("the kubelet says whose a volume is, and volumes are inline"),
            Some(fault) => Seen::problem(format!("CSIDriver {DRIVER}: {fault}"), REMEDY),
        })
    }))
}

fn fault(driver: &CSIDriver) -> Option<&'static str> {
    let spec = &driver.spec;
    let modes = spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
    if spec.pod_info_on_mount != Some(true) {
        Some(
            "podInfoOnMount is not true: whose a volume is would be its pod's own word, so no pod gets its slot",
        )
    } else if !modes.iter().any(|mode| mode == "Ephemeral") {
        Some("volumeLifecycleModes has no Ephemeral: no pod gets its slot")
    } else if spec.attach_required != Some(false) {
        Some("attachRequired is not false: pods wait for an attachment that nobody makes")
    } else {
        None
    }
}
