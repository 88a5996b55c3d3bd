//! What a plugin makes of a container.

use prost::Message as _;

use crate::limits;
use crate::proto::nri as proto;
use crate::view::{Device, Mount, Namespace};

/// What is to be added to a container that is about to be made, or replaced in it. By default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    mounts: Vec<Mount>,
    env: Vec<(String, String)>,
    devices: Vec<Device>,
    namespaces: Vec<Namespace>,
}

/// The adjustment is longer than what we answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the adjustment has {bytes} bytes, more than an answer may have ({})", limits::ANSWER_BYTES)]
pub struct TooMuch {
    /// How many it has.
    pub bytes: usize,
}

impl Adjustment {
    /// Mounts something; what is mounted at the same place is not.
    #[must_use]
    pub fn mount(mut self, mount: Mount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Makes a device node, which may be read and written.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Puts it into a namespace: `kind` is "ipc", "pid" and so on, the path is of the file that stands for it.
    #[must_use]
    pub fn namespace(mut self, kind: impl Into<String>, path: impl Into<String>) -> Self {
        self.namespaces.push(Namespace { kind: kind.into(), path: path.into() });
        self
    }

    /// Whether nothing is changed.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The mounts.
    #[must_use]
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The variables.
    #[must_use]
    pub fn variables(&self) -> &[(String, String)] {
        &self.env
    }

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The answer that says it.
    ///
    /// # Errors
    /// When it is too long.
    pub(crate) fn encode(self) -> Result<Vec<u8>, TooMuch> {
        let adjust = (!self.is_nothing()).then(|| self.into());
        let answer = proto::CreateContainerResponse { adjust };
        let bytes = answer.encoded_len();
        if bytes > limits::ANSWER_BYTES { Err(TooMuch { bytes }) } else { Ok(answer.encode_to_vec()) }
    }
}

impl From<Adjustment> for proto::ContainerAdjustment {
    fn from(adjustment: Adjustment) -> Self {
        let Adjustment { mounts, env, devices, namespaces } = adjustment;
        let linux = proto::LinuxContainerAdjustment {
            devices: devices.into_iter().map(Into::into).collect(),
            namespaces: namespaces.into_iter().map(Into::into).collect(),
        };
        Self {
            mounts: mounts.into_iter().map(Into::into).collect(),
            env: env.into_iter().map(|(key, value)| proto::KeyValue { key, value }).collect(),
            linux: (linux != proto::LinuxContainerAdjustment::default()).then_some(linux),
        }
    }
}

impl From<Mount> for proto::Mount {
    fn from(mount: Mount) -> Self {
        let Mount { destination, kind, source, options } = mount;
        Self { destination, r#type: kind, source, options }
    }
}

impl From<Namespace> for proto::LinuxNamespace {
    fn from(namespace: Namespace) -> Self {
        Self { r#type: namespace.kind, path: namespace.path }
    }
}

impl From<Device> for proto::LinuxDevice {
    fn from(device: Device) -> Self {
        let file_mode = device.mode.map(|value| proto::OptionalFileMode { value });
        let Device { path, kind, major, minor, .. } = device;
        Self { path, r#type: kind, major, minor, file_mode }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Validation;

    #[test]
    fn what_is_asked_for_is_what_the_runtime_reads() {
        let mount = Mount {
            destination: "/dev/shm".into(),
            kind: "bind".into(),
            source: "/run/x/shm".into(),
            options: vec!["rbind".into(), "rw".into()],
        };
        let device =
            Device { path: "/dev/nvidia0".into(), kind: "c".into(), major: 195, minor: 0, mode: Some(0o666) };
        let adjustment = Adjustment::default()
            .mount(mount.clone())
            .env("NCCL_HOSTID", "x")
            .device(device.clone())
            .namespace("ipc", "/run/x/ipc");
        let answer = proto::CreateContainerResponse::decode(adjustment.encode().unwrap().as_slice()).unwrap();
        // The same words come back in what a validator is shown.
        let asked = proto::ValidateContainerAdjustmentRequest { adjust: answer.adjust, ..Default::default() };
        let seen = Validation::from(asked);
        assert_eq!(seen.mounts, [mount]);
        assert_eq!(seen.env, [("NCCL_HOSTID".into(), "x".into())]);
        assert_eq!(seen.devices, [device]);
        assert_eq!(seen.namespaces, [Namespace { kind: "ipc".into(), path: "/run/x/ipc".into() }]);
    }

    #[test]
    fn nothing_is_an_empty_answer_and_too_much_is_none() {
        assert_eq!(Adjustment::default().encode(), Ok(vec![]));
        let most = Adjustment::default().env("A", "x".repeat(limits::ANSWER_BYTES));
        assert!(matches!(most.encode(), Err(TooMuch { bytes }) if bytes > limits::ANSWER_BYTES));
    }
}
