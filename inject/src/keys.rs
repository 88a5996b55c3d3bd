//! The names that injection reads and writes in a pod's metadata and spec.

use gpu_handoff_protocol::{APP_SOCKET_ENV, DEFAULT_APP_SOCKET};

/// What all annotations and labels of ours begin with.
pub const PREFIX: &str = "gpu-handoff.io/";

/// Declares the annotations once: name and whether a user writes it.
macro_rules! keys {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// An annotation of ours.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Key {
            $($(#[$doc])* $variant,)*
        }

        impl Key {
            /// Every annotation, in the order of the documentation.
            pub const ALL: &'static [Key] = &[$(Key::$variant,)*];

            /// The annotation's full name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Key::$variant => concat!("gpu-handoff.io/", $name),)* }
            }
        }
    };
}

keys! {
    /// The group that the pod is a member of.
    Group = "group";
    /// The label whose value is the group's name.
    GroupFromLabel = "group-from-label";
    /// Which kind of program runs in the pod.
    Profile = "profile";
    /// Which containers get the socket.
    Containers = "containers";
    /// Whether the group's pods must be on one node.
    Colocate = "colocate";
    /// Whether applications wait for the node daemon.
    OnFailure = "on-failure";
    /// What the pod may do with others' buffers.
    Access = "access";
    /// Whether the group shares `/dev/shm`.
    Shm = "shm";
    /// How large that is.
    ShmSize = "shm-size";
    /// Whether the group shares an IPC namespace.
    Ipc = "ipc";
    /// Whether process numbers differ within the group.
    Pids = "pids";
    /// Whose GPUs the pod's containers have device nodes of.
    Devices = "devices";
    /// How many members the group has.
    GroupSize = "group-size";
    /// Written by the injection: the version that did it.
    Injected = "injected";
}

/// The label that the group's pods find each other by: a hash, because a group's name with its namespace may be longer
/// than a label.
pub const GROUP_HASH_LABEL: &str = "gpu-handoff.io/group-hash";

/// The label that each node has alone.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// The sidecar's container.
pub const SIDECAR: &str = "gpu-handoff";
/// The driver of the volume that is the pod's slot on its node.
pub const SLOT_DRIVER: &str = "gpu-handoff.io";
/// The volume that is the pod's slot.
pub const SLOT_VOLUME: &str = "gpu-handoff-slot";
/// Where the sidecar has it.
pub const SLOT_FOLDER: &str = "/run/gpu-handoff-slot";
/// The volume that the sidecar and the applications meet in.
pub const SOCKET_VOLUME: &str = "gpu-handoff";
/// Where all of them have it.
pub const SOCKET_FOLDER: &str = "/run/gpu-handoff";
/// The socket in it.
pub const SOCKET: &str = DEFAULT_APP_SOCKET;
/// The environment variable that tells an application of it.
pub const SOCKET_ENV: &str = APP_SOCKET_ENV;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_together() {
        assert!(Key::ALL.iter().all(|key| key.as_str().starts_with(PREFIX)));
        assert!(GROUP_HASH_LABEL.starts_with(PREFIX));
        assert_eq!(SOCKET.rsplit_once('/').unwrap().0, SOCKET_FOLDER);
    }
}
