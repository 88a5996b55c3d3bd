//! The volumes: the pod's slot on its node, and the folder that the sidecar and the applications meet in.

use serde_json::json;

use crate::denial::{Denial, DenialCode, Reason, Reasons};
use crate::edit::{Edit, at};
use crate::keys::{SLOT_DRIVER, SLOT_VOLUME, SOCKET_VOLUME};
use crate::pod::{Pod, Volume};

/// A socket takes no room.
const SOCKET_VOLUME_SIZE: &str = "1Mi";

pub(super) fn check(pod: &Pod, reasons: &mut Reasons) {
    let named = |name: &'static str| pod.spec.volumes.iter().filter(move |volume| volume.name == name);
    let mut refuse = |name: &str, wanted: &str, found: &str| {
        reasons.add(Reason::new(DenialCode::NameTaken, format!("volume {name}"), wanted, found));
    };
    for volume in named(SLOT_VOLUME) {
        match &volume.csi {
            Some(csi) if csi.driver != SLOT_DRIVER => {
                refuse(SLOT_VOLUME, &format!("csi driver {SLOT_DRIVER}"), &csi.driver);
            }
            Some(csi) if csi.read_only == Some(false) => {
                refuse(SLOT_VOLUME, "readOnly: true", "readOnly: false")
            }
            Some(_) => {}
            None => refuse(SLOT_VOLUME, &format!("csi driver {SLOT_DRIVER}"), "another kind of volume"),
        }
    }
    if named(SOCKET_VOLUME).any(|volume| volume.empty_dir.is_none()) {
        refuse(SOCKET_VOLUME, "an emptyDir", "another kind of volume");
    }
}

pub(super) fn add(pod: &Pod, edit: &mut Edit) -> Result<(), Denial> {
    let volumes = at(["spec", "volumes"]);
    let place = |name: &str| pod.spec.volumes.iter().position(|volume: &Volume| volume.name == name);
    match place(SLOT_VOLUME) {
        Some(index) => {
            edit.complete(&volumes.with_trailing_token(index), json!({ "csi": { "readOnly": true } }))?
        }
        None => {
            let slot = json!({ "name": SLOT_VOLUME, "csi": { "driver": SLOT_DRIVER, "readOnly": true } });
            edit.append(&volumes, slot)?;
        }
    }
    if place(SOCKET_VOLUME).is_none() {
        // In memory: a folder on the node's disk would keep the cluster autoscaler from removing the node.
        let folder = json!({ "medium": "Memory", "sizeLimit": SOCKET_VOLUME_SIZE });
        edit.append(&volumes, json!({ "name": SOCKET_VOLUME, "emptyDir": folder }))?;
    }
    Ok(())
}
