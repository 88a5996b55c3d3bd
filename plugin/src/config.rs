//! The daemon's configuration, checked before anything is started.

use std::fmt;
use std::path::{Path, PathBuf};

use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::{BootTag, SlotId};

use crate::cli::BrokerArgs;
use crate::members::{self, MembersError, StaticMember};

/// Where the kernel tells its boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH_BYTES: usize = 107;

/// Where a member's sidecar finds the daemon.
#[must_use]
pub fn slot_socket(run_dir: &Path, slot: &SlotId) -> PathBuf {
    run_dir.join("slots").join(slot.as_str()).join("slot.sock")
}

fn check_socket_path(path: PathBuf) -> Result<(), ConfigError> {
    if path.as_os_str().len() <= SOCKET_PATH_BYTES { Ok(()) } else { Err(ConfigError::SocketPath { path }) }
}

/// A configuration that can be run.
#[derive(Debug)]
pub struct Config {
    /// Where slots and the daemon's own files are.
    pub run_dir: PathBuf,
    /// The policy.
    pub policy: Policy,
    /// The members.
    pub members: Vec<StaticMember>,
    /// The node's boot.
    pub boot: BootTag,
    /// This very program, to be started as worker.
    pub program: PathBuf,
}

/// Why a configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The members file cannot be used.
    #[error("the static members cannot be used")]
    Members(#[from] MembersError),
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
    /// The kernel does not tell what is needed.
    #[error("cannot read {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system answered.
        source: std::io::Error,
    },
}

impl TryFrom<BrokerArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: BrokerArgs) -> Result<Self, ConfigError> {
        let BrokerArgs { run_dir, static_members, kubelet_socket, check_config: _ } = args;
        if kubelet_socket.exists() {
            return Err(ConfigError::KubeletPresent { socket: kubelet_socket });
        }
        let file = members::read(&static_members)?;
        for member in &file.members {
            check_socket_path(slot_socket(&run_dir, &member.slot))?;
        }
        let system = |what, source| ConfigError::System { what, source };
        let text = std::fs::read_to_string(BOOT_ID).map_err(|e| system(BOOT_ID, e))?;
        let boot = BootTag::from_boot_id(&text).map_err(|e| system(BOOT_ID, std::io::Error::other(e)))?;
        let program = std::env::current_exe().map_err(|e| system("the path of this program", e))?;
        Ok(Self { run_dir, policy: file.policy, members: file.members, boot, program })
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run directory  {}", self.run_dir.display())?;
        writeln!(f, "boot           {:016x}", self.boot.0)?;
        writeln!(f, "policy         {:?}", self.policy)?;
        write!(f, "members        {}", self.members.len())?;
        for m in &self.members {
            write!(f, "\n  slot {} is pod {} in group {}", m.slot, m.pod(), m.group())?;
            if let Some(user) = m.user {
                write!(f, ", of user {user}")?;
            }
            if let Some(devices) = &m.devices {
                let list: Vec<String> = devices.iter().map(ToString::to_string).collect();
                write!(f, ", with {}", if list.is_empty() { "no GPU".to_owned() } else { list.join(", ") })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_members_are_refused_where_a_kubelet_is() {
        let folder = tempfile::tempdir().unwrap();
        let members = folder.path().join("members.json");
        std::fs::write(&members, r#"{"members":[]}"#).unwrap();
        let args = |kubelet_socket: PathBuf| BrokerArgs {
            run_dir: folder.path().to_path_buf(),
            static_members: members.clone(),
            kubelet_socket,
            check_config: false,
        };
        assert!(Config::try_from(args(folder.path().join("absent"))).is_ok());
        let refused = Config::try_from(args(members.clone())).unwrap_err();
        assert!(matches!(refused, ConfigError::KubeletPresent { .. }));
    }

    #[test]
    fn a_socket_path_that_no_socket_can_have_is_refused() {
        let long =
            check_socket_path(slot_socket(Path::new(&"x".repeat(100)), &"a".parse().unwrap())).unwrap_err();
        assert!(long.to_string().contains("a path of 118 bytes, the kernel takes 107"), "{long}");
        assert!(check_socket_path(slot_socket(Path::new("/run/gpu-handoff"), &"a".parse().unwrap())).is_ok());
    }
}
