//! What the runtime says of pods and containers, as far as a plugin has use for it.
//!
//! Nothing is checked here: an id may be empty, a path may be any text. A whole message is bounded
//! ([`limits::MESSAGE_BYTES`]), and nothing of it is kept beyond the call, but for Synchronize ([`crate::exchange`]).
//!
//! [`limits::MESSAGE_BYTES`]: crate::limits::MESSAGE_BYTES

use crate::names;
use crate::proto::nri as proto;

/// A pod's sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// The runtime's id of it.
    pub id: String,
    /// The pod's UID in Kubernetes; empty for what another than a kubelet made.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
}

/// A container, with the specification that it has, or is going to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id of it.
    pub id: String,
    /// [`Pod::id`] of its pod.
    pub pod_id: String,
    /// Its name in the pod.
    pub name: String,
    /// Where it is in its life.
    pub stage: Stage,
    /// Its environment, in its order; a name may be there twice. Left out of what Synchronize says.
    pub env: Vec<(String, String)>,
    /// Its mounts, in their order.
    pub mounts: Vec<Mount>,
    /// Its namespaces.
    pub namespaces: Vec<Namespace>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Its first process, where there is one.
    pub pid: Option<u32>,
    /// The user that it is to run as, where the runtime says that.
    pub user: Option<u32>,
}

/// Where a container is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The runtime does not say.
    #[default]
    Unknown,
    /// Made, and has not run its program.
    Created,
    /// Runs, or is paused.
    Running,
    /// Over.
    Stopped,
}

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Where, in the container.
    pub destination: String,
    /// "bind", "tmpfs", "proc" and so on.
    pub kind: String,
    /// What, on the node.
    pub source: String,
    /// "rbind", "ro" and so on.
    pub options: Vec<String>,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// "ipc", "pid", "network" and so on.
    pub kind: String,
    /// The file that stands for it; empty: a new one.
    pub path: String,
}

/// A device node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Where, in the container.
    pub path: String,
    /// "c" or "b".
    pub kind: String,
    /// Its major number.
    pub major: i64,
    /// Its minor number.
    pub minor: i64,
    /// Its mode, where it is not left to the runtime.
    pub mode: Option<u32>,
}

/// What all plugins together made of a container that is about to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validation {
    /// Its pod.
    pub pod: Pod,
    /// The container as it was before anybody adjusted it.
    pub container: Container,
    /// Mounts that were added, or replace others.
    pub mounts: Vec<Mount>,
    /// Variables that were added, or replace others.
    pub env: Vec<(String, String)>,
    /// Namespaces that replace others.
    pub namespaces: Vec<Namespace>,
    /// Devices that were added, or replace others.
    pub devices: Vec<Device>,
    /// Who was asked: index and name.
    pub plugins: Vec<(String, String)>,
}

impl Validation {
    /// Whether the runtime's own validator is on, which can demand plugins, and forbid what they do to namespaces.
    #[must_use]
    pub fn default_validator(&self) -> bool {
        self.plugins.iter().any(|(index, name)| (index.as_str(), name.as_str()) == names::DEFAULT_VALIDATOR)
    }
}

impl From<proto::PodSandbox> for Pod {
    fn from(said: proto::PodSandbox) -> Self {
        Self { id: said.id, uid: said.uid, namespace: said.namespace, name: said.name }
    }
}

impl From<proto::Container> for Container {
    fn from(said: proto::Container) -> Self {
        let stage = match said.state() {
            proto::ContainerState::ContainerUnknown => Stage::Unknown,
            proto::ContainerState::ContainerCreated => Stage::Created,
            proto::ContainerState::ContainerPaused | proto::ContainerState::ContainerRunning => {
                Stage::Running
            }
            proto::ContainerState::ContainerStopped => Stage::Stopped,
        };
        let linux = said.linux.unwrap_or_default();
        Self {
            id: said.id,
            pod_id: said.pod_sandbox_id,
            name: said.name,
            stage,
            env: said.env.into_iter().map(variable).collect(),
            mounts: into(said.mounts),
            namespaces: into(linux.namespaces),
            devices: into(linux.devices),
            pid: Some(said.pid).filter(|pid| *pid != 0),
            user: said.user.map(|user| user.uid),
        }
    }
}

impl From<proto::Mount> for Mount {
    fn from(said: proto::Mount) -> Self {
        Self { destination: said.destination, kind: said.r#type, source: said.source, options: said.options }
    }
}

impl From<proto::LinuxNamespace> for Namespace {
    fn from(said: proto::LinuxNamespace) -> Self {
        Self { kind: said.r#type, path: said.path }
    }
}

impl From<proto::LinuxDevice> for Device {
    fn from(said: proto::LinuxDevice) -> Self {
        let mode = said.file_mode.map(|mode| mode.value);
        Self { path: said.path, kind: said.r#type, major: said.major, minor: said.minor, mode }
    }
}

impl From<proto::ValidateContainerAdjustmentRequest> for Validation {
    fn from(said: proto::ValidateContainerAdjustmentRequest) -> Self {
        let adjust = said.adjust.unwrap_or_default();
        let linux = adjust.linux.unwrap_or_default();
        Self {
            pod: said.pod.unwrap_or_default().into(),
            container: said.container.unwrap_or_default().into(),
            mounts: into(adjust.mounts),
            env: adjust.env.into_iter().map(|pair| (pair.key, pair.value)).collect(),
            namespaces: into(linux.namespaces),
            devices: into(linux.devices),
            plugins: said.plugins.into_iter().map(|plugin| (plugin.index, plugin.name)).collect(),
        }
    }
}

fn into<A, B: From<A>>(all: Vec<A>) -> Vec<B> {
    all.into_iter().map(B::from).collect()
}

/// `NAME=VALUE`; without a `=`, a name whose value is empty, as runtimes take it.
fn variable(text: String) -> (String, String) {
    match text.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (text, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_as_runtimes_read_them() {
        let env = ["A=1", "B=", "C", "", "=x", "D=a=b"].map(String::from).to_vec();
        let container = Container::from(proto::Container { env, ..Default::default() });
        let pairs: Vec<_> =
            container.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("A", "1"), ("B", ""), ("C", ""), ("", ""), ("", "x"), ("D", "a=b")]);
    }

    #[test]
    fn what_is_not_said_is_not_there() {
        let container = Container::from(proto::Container { state: 77, ..Default::default() });
        assert_eq!(container, Container::default());
        let said =
            proto::Container { pid: 5, user: Some(proto::User { uid: 0, gid: 1 }), ..Default::default() };
        let container = Container::from(said);
        assert_eq!((container.pid, container.user), (Some(5), Some(0)));
    }

    #[test]
    fn the_runtimes_own_validator_is_seen_by_name_and_index() {
        let asked = |index: &str, name: &str| {
            let plugins = vec![proto::PluginInstance { name: name.into(), index: index.into() }];
            Validation::from(proto::ValidateContainerAdjustmentRequest { plugins, ..Default::default() })
                .default_validator()
        };
        assert!(asked("00", "default-validator"));
        assert!(!asked("90", "default-validator") && !asked("00", "other"));
    }
}
