//! Programs in pods that a scenario tells what to do.

use std::time::Duration;

use anyhow::Context as _;
use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_e2e::conformance::actor::Actor;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, ReadHalf, SimplexStream, WriteHalf,
};

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
    input: WriteHalf<SimplexStream>,
    output: Lines<BufReader<ReadHalf<SimplexStream>>>,
    _process: AttachedProcess,
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
        let input = process.stdin().context("no standard input")?;
        let output = BufReader::new(process.stdout().context("no standard output")?).lines();
        Ok(App { pod: pod.to_owned(), input, output, _process: process })
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
