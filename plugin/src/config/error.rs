//! Why a configuration cannot be run.

use std::path::PathBuf;

use gpu_handoff_protocol::SlotId;

use super::SOCKET_PATH_BYTES;
use crate::members::MembersError;
use crate::node::policy::PolicyFileError;

/// Why a configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The members file cannot be used.
    #[error("the static members cannot be used")]
    Members(#[from] MembersError),
    /// Nobody says who the members are.
    #[error(
        "nobody says who the members are: name the node (--node-name) where a kubelet runs it, or a file (--static-members)"
    )]
    NoMembers,
    /// The policy's file cannot be used.
    #[error("the policy cannot be used")]
    Policy(#[from] PolicyFileError),
    /// There are two policies.
    #[error("the members' file has a policy, and --policy names {}: only one of them can be in force", path.display())]
    TwoPolicies {
        /// The policy's file.
        path: PathBuf,
    },
    /// A kubelet runs this node.
    #[error(
        "static members are refused: a kubelet runs this node (its socket {} exists), and only it knows which pod is which",
        socket.display()
    )]
    KubeletPresent {
        /// The kubelet's socket.
        socket: PathBuf,
    },
    /// No socket can be made at such a path.
    #[error("the socket {} would have a path of {} bytes, the kernel takes {SOCKET_PATH_BYTES}: use a shorter run directory", path.display(), path.as_os_str().len())]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// The kubelet's root folder leaves no room for our sockets.
    #[error(
        "no sockets for the kubelet can be made in {}: give it a shorter root folder (--kubelet-root), of at most 48 bytes",
        root.display()
    )]
    KubeletRoot {
        /// The folder.
        root: PathBuf,
        /// Which socket.
        source: gpu_handoff_kubelet::registration::SocketError,
    },
    /// The container runtime would not take this plugin.
    #[error("the container runtime cannot be answered")]
    Runtime(#[from] gpu_handoff_nri::SettingsError),
    /// Nobody can be made to run as that user.
    #[error(
        "the broker cannot run as user {wanted}: the node, of user {own}, may not start it as that; {}start the node as root of a user namespace that knows {wanted}", or_own(*own)
    )]
    BrokerUser {
        /// Whom the broker should run as.
        wanted: u32,
        /// Whom the node runs as.
        own: u32,
    },
    /// Root owns the node's files, with or without capabilities.
    #[error(
        "the broker may not run as root, who owns the node's files even without capabilities: leave --broker-user out, or say a user that nothing else on the node runs as"
    )]
    BrokerIsRoot,
    /// A pod would be the broker's user.
    #[error(
        "the member of slot {slot} is of user {user}, as whom the broker runs: no pod may run as that user, who owns the broker's files and could signal it; give the pod another user, or say another --broker-user"
    )]
    MemberIsBroker {
        /// The member's slot.
        slot: SlotId,
        /// Its user, and the broker's.
        user: u32,
    },
    /// The kernel does not tell what is needed.
    #[error("cannot read {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system answered.
        source: std::io::Error,
    },
}

/// What else a node of this user may do; root's broker is never root.
fn or_own(own: u32) -> String {
    if own == 0 { String::new() } else { format!("say --broker-user {own} or ") }
}
