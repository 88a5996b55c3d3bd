//! A node: the real plugin with static members, in a run directory of its own.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_sys::isolate::die_with_parent;

use crate::folder::Folder;
use crate::gpu::Gpu;
use crate::scratch::Scratch;
use crate::wait;

/// How long a process of ours may take to start or to end.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Files in the run directory.
const MEMBERS: &str = "members.json";
const LOG: &str = "plugin.log";

/// A member of the node.
#[derive(Debug, Clone)]
pub struct Member {
    /// Pod name, used as slot as well.
    pub pod: &'static str,
    /// Group name.
    pub group: &'static str,
}

/// A node that runs.
#[derive(Debug)]
pub struct Node {
    /// The binaries.
    pub folder: Folder,
    /// Its GPU.
    pub gpu: Arc<Gpu>,
    plugin: Child,
    members: Vec<Member>,
    run_dir: Scratch,
    log: PathBuf,
}

impl Node {
    /// Starts the plugin for these members, all of namespace `demo`, with legacy handles allowed within it.
    ///
    /// # Errors
    /// When it does not come up; its log is part of the error.
    pub fn start(folder: &Folder, gpu: Arc<Gpu>, members: &[Member]) -> anyhow::Result<Self> {
        Self::start_with(folder, gpu, members, &serde_json::json!({ "legacy": "within-namespace" }))
    }

    /// Starts the plugin with this policy.
    ///
    /// # Errors
    /// When it does not come up; its log is part of the error.
    pub fn start_with(
        folder: &Folder,
        gpu: Arc<Gpu>,
        members: &[Member],
        policy: &serde_json::Value,
    ) -> anyhow::Result<Self> {
        let list: Vec<_> = members
            .iter()
            .map(
                |m| serde_json::json!({ "slot": m.pod, "namespace": "demo", "pod": m.pod, "group": m.group }),
            )
            .collect();
        Self::start_from(folder, gpu, members, &serde_json::json!({ "policy": policy, "members": list }))
    }

    /// Starts the plugin with these members as this members file has them.
    ///
    /// # Errors
    /// When it does not come up; its log is part of the error.
    pub fn start_from(
        folder: &Folder,
        gpu: Arc<Gpu>,
        members: &[Member],
        file: &serde_json::Value,
    ) -> anyhow::Result<Self> {
        let run_dir = Scratch::make("gpu-handoff-node-", None).context("make a run directory")?;
        let log = run_dir.path().join(LOG);
        std::fs::write(run_dir.path().join(MEMBERS), file.to_string())?;
        std::fs::File::create(&log)?;
        let plugin = spawn(folder, &gpu, run_dir.path())?;
        let members = members.to_vec();
        let mut node = Self { folder: folder.clone(), gpu, plugin, members, run_dir, log };
        node.wait_until_it_serves(0).with_context(|| format!("the plugin's log:\n{}", node.log()))?;
        Ok(node)
    }

    /// Stops the plugin as an administrator would and starts it again, as an upgrade does.
    ///
    /// # Errors
    /// When it does not end well, or does not come up again.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.terminate()?;
        self.revive()
    }

    /// Starts the plugin again after it was killed, in the same run directory. Its log goes on.
    ///
    /// # Errors
    /// When it still runs, or does not come up.
    pub fn revive(&mut self) -> anyhow::Result<()> {
        wait::until(PATIENCE, "the killed plugin is gone", || Ok(self.plugin.try_wait()?))?;
        let brokers = self.brokers_that_served();
        self.plugin = spawn(&self.folder, &self.gpu, self.run_dir.path())?;
        self.wait_until_it_serves(brokers).with_context(|| format!("the plugin's log:\n{}", self.log()))
    }

    /// Waits for the slots' sockets, and for one more broker than there were to serve them.
    fn wait_until_it_serves(&mut self, brokers: usize) -> anyhow::Result<()> {
        let sockets: Vec<_> = self.members.iter().map(|m| self.slot(m.pod).join("slot.sock")).collect();
        for socket in sockets {
            let what = format!("the plugin listens on {}", socket.display());
            wait::until(PATIENCE, &what, || {
                if let Some(status) = self.plugin.try_wait()? {
                    anyhow::bail!("the plugin ended with {status}");
                }
                Ok(SeqPacket::connect(&socket).ok())
            })?;
        }
        let one_more = || Ok((self.brokers_that_served() > brokers).then_some(()));
        wait::until(PATIENCE, "the broker serves", one_more)
    }

    /// How many brokers the plugin has had.
    fn brokers_that_served(&self) -> usize {
        self.log().matches("the broker serves").count()
    }

    /// The folder of a slot, as it is mounted into the member's sidecar.
    #[must_use]
    pub fn slot(&self, name: &str) -> PathBuf {
        self.run_dir.path().join("slots").join(name)
    }

    /// A place for files of the scenario.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// What the plugin has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the plugin has logged a line that holds `text`, and gives it back.
    ///
    /// # Errors
    /// When it does not come.
    pub fn wait_for_log(&self, text: &str) -> anyhow::Result<String> {
        let found = wait::until(PATIENCE, &format!("the plugin logs {text:?}"), || {
            let log = std::io::BufReader::new(std::fs::File::open(&self.log)?);
            let mut lines = log.lines().map_while(Result::ok);
            Ok(lines.find(|line| line.contains(text)))
        });
        found.with_context(|| format!("the plugin's log:\n{}", self.log()))
    }

    /// The number of the plugin's process that people start.
    #[must_use]
    pub fn plugin_pid(&self) -> u32 {
        self.plugin.id()
    }

    /// The number of the plugin's process that hears the applications: the last one that was started.
    ///
    /// # Errors
    /// When the log names none.
    pub fn broker_pid(&self) -> anyhow::Result<u32> {
        let log = self.log();
        let number =
            log.lines().rev().find_map(|l| l.split_once("broker started pid=")?.1.trim().parse().ok());
        number.context("the plugin's log names no broker")
    }

    /// Descriptors that the broker has open.
    ///
    /// # Errors
    /// When the broker is gone.
    pub fn broker_descriptors(&self) -> anyhow::Result<usize> {
        let folder = format!("/proc/{}/fd", self.broker_pid()?);
        Ok(std::fs::read_dir(&folder).with_context(|| format!("list {folder}"))?.count())
    }

    /// Stops the plugin as an administrator would, and waits for its end.
    ///
    /// # Errors
    /// When it does not end well.
    pub fn stop(self) -> anyhow::Result<()> {
        self.stop_and_tell().map(drop)
    }

    /// Like [`stop`](Self::stop), and gives back the whole log.
    ///
    /// # Errors
    /// When it does not end well.
    pub fn stop_and_tell(mut self) -> anyhow::Result<String> {
        self.terminate()?;
        Ok(self.log())
    }

    fn terminate(&mut self) -> anyhow::Result<()> {
        rustix::process::kill_process(pid(&self.plugin)?, rustix::process::Signal::TERM)?;
        let status = wait::until(PATIENCE, "the plugin ends", || Ok(self.plugin.try_wait()?))?;
        anyhow::ensure!(status.success(), "the plugin ended with {status}; its log:\n{}", self.log());
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Ended already where the scenario went well.
        let _ = self.plugin.kill();
        let _ = self.plugin.wait();
    }
}

/// Starts the plugin; what it logs is added to its log.
fn spawn(folder: &Folder, gpu: &Gpu, run_dir: &Path) -> anyhow::Result<Child> {
    let mut command = Command::new(folder.binary("gpu-handoff-plugin")?);
    command.arg("node").arg("--run-dir").arg(run_dir).arg("--static-members").arg(run_dir.join(MEMBERS));
    command.arg("--kubelet-socket").arg(run_dir.join("no-kubelet.sock"));
    gpu.give_to(&mut command, None);
    if let Some(machine) = gpu.device_folder() {
        command.arg("--nvidia-proc-root").arg(machine.join("proc"));
        command.arg("--nvidia-dev-root").arg(machine.join("dev"));
    }
    die_with_parent(&mut command);
    let log = std::fs::File::options().append(true).open(run_dir.join(LOG))?;
    command.stdin(Stdio::null()).stderr(log).spawn().context("start the plugin")
}

/// A child's process number.
pub(crate) fn pid(child: &Child) -> anyhow::Result<rustix::process::Pid> {
    raw_pid(child.id())
}

/// `kill -9`, without waiting for the end.
///
/// # Errors
/// When there is no such process, or it is process 1.
pub fn kill(pid: u32) -> anyhow::Result<()> {
    let process = raw_pid(pid)?;
    anyhow::ensure!(!process.is_init(), "never process 1");
    rustix::process::kill_process(process, rustix::process::Signal::KILL)
        .with_context(|| format!("kill -9 process {pid}"))
}

/// A process number as the kernel's calls take it.
pub(crate) fn raw_pid(number: u32) -> anyhow::Result<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(number)?).context("a process number above 0")
}
