//! Requests as the wire has them become commands, or are refused. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::words::{PodName, Publish, Unpublish};
use crate::proto::csi::volume_capability::AccessType;
use crate::proto::csi::volume_capability::access_mode::Mode;
use crate::proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability};
use crate::{DRIVER, limits, names};

const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
const SERVICE_ACCOUNT: &str = "csi.storage.k8s.io/serviceAccount.name";
const KNOWN: [&str; 5] = [EPHEMERAL, POD_NAME, POD_NAMESPACE, POD_UID, SERVICE_ACCOUNT];

/// What is wrong with a request, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The volume's id is none.
    #[error("the volume's id has {0} bytes or other characters than a-z, 0-9 and -; 1 to {most} are expected", most = limits::VOLUME_ID_BYTES)]
    VolumeId(usize),
    /// The kubelet does not say whose volume it is.
    #[error(
        "the volume's context has no {0}: the CSIDriver {DRIVER} must say podInfoOnMount: true, and be there before the pod"
    )]
    Missing(&'static str),
    /// What it says is not well formed.
    #[error("{key} in the volume's context is not well formed: {value:?}")]
    Malformed {
        /// Which entry.
        key: &'static str,
        /// What it says.
        value: String,
    },
    /// A persistent volume.
    #[error(
        "the volume is not inline: use `csi: {{driver: {DRIVER}, readOnly: true}}` in the pod's volumes, no persistent volume and no claim"
    )]
    NotInline,
    /// The volume has attributes of its own.
    #[error("the volume has {0}, which {DRIVER} does not know: remove it from the pod's volume")]
    Unknown(String),
    /// Written to.
    #[error("the volume is not read-only: write readOnly: true in the pod's volume")]
    Writable,
    /// Neither a file system nor for one node.
    #[error("the volume's access is not that of an inline volume: {0}")]
    Access(&'static str),
    /// The target path is not where this pod's volumes are.
    #[error(
        "the target path {path:?} is not below {root:?}: pods/<uid>/volumes/kubernetes.io~csi/<name>/mount is expected there; does the plugin know the kubelet's root folder?"
    )]
    Target {
        /// What the kubelet says.
        path: String,
        /// Where its pods are expected.
        root: PathBuf,
    },
    /// It is where another pod's volumes are.
    #[error("the target path is of pod {path}, the volume's context of pod {context}")]
    OtherPod {
        /// The UID in the path.
        path: String,
        /// The UID in the context.
        context: String,
    },
}

/// A volume's target path, taken apart.
struct Target<'a> {
    uid: &'a str,
    name: &'a str,
}

pub(super) fn publish(asked: NodePublishVolumeRequest, root: &Path) -> Result<Publish, Invalid> {
    volume_id(&asked.volume_id)?;
    let context = Context(asked.volume_context);
    let pod = PodName {
        namespace: context.get(POD_NAMESPACE, names::is_label)?,
        name: context.get(POD_NAME, names::is_subdomain)?,
        uid: context.get(POD_UID, names::is_pod_uid)?,
    };
    let service_account = context.service_account()?;
    if context.get(EPHEMERAL, |_| true)? != "true" {
        return Err(Invalid::NotInline);
    }
    context.nothing_else()?;
    for (what, there) in [
        ("a publish context", !asked.publish_context.is_empty()),
        ("a staging path", !asked.staging_target_path.is_empty()),
        ("secrets (nodePublishSecretRef)", !asked.secrets.is_empty()),
    ] {
        if there {
            return Err(Invalid::Unknown(what.to_owned()));
        }
    }
    access(asked.volume_capability)?;
    if !asked.readonly {
        return Err(Invalid::Writable);
    }
    let target = target(&asked.target_path, root)?;
    if target.uid != pod.uid {
        return Err(Invalid::OtherPod { path: target.uid.to_owned(), context: pod.uid });
    }
    let name = target.name.to_owned();
    Ok(Publish { volume: asked.volume_id, pod, service_account, name, target: asked.target_path.into() })
}

pub(super) fn unpublish(asked: NodeUnpublishVolumeRequest, root: &Path) -> Result<Unpublish, Invalid> {
    volume_id(&asked.volume_id)?;
    let pod_uid = target(&asked.target_path, root)?.uid.to_owned();
    Ok(Unpublish { volume: asked.volume_id, pod_uid, target: asked.target_path.into() })
}

fn volume_id(id: &str) -> Result<(), Invalid> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good = !id.is_empty() && id.len() <= limits::VOLUME_ID_BYTES && id.bytes().all(fits);
    if good { Ok(()) } else { Err(Invalid::VolumeId(id.len())) }
}

/// The volume's context: the kubelet's words, and before them whatever the pod's author wrote.
struct Context(BTreeMap<String, String>);

impl Context {
    fn get(&self, key: &'static str, is: impl Fn(&str) -> bool) -> Result<String, Invalid> {
        let value = self.0.get(key).filter(|value| !value.is_empty()).ok_or(Invalid::Missing(key))?;
        if !is(value) {
            let value = crate::serving::cut(value.clone(), limits::SUBDOMAIN_BYTES);
            return Err(Invalid::Malformed { key, value });
        }
        Ok(value.clone())
    }

    /// A static pod has none: what it is called is then empty.
    fn service_account(&self) -> Result<String, Invalid> {
        match self.0.get(SERVICE_ACCOUNT) {
            Some(none) if none.is_empty() => Ok(String::new()),
            _ => self.get(SERVICE_ACCOUNT, names::is_subdomain),
        }
    }

    fn nothing_else(&self) -> Result<(), Invalid> {
        match self.0.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let key = crate::serving::cut(key.clone(), limits::SUBDOMAIN_BYTES);
                Err(Invalid::Unknown(format!("the attribute {key:?}")))
            }
        }
    }
}

fn access(capability: Option<VolumeCapability>) -> Result<(), Invalid> {
    let capability = capability.ok_or(Invalid::Access("none is stated"))?;
    let Some(AccessType::Mount(mount)) = capability.access_type else {
        return Err(Invalid::Access("a file system is expected, no block device"));
    };
    if !mount.fs_type.is_empty() {
        return Err(Invalid::Unknown("a type of file system (fsType)".to_owned()));
    }
    if !mount.mount_flags.is_empty() {
        return Err(Invalid::Unknown("mount options".to_owned()));
    }
    if !mount.volume_mount_group.is_empty() {
        return Err(Invalid::Unknown("a group".to_owned()));
    }
    match capability.access_mode.map(|access| access.mode()) {
        Some(Mode::SingleNodeWriter | Mode::SingleNodeReaderOnly) => Ok(()),
        _ => Err(Invalid::Access("the mode must be that of a single node")),
    }
}

/// Takes a target path apart, byte by byte: nothing in it is resolved, so nothing in it may need to be.
fn target<'a>(path: &'a str, root: &Path) -> Result<Target<'a>, Invalid> {
    let parse = || {
        let below = path.strip_prefix(root.to_str()?.trim_end_matches('/'))?.strip_prefix("/pods/")?;
        let mut parts = below.split('/');
        let uid = parts.next().filter(|uid| names::is_pod_uid(uid))?;
        let fixed = parts.next() == Some("volumes") && parts.next() == Some("kubernetes.io~csi");
        let name = parts.next().filter(|name| names::is_label(name))?;
        let ends = parts.next() == Some("mount") && parts.next().is_none();
        (fixed && ends && path.len() <= limits::TARGET_PATH_BYTES).then_some(Target { uid, name })
    };
    parse().ok_or_else(|| Invalid::Target {
        path: crate::serving::cut(path.to_owned(), limits::SUBDOMAIN_BYTES),
        root: root.to_owned(),
    })
}

#[cfg(test)]
mod tests;
