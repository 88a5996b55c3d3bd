//! The applications' containers: the socket's folder, read-only, and the variable that names the socket.

use serde_json::json;

use crate::denial::{Denial, DenialCode, Reason, Reasons};
use crate::edit::{Edit, at};
use crate::keys::{Key, SIDECAR, SOCKET, SOCKET_ENV, SOCKET_FOLDER, SOCKET_VOLUME};
use crate::nearest::nearest;
use crate::pod::{Container, Mount, Pod};
use crate::wishes::Wishes;

/// A container that gets the socket, and where it is in the pod.
struct Application<'a> {
    list: &'static str,
    index: usize,
    container: &'a Container,
}

pub(super) fn check(pod: &Pod, wishes: &Wishes, reasons: &mut Reasons) {
    unknown(pod, wishes, reasons);
    for Application { container, .. } in applications(pod, wishes) {
        let what = || format!("mount {SOCKET_FOLDER} of container {}", container.name);
        for mount in container.volume_mounts.iter().filter(|mount| mount.is_at(SOCKET_FOLDER)) {
            let wanted = format!("volume {SOCKET_VOLUME}, read-only");
            if mount.name != SOCKET_VOLUME {
                let found = format!("volume {}", mount.name);
                reasons.add(Reason::new(DenialCode::MountTaken, what(), wanted, found));
            } else if mount.read_only == Some(false) {
                let reason = Reason::new(DenialCode::MountTaken, what(), wanted, "readOnly: false");
                reasons.add(reason.with_remedy("remove readOnly: false"));
            }
        }
    }
}

/// Containers that are named and that the pod does not have.
fn unknown(pod: &Pod, wishes: &Wishes, reasons: &mut Reasons) {
    let there = || all(pod).map(|application| application.container.name.as_str());
    for name in wishes.containers.iter().flatten().filter(|name| !there().any(|there| there == name.as_str()))
    {
        let wanted = format!("one of {}", there().collect::<Vec<_>>().join(", "));
        let reason = Reason::new(DenialCode::UnknownContainer, Key::Containers.as_str(), wanted, name);
        reasons.add(match nearest(name, there()) {
            Some(near) => reason.with_remedy(format!("did you mean {near}?")),
            None => reason,
        });
    }
}

pub(super) fn add(pod: &Pod, wishes: &Wishes, edit: &mut Edit) -> Result<(), Denial> {
    for Application { list, index, container } in applications(pod, wishes) {
        let index = index.to_string();
        let mounts = at(["spec", list, &index, "volumeMounts"]);
        match container.volume_mounts.iter().position(|mount| mount.is_at(SOCKET_FOLDER)) {
            Some(place) => edit.complete(&mounts.with_trailing_token(place), json!({ "readOnly": true }))?,
            None => {
                let mount = json!({ "name": SOCKET_VOLUME, "mountPath": SOCKET_FOLDER, "readOnly": true });
                edit.append(&mounts, mount)?;
            }
        }
        if !container.env.iter().any(|variable| variable.name == SOCKET_ENV) {
            let variable = json!({ "name": SOCKET_ENV, "value": SOCKET });
            edit.append(&at(["spec", list, &index, "env"]), variable)?;
        }
    }
    Ok(())
}

/// The containers that get the socket: those that are named, or all that are not there to prepare others.
fn applications<'a>(pod: &'a Pod, wishes: &'a Wishes) -> impl Iterator<Item = Application<'a>> {
    all(pod).filter(|application| match &wishes.containers {
        Some(names) => names.contains(&application.container.name),
        None => application.list == "containers",
    })
}

/// All containers of the pod but the sidecar.
fn all(pod: &Pod) -> impl Iterator<Item = Application<'_>> {
    let listed = |list: &'static str, containers| {
        let listed = <[Container]>::iter(containers).enumerate();
        listed.map(move |(index, container)| Application { list, index, container })
    };
    let all =
        listed("containers", &pod.spec.containers).chain(listed("initContainers", &pod.spec.init_containers));
    all.filter(|application| application.container.name != SIDECAR)
}

impl Mount {
    /// Whether it is mounted there, however the path is written.
    pub(super) fn is_at(&self, path: &str) -> bool {
        let parts =
            |path| str::split(path, '/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>();
        parts(&self.mount_path) == parts(path)
    }
}
