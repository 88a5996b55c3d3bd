//! The command line of `gpu-handoff-plugin`.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gpu_handoff_cuda::{Driver, Survey};
use gpu_handoff_logs::LogFormat;
use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_sys::unprivileged::User;

use crate::config::Config;
use crate::gpu::self_test::{self, Half};
use crate::{app, gpu, limits, node};

/// The node daemon of gpu-handoff.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(subcommand)]
    mode: Mode,
    /// How log lines are written to standard error. What is logged: `GPU_HANDOFF_LOG`, such as `info` (where it is
    /// not set) or `debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Serve this node's members.
    Node(NodeArgs),
    /// Answer the API server about new pods: add what those need that take part.
    Webhook(gpu_handoff_webhook::Args),
    /// Hear and answer the members. The node starts this itself, with its line as standard input and output.
    #[command(hide = true)]
    Broker,
    /// Inspect descriptors for the broker. The node starts this itself, with the request socket as standard input.
    #[command(hide = true)]
    GpuWorker {
        /// The GPU that it is asked about; the driver is told so by `CUDA_VISIBLE_DEVICES`.
        #[arg(long)]
        gpu: Option<DeviceUuid>,
        /// Poll for a moment instead of sleeping where something is about to come.
        #[arg(long)]
        stays_awake: bool,
    },
    /// Print what the driver says of the GPUs, as JSON. The node starts this itself.
    #[command(hide = true)]
    GpuSurvey,
    /// Have the pod that standard input is a pidfd of go on with process numbers of its own. The node starts this itself.
    #[command(hide = true)]
    PidSeed {
        /// Which range of them.
        #[arg(long)]
        index: u32,
        /// How many there are in the pod's PID namespace, where that is known.
        #[arg(long)]
        pid_max: Option<u32>,
    },
    /// One half of the self-test of legacy handles. The node starts this itself.
    #[command(hide = true)]
    LegacySelfTest {
        /// Which half.
        #[arg(value_enum)]
        half: Half,
    },
}

/// How the node is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
    /// Where slots and the daemon's own files are.
    #[arg(long, env = "GPU_HANDOFF_RUN_DIR", default_value = "/run/gpu-handoff")]
    pub run_dir: PathBuf,
    /// Where the broker keeps what it needs after a restart; best on a tmpfs. Default: `state` in the run directory.
    #[arg(long, env = "GPU_HANDOFF_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// The members, for a laptop or bare containers: a JSON file, as README.md shows it.
    #[arg(long, env = "GPU_HANDOFF_STATIC_MEMBERS")]
    pub static_members: Option<PathBuf>,
    /// The node's name in Kubernetes: its kubelet says who the members are.
    #[arg(long, env = "GPU_HANDOFF_NODE_NAME", conflicts_with = "static_members")]
    pub node_name: Option<String>,
    /// The kubelet's root folder, as the kubelet itself calls it.
    #[arg(long, env = "GPU_HANDOFF_KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// What tells this instance from every other: its pod's UID.
    #[arg(long, env = "GPU_HANDOFF_INSTANCE")]
    pub instance: Option<String>,
    /// The policy: YAML, see `docs/policy.md`. It is read again when it changes; one that is none is refused, and the one
    /// before it stays in force. Default: what the members' file says, or else nothing beside the built-in rules.
    #[arg(long, env = "GPU_HANDOFF_POLICY")]
    pub policy: Option<PathBuf>,
    /// The kubelet's socket. Where it exists, a kubelet knows the members, and static ones are refused.
    #[arg(
        long,
        env = "GPU_HANDOFF_KUBELET_SOCKET",
        default_value = "/var/lib/kubelet/device-plugins/kubelet.sock"
    )]
    pub kubelet_socket: PathBuf,
    /// The user, and the group if it has another number (`USER:GROUP`), that the broker and the GPU workers run as. Better one
    /// that nothing else on the node runs as, no pod either, and never root. Default: 64532 where the node is started by
    /// root, else the node's own.
    #[arg(long, env = "GPU_HANDOFF_BROKER_USER")]
    pub broker_user: Option<BrokerUser>,
    /// Where the node's `/proc` is, with what the NVIDIA driver says there.
    #[arg(long, env = "GPU_HANDOFF_NVIDIA_PROC_ROOT", default_value = "/proc")]
    pub nvidia_proc_root: PathBuf,
    /// Where the node's `/dev` is, with the NVIDIA driver's devices.
    #[arg(long, env = "GPU_HANDOFF_NVIDIA_DEV_ROOT", default_value = "/dev")]
    pub nvidia_dev_root: PathBuf,
    /// How many connections may have the broker poll at the same time, for at most a millisecond each, instead of sleeping
    /// while a publication is on its way to them; with 0 the GPU workers always sleep, too. Default: a quarter of
    /// the processors, and 0 with fewer than 8 of them.
    #[arg(long, env = "GPU_HANDOFF_AWAKE", value_parser = clap::value_parser!(u32).range(..=i64::from(limits::AWAKE_MOST)))]
    pub awake: Option<u32>,
    /// How many slots there are: pods that may be members at a time. One more waits for one of them to go.
    #[arg(long, env = "GPU_HANDOFF_SLOTS", value_name = "COUNT", default_value_t = limits::MEMBERS, value_parser = slots)]
    pub slots: usize,
    /// The group, by number, whose members may ask the node how it is (`gpu-handoff status`, `gpu-handoff doctor`) at `admin.sock` in the
    /// run directory. Default: root alone may, and the user that the node runs as.
    #[arg(long, env = "GPU_HANDOFF_ADMIN_GROUP", value_name = "GID")]
    pub admin_group: Option<u32>,
    /// The container runtime.
    #[command(flatten)]
    pub nri: NriArgs,
    /// Check the configuration, print it, and end.
    #[arg(long)]
    pub check_config: bool,
}

/// How the node is a plugin of its container runtime (NRI), while the policy grants anybody what is put into containers.
#[derive(Debug, Clone, clap::Args)]
pub struct NriArgs {
    /// The container runtime's socket for plugins. Its folder is what has to be there, as the runtime makes the socket anew.
    #[arg(long, env = "GPU_HANDOFF_NRI_SOCKET", default_value = gpu_handoff_nri::names::SOCKET)]
    pub nri_socket: PathBuf,
    /// When this plugin is asked, among others: those of lower numbers come first.
    #[arg(long, env = "GPU_HANDOFF_NRI_INDEX", default_value_t = 90, value_parser = clap::value_parser!(u8).range(..=99))]
    pub nri_index: u8,
    /// What this plugin is called, and demanded by.
    #[arg(long, env = "GPU_HANDOFF_NRI_NAME", default_value = "gpu-handoff")]
    pub nri_name: String,
}

fn slots(text: &str) -> Result<usize, String> {
    let most = limits::MEMBERS;
    let wanted = || format!("wanted a number from 1 to {most}");
    text.parse().ok().filter(|count| (1..=most).contains(count)).ok_or_else(wanted)
}

/// A user, and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokerUser(pub User);

impl FromStr for BrokerUser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| {
            text.parse().map_err(|_| format!("{text:?} is no number: say USER or USER:GROUP, by numbers"))
        };
        Ok(Self(User { uid: number(uid)?, gid: number(gid)? }))
    }
}

impl Args {
    /// Does what the command line says.
    ///
    /// # Errors
    /// What kept it from being done.
    pub fn run(self) -> anyhow::Result<()> {
        let Self { mode, log_format } = self;
        match mode {
            Mode::Node(args) => {
                gpu_handoff_logs::init(log_format)?;
                let check_only = args.check_config;
                let config = Config::new(args, log_format)?;
                if check_only {
                    println!("{config}");
                    return Ok(());
                }
                if node::first::is_first() {
                    return node::first::run();
                }
                node::run(config)
            }
            Mode::Webhook(args) => {
                gpu_handoff_logs::init(log_format)?;
                Ok(gpu_handoff_webhook::run(args.into())?)
            }
            Mode::Broker => {
                gpu_handoff_logs::init(log_format)?;
                app::run()
            }
            Mode::GpuWorker { gpu, stays_awake } => {
                let requests =
                    std::io::stdin().as_fd().try_clone_to_owned().context("take the request socket")?;
                gpu::worker::run(requests, gpu, stays_awake).context("serve the broker")
            }
            Mode::GpuSurvey => {
                let driver = Driver::load().context("load the driver")?;
                let survey = Survey::take(driver).context("ask the driver")?;
                Ok(serde_json::to_writer(std::io::stdout().lock(), &survey)?)
            }
            Mode::PidSeed { index, pid_max } => node::pids::seed::run(index, pid_max),
            Mode::LegacySelfTest { half } => self_test::run_half(half),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_slot_at_least_and_no_more_than_it_can_serve() {
        let of = |arguments: &[&str]| {
            let args = Args::try_parse_from(["plugin", "node"].iter().chain(arguments));
            args.map(|args| if let Mode::Node(node) = args.mode { node.slots } else { 0 }).ok()
        };
        assert_eq!((of(&[]), of(&["--slots", "1"])), (Some(limits::MEMBERS), Some(1)));
        let most = limits::MEMBERS.to_string();
        assert_eq!(of(&["--slots", &most]), Some(limits::MEMBERS));
        for strange in ["0", "-1", "1025", "many"] {
            assert_eq!(of(&["--slots", strange]), None, "{strange}");
        }
    }

    #[test]
    fn a_user_comes_with_or_without_a_group() {
        let read = |text: &str| text.parse::<BrokerUser>().map(|u| (u.0.uid, u.0.gid)).ok();
        assert_eq!(read("1000"), Some((1_000, 1_000)));
        assert_eq!(read("1000:44"), Some((1_000, 44)));
        for strange in ["", ":", "nobody", "-1", "1:", ":1", "1:2:3"] {
            assert_eq!(read(strange), None, "{strange}");
        }
    }
}
