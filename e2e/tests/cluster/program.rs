//! Programs in pods that a scenario tells what to do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_e2e::conformance::actor::Actor;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::pipe;

use crate::plan::{APP, Gpu, Plan};
use crate::scene::{SHARED_AT, Scene};

/// How long an application may take for one command.
const COMMAND: Duration = Duration::from_secs(60);

/// The application: what the demo and the other scenarios have in their pods, as the container's first process.
pub(crate) fn agent(name: &str, gpu: Gpu) -> Plan {
    Plan::new(name, gpu, &["agent"])
}

/// The same, and at SIGTERM it ends at once: a first process would not hear of that.
pub(crate) fn agent_that_ends(name: &str, gpu: Gpu) -> Plan {
    const COMMAND: &str = "exec 3<&0; agent <&3 3<&- & trap 'kill $!; exit 0' TERM; wait";
    Plan::new(name, gpu, &["sh", "-c", COMMAND]).grace_s(30)
}

/// The same, told by pipes in the shared folder: also while nobody can be attached to.
pub(crate) fn agent_at_pipes(name: &str, gpu: Gpu) -> Plan {
    let at = format!("{SHARED_AT}/{name}");
    Plan::new(name, gpu, &["sh", "-c", &format!("exec agent <>{at}.in 1<>{at}.out")])
}

/// The same, and the first process of its container takes more and more memory once it is told to [`grow`].
pub(crate) fn agent_that_grows(name: &str, gpu: Gpu) -> Plan {
    let command = format!(
        "exec 3<&0; agent <&3 3<&- & read now <{SHARED_AT}/{name}.grow; all=$(busybox tr '\\0' a </dev/zero)"
    );
    Plan::new(name, gpu, &["sh", "-c", &command])
}

/// Tells it so, by its pipe ([`Scene::make_pipe`]).
pub(crate) async fn grow(pipe: &Path) -> anyhow::Result<()> {
    let mut reader = pipe::OpenOptions::new().open_sender(pipe).context("nobody is there to grow")?;
    Ok(reader.write_all(b"now\n").await?)
}

/// A puppet, as the first process of its container.
pub(crate) fn puppet(name: &str, gpu: Gpu) -> Plan {
    Plan::new(name, gpu, &["conformance", "puppet", "--listen", &socket(name)])
}

/// A puppet with some other process number. The container ends as the puppet does.
pub(crate) fn puppet_not_first(name: &str, gpu: Gpu) -> Plan {
    let command = format!("conformance puppet --listen {}; exit $?", socket(name));
    Plan::new(name, gpu, &["sh", "-c", &command])
}

fn socket(name: &str) -> String {
    format!("{SHARED_AT}/{name}")
}

/// An attached application.
pub(crate) struct App {
    pod: String,
    input: Box<dyn AsyncWrite + Send + Unpin>,
    output: Lines<BufReader<Box<dyn AsyncRead + Send + Unpin>>>,
    _process: Option<AttachedProcess>,
}

impl App {
    /// Tells it to do something, and waits for its answer.
    pub(crate) async fn ask(&mut self, command: &Command) -> anyhow::Result<Answer> {
        self.tell(command).await?;
        self.hear().await.with_context(|| format!("told {command:?}"))
    }

    /// Tells it to do something.
    pub(crate) async fn tell(&mut self, command: &Command) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        self.input.write_all(&line).await.with_context(|| format!("tell {} {command:?}", self.pod))
    }

    /// Its next answer.
    pub(crate) async fn hear(&mut self) -> anyhow::Result<Answer> {
        let heard = tokio::time::timeout(COMMAND, self.output.next_line()).await;
        let heard =
            heard.map_err(|_| anyhow::anyhow!("{} did not answer within {COMMAND:?}", self.pod))??;
        let heard = heard.with_context(|| format!("{} has ended", self.pod))?;
        serde_json::from_str(&heard).with_context(|| format!("{} answered {heard}", self.pod))
    }
}

impl Scene<'_> {
    /// Attaches to the application of a pod.
    pub(crate) async fn app(&self, pod: &str) -> anyhow::Result<App> {
        self.app_in(pod, APP).await
    }

    /// Attaches to that of another container.
    pub(crate) async fn app_in(&self, pod: &str, container: &str) -> anyhow::Result<App> {
        let how = AttachParams::default().container(container).stdin(true).stdout(true).stderr(false);
        let pods = self.all::<Pod>();
        let attached = tokio::time::timeout(COMMAND, pods.attach(pod, &how)).await;
        let mut process = attached.with_context(|| format!("attach to {pod}"))??;
        let input = Box::new(process.stdin().context("no standard input")?);
        let output: Box<dyn AsyncRead + Send + Unpin> =
            Box::new(process.stdout().context("no standard output")?);
        let output = BufReader::new(output).lines();
        Ok(App { pod: pod.to_owned(), input, output, _process: Some(process) })
    }

    /// Makes the pipes of a pod that is to come ([`agent_at_pipes`]), and tells its application by them, whichever container it
    /// is in: one that is started anew reads on.
    pub(crate) fn app_at_pipes(&self, pod: &str) -> anyhow::Result<App> {
        // Also for what one only reads or writes, so that neither end waits for the other, or ends with it.
        let mut both = pipe::OpenOptions::new();
        both.read_write(true);
        let input = Box::new(both.open_sender(self.make_pipe(&format!("{pod}.in"))?)?);
        let output: Box<dyn AsyncRead + Send + Unpin> =
            Box::new(both.open_receiver(self.make_pipe(&format!("{pod}.out"))?)?);
        Ok(App { pod: pod.to_owned(), input, output: BufReader::new(output).lines(), _process: None })
    }

    /// A pipe in the shared folder, for whoever they are.
    pub(crate) fn make_pipe(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.shared().join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::empty(), 0)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Ok(path)
    }

    /// Meets the puppet of a pod.
    pub(crate) fn actor(&self, pod: &str) -> anyhow::Result<Actor> {
        Actor::meet(self.shared(), pod).with_context(|| format!("meet the puppet of pod {pod}"))
    }

    /// The puppets of two pods.
    pub(crate) fn actors(&self, pods: &[String; 2]) -> anyhow::Result<[Actor; 2]> {
        Ok([self.actor(&pods[0])?, self.actor(&pods[1])?])
    }
}
