//! The daemon's configuration, checked before anything is started.

use std::fmt;
use std::path::{Path, PathBuf};

use gpu_handoff_kubelet::registration;
use gpu_handoff_logs::LogFormat;
use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::{BootTag, SlotId};
use gpu_handoff_sys::filter::Held;
use gpu_handoff_sys::unprivileged::{User, can_become};
use rustix::process::Resource;

use crate::cli::{BrokerUser, NodeArgs};
use crate::identity::cgroup::Root;
use crate::members::{self, StaticMember, StaticMembers};
use crate::node::policy::{Origin, PolicyFile};
use crate::{awake, closer, limits};

mod error;

pub use error::ConfigError;

/// Where the kernel tells its boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH_BYTES: usize = 107;

/// Whom broker and workers run as where the node is started by root and nothing else is said. The kernel counts descriptors
/// in flight for each user of the host, so another process of this user could make the broker wait. Images know 65532 and
/// 65534 as users without rights, and most others begin at 1000; this number is none of theirs, and below 65536, which user
/// namespaces mostly end at.
const BROKER_USER: User = User { uid: 64_532, gid: 64_532 };

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
    /// The policy that is in force first.
    pub policy: Policy,
    /// Its file, where it has one of its own.
    pub policy_file: Option<PolicyFile>,
    /// Where it is from.
    pub policy_origin: Origin,
    /// The members.
    pub members: Vec<StaticMember>,
    /// The node's boot.
    pub boot: BootTag,
    /// The folder of the broker's own files.
    pub state_dir: PathBuf,
    /// Whom broker and workers run as; `None`: as the node.
    pub user: Option<User>,
    /// The kubelet, where one runs this node: it says who the members are.
    pub kubelet: Option<KubeletConfig>,
    /// Its container runtime.
    pub runtime: gpu_handoff_nri::Settings,
    /// Where the pods of this node are among the groups of its processes.
    pub cgroup_root: Root,
    /// Where the NVIDIA driver's part of `/proc` is.
    pub nvidia_proc_root: PathBuf,
    /// Where the NVIDIA driver's devices are.
    pub nvidia_dev_root: PathBuf,
    /// How many connections may have the broker poll at the same time.
    pub awake: usize,
    /// How many members there may be.
    pub slots: usize,
    /// Descriptors that the broker may have open.
    pub descriptors: u64,
    /// The group whose members may ask at the admin socket, beside root.
    pub admin_group: Option<u32>,
    /// How all processes log.
    pub log_format: LogFormat,
}

/// The kubelet of this node, and who this is to it.
#[derive(Debug, Clone)]
pub struct KubeletConfig {
    /// Its root folder.
    pub root: PathBuf,
    /// The node's name.
    pub node: String,
    /// What tells this instance of the plugin from others.
    pub instance: String,
    /// Where slots are, and what is on record of them.
    pub run_dir: PathBuf,
}

impl Config {
    /// Checks what the command line says.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(args: NodeArgs, log_format: LogFormat) -> Result<Self, ConfigError> {
        let NodeArgs { run_dir, state_dir, static_members, kubelet_socket, broker_user, .. } = args;
        let (file, kubelet) = match (static_members, args.node_name) {
            (Some(_), _) if kubelet_socket.exists() => {
                return Err(ConfigError::KubeletPresent { socket: kubelet_socket });
            }
            (Some(path), _) => (members::read(&path)?, None),
            (None, Some(node)) => {
                let (root, run_dir) = (args.kubelet_root, run_dir.clone());
                registration::fits_in(&root)
                    .map_err(|source| ConfigError::KubeletRoot { root: root.clone(), source })?;
                let instance = args.instance.unwrap_or_else(|| format!("pid-{}", std::process::id()));
                let kubelet = KubeletConfig { root, node, instance, run_dir };
                (StaticMembers::default(), Some(kubelet))
            }
            (None, None) => return Err(ConfigError::NoMembers),
        };
        check_socket_path(run_dir.join(format!(".{}", gpu_handoff_admin::SOCKET)))?;
        for member in &file.members {
            check_socket_path(slot_socket(&run_dir, &member.slot))?;
        }
        let user = user_for(broker_user)?;
        check_members_users(&file.members, user)?;
        let nri = args.nri;
        let runtime = gpu_handoff_nri::Settings::new(&nri.nri_socket, &nri.nri_name, nri.nri_index)?;
        let policy_origin = origin_of(args.policy.as_deref(), file.policy.is_some());
        let (policy_file, policy) = policy_of(args.policy, file.policy)?;
        let system = |what, source| ConfigError::System { what, source };
        let text = std::fs::read_to_string(BOOT_ID).map_err(|e| system(BOOT_ID, e))?;
        let boot = BootTag::from_boot_id(&text).map_err(|e| system(BOOT_ID, std::io::Error::other(e)))?;
        Ok(Self {
            state_dir: state_dir.unwrap_or_else(|| run_dir.join("state")),
            run_dir,
            policy,
            policy_file,
            policy_origin,
            members: file.members,
            boot,
            kubelet,
            runtime,
            cgroup_root: own_cgroup_root(),
            user,
            nvidia_proc_root: args.nvidia_proc_root,
            nvidia_dev_root: args.nvidia_dev_root,
            descriptors: descriptor_limit(),
            awake: args.awake.map_or_else(awake::affordable, |said| said as usize),
            slots: args.slots,
            admin_group: args.admin_group,
            log_format,
        })
    }
}

fn origin_of(path: Option<&Path>, is_of_members: bool) -> Origin {
    match path {
        Some(path) => Origin::File(path.to_path_buf()),
        None if is_of_members => Origin::MembersFile,
        None => Origin::BuiltIn,
    }
}

impl Config {
    /// The node's name in Kubernetes; empty where there is none.
    #[must_use]
    pub fn node_name(&self) -> &str {
        self.kubelet.as_ref().map_or("", |kubelet| &kubelet.node)
    }
}

/// Where the pods of this node are, if this process is in one of them; else at the root.
fn own_cgroup_root() -> Root {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Root::of_pod_process(&own).unwrap_or_default()
}

/// The policy, from its own file or from the members'; where neither has one, the built-in rules.
fn policy_of(
    path: Option<PathBuf>,
    of_members: Option<Policy>,
) -> Result<(Option<PolicyFile>, Policy), ConfigError> {
    match (path, of_members) {
        (Some(path), Some(_)) => Err(ConfigError::TwoPolicies { path }),
        (Some(path), None) => {
            let (file, policy) = PolicyFile::open(&path)?;
            Ok((Some(file), policy))
        }
        (None, of_members) => Ok((None, of_members.unwrap_or_default())),
    }
}

/// Whom broker and workers run as: somebody without rights where the node has some.
fn user_for(said: Option<BrokerUser>) -> Result<Option<User>, ConfigError> {
    let own = rustix::process::geteuid();
    let wanted = match said {
        Some(BrokerUser(user)) if user.uid == 0 && own.is_root() => return Err(ConfigError::BrokerIsRoot),
        Some(BrokerUser(user)) if user.uid == own.as_raw() => return Ok(None),
        Some(BrokerUser(user)) => user,
        None if own.is_root() => BROKER_USER,
        None => return Ok(None),
    };
    if can_become(wanted.uid) {
        Ok(Some(wanted))
    } else {
        Err(ConfigError::BrokerUser { wanted: wanted.uid, own: own.as_raw() })
    }
}

/// A broker that was given a user of its own, to be nobody else, shares it with no member. Where it runs as the node does,
/// members are of that user mostly.
fn check_members_users(members: &[StaticMember], broker: Option<User>) -> Result<(), ConfigError> {
    let Some(User { uid: user, .. }) = broker else { return Ok(()) };
    match members.iter().find(|member| member.user == Some(user)) {
        Some(member) => Err(ConfigError::MemberIsBroker { slot: member.slot.clone(), user }),
        None => Ok(()),
    }
}

/// Descriptors that the broker, which this process starts, may have open: the hard limit, as far as it is wanted.
#[must_use]
pub fn descriptor_limit() -> u64 {
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    hard.unwrap_or(limits::WANTED_DESCRIPTORS).min(limits::WANTED_DESCRIPTORS)
}

/// How many of those may hold buffers.
#[must_use]
pub(crate) fn descriptors_for_buffers(limit: u64) -> u64 {
    limit.saturating_sub(limits::RESERVED_DESCRIPTORS + closer::most_unclosed(limit))
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run directory  {}", self.run_dir.display())?;
        writeln!(f, "state          {}", self.state_dir.display())?;
        writeln!(f, "boot           {:016x}", self.boot.0)?;
        match self.user {
            Some(User { uid, gid }) => writeln!(f, "broker         as user {uid}, group {gid}")?,
            None => writeln!(f, "broker         as the node's user {}", rustix::process::geteuid().as_raw())?,
        }
        writeln!(f, "               held to its own files {}", Held::could_be())?;
        let for_buffers = descriptors_for_buffers(self.descriptors);
        writeln!(
            f,
            "descriptors    {} (the hard limit, at most {}), {for_buffers} of them for buffers",
            self.descriptors,
            limits::WANTED_DESCRIPTORS
        )?;
        let policy = serde_json::to_string(&self.policy).map_err(|_| fmt::Error)?;
        writeln!(f, "policy         {policy}")?;
        write!(f, "members        {}, of at most {}", self.members.len(), self.slots)?;
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
    use crate::cli::NriArgs;

    fn args(run_dir: &Path) -> NodeArgs {
        let (nri_socket, nri_name) = ("/nowhere".into(), "gpu-handoff".to_owned());
        NodeArgs {
            run_dir: run_dir.to_path_buf(),
            state_dir: None,
            static_members: None,
            kubelet_root: "/nowhere".into(),
            node_name: None,
            instance: None,
            policy: None,
            kubelet_socket: "/nowhere".into(),
            broker_user: None,
            nvidia_proc_root: "/proc".into(),
            nvidia_dev_root: "/dev".into(),
            slots: limits::MEMBERS,
            awake: None,
            admin_group: None,
            nri: NriArgs { nri_socket, nri_index: 90, nri_name },
            check_config: false,
        }
    }

    #[test]
    fn a_kubelets_root_folder_without_room_for_sockets_is_refused_with_how_much_there_is() {
        let run_dir = tempfile::tempdir().unwrap();
        let config = |bytes: usize| {
            let root = format!("/{}", "k".repeat(bytes - 1)).into();
            let args =
                NodeArgs { kubelet_root: root, node_name: Some("n".to_owned()), ..args(run_dir.path()) };
            Config::new(args, LogFormat::Text)
        };
        assert!(config(48).unwrap().kubelet.is_some());
        let refused = config(49).unwrap_err();
        assert!(refused.to_string().ends_with("(--kubelet-root), of at most 48 bytes"), "{refused}");
        assert!(matches!(refused, ConfigError::KubeletRoot { .. }));
    }

    #[test]
    fn static_members_are_refused_where_a_kubelet_is() {
        let folder = tempfile::tempdir().unwrap();
        let members = folder.path().join("members.json");
        std::fs::write(&members, r#"{"members":[]}"#).unwrap();
        let config = |kubelet_socket: PathBuf| {
            let static_members = Some(members.clone());
            Config::new(NodeArgs { static_members, kubelet_socket, ..args(folder.path()) }, LogFormat::Text)
        };
        let good = config(folder.path().join("absent")).unwrap();
        assert_eq!(good.state_dir, folder.path().join("state"));
        assert!(good.to_string().contains(&format!("held to its own files {}", Held::could_be())), "{good}");
        let refused = config(members.clone()).unwrap_err();
        assert!(matches!(refused, ConfigError::KubeletPresent { .. }));
        // The policy in the words of the file: what is shown can be put there.
        let shown = good.to_string();
        let policy = shown.lines().find_map(|line| line.strip_prefix("policy ")).unwrap().trim();
        assert!(policy.starts_with(r#"{"legacy":"deny","kinds":["vmm","timeline"],"#), "{policy}");
        assert_eq!(serde_json::from_str::<Policy>(policy).unwrap(), good.policy);
    }

    #[test]
    fn what_a_broker_may_have_open_is_for_itself_slots_that_stay_open_and_buffers() {
        for (limit, unclosed, for_buffers) in [
            (limits::WANTED_DESCRIPTORS, 1_024, 64_256),
            (16_384, 1_024, 15_104),
            (4_096, 256, 3_584),
            (1_024, 64, 704),
            (256, 16, 0),
            (0, 0, 0),
        ] {
            assert_eq!(
                (closer::most_unclosed(limit), descriptors_for_buffers(limit)),
                (unclosed, for_buffers)
            );
            assert!(for_buffers == 0 || limits::RESERVED_DESCRIPTORS + unclosed + for_buffers == limit);
        }
    }

    #[test]
    fn no_member_may_be_of_the_user_that_the_broker_was_given() {
        let member = |user: u32| {
            let text = format!(r#"{{"slot":"a","namespace":"n","pod":"p","group":"g","user":{user}}}"#);
            serde_json::from_str::<StaticMember>(&text).unwrap()
        };
        let broker = Some(BROKER_USER);
        assert!(check_members_users(&[member(0), member(BROKER_USER.uid + 1)], broker).is_ok());
        let members = [member(1), member(BROKER_USER.uid)];
        let refused = check_members_users(&members, broker).unwrap_err().to_string();
        assert!(
            refused.contains("slot a is of user 64532") && refused.contains("--broker-user"),
            "{refused}"
        );
        // One that runs as the node's own user was given none.
        assert!(check_members_users(&members, None).is_ok());
    }

    #[test]
    fn the_broker_runs_as_nobody_that_it_cannot_become() {
        let own = rustix::process::geteuid().as_raw();
        let as_user = |uid| user_for(Some(BrokerUser(User { uid, gid: uid })));
        if own == 0 {
            assert!(matches!(as_user(0), Err(ConfigError::BrokerIsRoot)));
        } else {
            assert_eq!(as_user(own).unwrap(), None);
        }
        if can_become(BROKER_USER.uid) {
            assert_eq!(user_for(None).unwrap(), Some(BROKER_USER));
        } else if own != 0 {
            assert_eq!(user_for(None).unwrap(), None);
            assert!(as_user(own + 1).unwrap_err().to_string().contains(&format!("--broker-user {own}")));
        }
    }

    #[test]
    fn a_socket_path_that_no_socket_can_have_is_refused() {
        let long =
            check_socket_path(slot_socket(Path::new(&"x".repeat(100)), &"a".parse().unwrap())).unwrap_err();
        assert!(long.to_string().contains("a path of 118 bytes, the kernel takes 107"), "{long}");
        assert!(check_socket_path(slot_socket(Path::new("/run/gpu-handoff"), &"a".parse().unwrap())).is_ok());
    }
}
