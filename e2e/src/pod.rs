//! A pod: the real sidecar and applications, in namespaces like a pod's where this user may make them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use gpu_handoff_sys::isolate::{self, Isolation, Privilege};
use rustix::process::PidfdFlags;

use crate::app::App;
use crate::node::{Node, PATIENCE, pid, raw_pid};
use crate::wait;

/// Files in a pod's folder.
const SOCKET: &str = "app.sock";
const LOG: &str = "sidecar.log";

/// How pods are set apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walls {
    /// Namespaces of their own.
    Namespaces(Privilege),
    /// None: ordinary processes.
    None,
}

impl Walls {
    /// What this user may make, and if nothing, why.
    #[must_use]
    pub fn available() -> (Self, String) {
        let own = "own IPC, network and UTS namespaces a pod; own PID and mount namespaces and /dev/shm a container";
        match isolate::available() {
            Ok(Privilege::Root) => (Self::Namespaces(Privilege::Root), format!("{own} (made as root)")),
            Ok(Privilege::UserNamespace) => {
                (Self::Namespaces(Privilege::UserNamespace), format!("{own} (made in user namespaces)"))
            }
            Err(e) => (Self::None, format!("ordinary processes: this user cannot make namespaces ({e})")),
        }
    }
}

/// A running pod.
#[derive(Debug)]
pub struct Pod {
    /// Its name.
    pub name: &'static str,
    walls: Walls,
    sidecar: Child,
    socket: PathBuf,
    device: Option<PathBuf>,
}

impl Pod {
    /// Starts a pod's sidecar and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start(node: &Node, name: &'static str, walls: Walls) -> anyhow::Result<Self> {
        let home = node.dir().join("pods").join(name);
        std::fs::create_dir_all(&home)?;
        let device = node.gpu.device_folder().map(|_| home.join("device"));
        if let Some(device) = &device {
            std::fs::create_dir_all(device)?;
        }
        let socket = home.join(SOCKET);
        std::fs::File::create(home.join(LOG))?;
        let isolation = match walls {
            Walls::Namespaces(privilege) => Some(Isolation::new_pod(privilege)),
            Walls::None => None,
        };
        let sidecar = spawn(node, name, &home, isolation)?;
        let mut pod = Self { name, walls, sidecar, socket, device };
        pod.wait_until_ready(node)?;
        Ok(pod)
    }

    /// Starts the sidecar again after it was killed, in the namespaces of its pod, which the process `member` is in. Waits
    /// until it is ready. Its log goes on.
    ///
    /// # Errors
    /// When it still runs, or does not come up.
    pub fn revive(&mut self, node: &Node, member: u32) -> anyhow::Result<()> {
        wait::until(PATIENCE, "the killed sidecar is gone", || Ok(self.sidecar.try_wait()?))?;
        let isolation = match self.walls {
            Walls::Namespaces(privilege) => {
                let member = rustix::process::pidfd_open(raw_pid(member)?, PidfdFlags::empty())?;
                Some(Isolation::in_pod_of(privilege, member))
            }
            Walls::None => None,
        };
        let home = self.socket.parent().context("the pod's folder")?;
        self.sidecar = spawn(node, self.name, home, isolation)?;
        self.wait_until_ready(node)
    }

    fn wait_until_ready(&mut self, node: &Node) -> anyhow::Result<()> {
        let program = node.folder.binary("gpu-handoff-sidecar")?;
        wait::until(PATIENCE, &format!("pod {} is ready", self.name), || {
            if let Some(status) = self.sidecar.try_wait()? {
                anyhow::bail!("the sidecar ended with {status}");
            }
            let mut probe = Command::new(&program);
            probe.arg("ready").arg("--socket").arg(&self.socket).stdout(Stdio::null()).stderr(Stdio::null());
            Ok(probe.status()?.success().then_some(()))
        })
        .with_context(|| format!("the plugin's log:\n{}", node.log()))
    }

    /// Starts an application in the pod.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn app(&self, node: &Node) -> anyhow::Result<App> {
        let mut command = Command::new(node.folder.binary("agent")?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        isolate::die_with_parent(&mut command);
        let isolated = match self.walls {
            Walls::None => {
                node.gpu.give_to(&mut command, None);
                false
            }
            Walls::Namespaces(privilege) => {
                node.gpu.give_to(&mut command, self.device.as_deref());
                self.isolation(node, privilege)?.apply(&mut command);
                true
            }
        };
        App::new(command.spawn().context("start an application")?, isolated)
    }

    /// An application in the pod that has connected.
    ///
    /// # Errors
    /// When it cannot be started, or is not served.
    pub fn connected(&self, node: &Node) -> anyhow::Result<App> {
        let mut app = self.app(node)?;
        app.connect(&self.socket)?;
        Ok(app)
    }

    /// A container of this pod; the simulated device is mounted into it as a device node would be.
    fn isolation(&self, node: &Node, privilege: Privilege) -> anyhow::Result<Isolation> {
        let member = raw_pid(isolate::isolated_pid(self.sidecar.id())?)?;
        let isolation =
            Isolation::in_pod_of(privilege, rustix::process::pidfd_open(member, PidfdFlags::empty())?);
        match (node.gpu.device_folder(), &self.device) {
            (Some(source), Some(target)) => Ok(isolation.bind(source, target)?),
            _ => Ok(isolation),
        }
    }

    /// The pod's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The sidecar's process number on the node.
    ///
    /// # Errors
    /// When it is gone.
    pub fn sidecar_pid(&self) -> io::Result<u32> {
        match self.walls {
            Walls::None => Ok(self.sidecar.id()),
            Walls::Namespaces(_) => isolate::isolated_pid(self.sidecar.id()),
        }
    }

    /// Stops the sidecar as the kubelet would, and waits for its end.
    ///
    /// # Errors
    /// When it does not end well.
    pub fn stop(mut self) -> anyhow::Result<()> {
        rustix::process::kill_process(raw_pid(self.sidecar_pid()?)?, rustix::process::Signal::TERM)?;
        let status = wait::until(PATIENCE, "the sidecar ends", || Ok(self.sidecar.try_wait()?))?;
        anyhow::ensure!(status.success(), "the sidecar of pod {} ended with {status}", self.name);
        Ok(())
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Ended already where the scenario went well; the isolated process ends with its keeper.
        if let Ok(pid) = pid(&self.sidecar) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.sidecar.wait();
    }
}

/// Starts a sidecar; what it logs is added to its log.
fn spawn(node: &Node, name: &str, home: &Path, isolation: Option<Isolation>) -> anyhow::Result<Child> {
    let mut command = Command::new(node.folder.binary("gpu-handoff-sidecar")?);
    command.arg("serve").arg("--slot").arg(node.slot(name).join("slot.sock"));
    command.arg("--listen").arg(home.join(SOCKET));
    let log = std::fs::File::options().append(true).open(home.join(LOG))?;
    command.stdin(Stdio::null()).stderr(log);
    isolate::die_with_parent(&mut command);
    if let Some(isolation) = isolation {
        isolation.apply(&mut command);
    }
    command.spawn().context("start the sidecar")
}
