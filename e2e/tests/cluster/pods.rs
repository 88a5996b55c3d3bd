//! Pods: started, waited for, looked into.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::Api;
use kube::api::{AttachParams, ListParams, PostParams};
use tokio::io::AsyncReadExt as _;

use crate::ground::look_until;
use crate::plan::{APP, Gpu, Plan};
use crate::scene::{Scene, await_in};

/// How long a pod may take until its containers run. The node may be busy with others.
pub(crate) const STARTED: Duration = Duration::from_secs(60);

/// How long a command in a container may take.
const COMMAND: Duration = Duration::from_secs(30);

/// The most GPUs that a node of ours has.
const MOST_GPUS: usize = 8;

/// Why a container waits, where that does not pass.
const HOPELESS: [&str; 6] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RunContainerError",
];

/// A container that runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OnNode {
    pub(crate) id: String,
    pub(crate) pid: String,
}

/// How a pod stands that is to run.
enum Stand {
    Coming,
    Up,
    /// It will not run, and why.
    Lost(String),
}

impl Scene<'_> {
    /// Makes a pod.
    pub(crate) async fn make(&self, plan: Plan) -> anyhow::Result<()> {
        let name = plan.name.clone();
        let pod = plan.pod_in(&self.namespace)?;
        let made = self.all::<Pod>().create(&PostParams::default(), &pod).await;
        made.map(drop).with_context(|| format!("make pod {name}"))
    }

    /// Makes a pod, and waits until all its containers run.
    pub(crate) async fn start(&self, plan: Plan) -> anyhow::Result<()> {
        let name = plan.name.clone();
        self.make(plan).await?;
        self.runs(&name, STARTED).await
    }

    /// Waits until all containers of a pod run.
    pub(crate) async fn runs(&self, name: &str, time: Duration) -> anyhow::Result<()> {
        let decided = |pod: Option<&Pod>| pod.is_some_and(|pod| !matches!(stand(pod), Stand::Coming));
        let pod = await_in(&self.all(), name, "the pod runs", time, decided).await?.context("no pod")?;
        match stand(&pod) {
            Stand::Up => Ok(()),
            Stand::Coming => anyhow::bail!("pod {name} neither runs nor fails"),
            Stand::Lost(why) => anyhow::bail!("pod {name} does not run: {why}"),
        }
    }

    /// A pod's UID, and its application's container.
    pub(crate) async fn incarnation(&self, name: &str) -> anyhow::Result<(String, String)> {
        let pod = self.all::<Pod>().get(name).await?;
        incarnation(&pod).with_context(|| format!("pod {name} has no container"))
    }

    /// Waits until the same pod has another container that runs.
    pub(crate) async fn has_started_again(
        &self,
        name: &str,
        uid: &str,
        container: &str,
        time: Duration,
    ) -> anyhow::Result<()> {
        let decided = |pod: Option<&Pod>| {
            pod.is_some_and(|pod| match stand(pod) {
                Stand::Coming => false,
                Stand::Up => incarnation(pod).is_some_and(|(_, now)| now != container),
                Stand::Lost(_) => pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Failed")),
            })
        };
        let pod =
            await_in(&self.all(), name, "the pod runs again", time, decided).await?.context("no pod")?;
        ensure!(pod.metadata.uid.as_deref() == Some(uid), "pod {name} is another one");
        match stand(&pod) {
            Stand::Lost(why) => anyhow::bail!("pod {name} does not run again: {why}"),
            Stand::Up | Stand::Coming => Ok(()),
        }
    }

    /// Why the container before an application's ended.
    pub(crate) async fn last_end(&self, name: &str) -> anyhow::Result<String> {
        let statuses = self.all::<Pod>().get(name).await?.status.and_then(|status| status.container_statuses);
        let app = statuses.into_iter().flatten().find(|container| container.name == APP);
        let ended = app.and_then(|app| app.last_state?.terminated).context("no container has ended")?;
        Ok(ended.reason.unwrap_or_default())
    }

    /// Waits until a warning about a pod is given for this reason, and gives its message.
    pub(crate) async fn warning(&self, pod: &str, reason: &str) -> anyhow::Result<String> {
        let about = ListParams::default().fields(&format!("involvedObject.name={pod},reason={reason}"));
        look_until(STARTED, &format!("{reason} of {pod} is told"), async || {
            let events = self.all::<Event>().list(&about).await?;
            Ok(events.items.into_iter().find_map(|event| event.message))
        })
        .await
    }

    /// Waits until the product tells this of a pod, in an event.
    pub(crate) async fn told(&self, pod: &str, reason: &str, note: &str) -> anyhow::Result<()> {
        let wanted = (reason.to_owned(), note.to_owned());
        look_until(STARTED, &format!("{reason} of {pod} is told as {note:?}"), async || {
            Ok(self.notes(pod).await?.contains(&wanted).then_some(()))
        })
        .await
    }

    /// What the product tells of a pod for this reason, once it does.
    pub(crate) async fn note(&self, pod: &str, reasons: &[&str]) -> anyhow::Result<String> {
        look_until(STARTED, &format!("one of {reasons:?} of {pod} is told"), async || {
            Ok(self
                .notes(pod)
                .await?
                .into_iter()
                .find_map(|(reason, note)| reasons.contains(&reason.as_str()).then_some(note)))
        })
        .await
    }

    /// All that the product tells of a pod: reasons and notes.
    pub(crate) async fn notes(&self, pod: &str) -> anyhow::Result<Vec<(String, String)>> {
        let about = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        let events = self.all::<Event>().list(&about).await?.items.into_iter();
        let by_us = |event: &Event| event.reporting_component.as_deref() == Some("gpu-handoff.io/plugin");
        Ok(events.filter(by_us).filter_map(|event| Some((event.reason?, event.message?))).collect())
    }

    /// Whether an application of a pod has been started.
    pub(crate) async fn has_begun(&self, name: &str) -> anyhow::Result<bool> {
        let status = self.all::<Pod>().get(name).await?.status.unwrap_or_default();
        let statuses = status.container_statuses.unwrap_or_default();
        Ok(statuses.iter().any(|container| container.container_id.is_some()))
    }

    /// Runs a command in a pod's first container, and gives what it writes.
    pub(crate) async fn exec(&self, pod: &str, command: &[&str]) -> anyhow::Result<String> {
        self.exec_in(pod, APP, command).await
    }

    /// Runs a command in a container, and gives what it writes; an error where it does not end well.
    pub(crate) async fn exec_in(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> anyhow::Result<String> {
        let ran = tokio::time::timeout(COMMAND, run(self.all(), pod, container, command)).await;
        let ran = ran.map_err(|_| anyhow::anyhow!("it took longer than {COMMAND:?}"));
        ran.and_then(|ran| ran).with_context(|| format!("run {command:?} in {pod}, {container}"))
    }

    /// A container of a pod that runs, by the node's own word: its number, and that of its first process there.
    pub(crate) async fn on_the_node(&self, pod: &str, container: &str) -> anyhow::Result<OnNode> {
        let of =
            [("pod.namespace", self.namespace.as_str()), ("pod.name", pod), ("container.name", container)];
        let filter = of.map(|(what, is)| format!(r#"labels."io.kubernetes.{what}"=={is}"#)).join(",");
        let ctr = async |more: &[&str]| self.ground.inside(&[&["ctr", "-n", "k8s.io"], more].concat()).await;
        let (ours, tasks) = (ctr(&["container", "ls", "-q", &filter]).await?, ctr(&["task", "ls"]).await?);
        let running = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [id, pid, "RUNNING"] if ours.lines().any(|one| one == id) => {
                Some((id.to_owned(), pid.to_owned()))
            }
            _ => None,
        };
        let (id, pid) =
            tasks.lines().find_map(running).with_context(|| format!("{container} of {pod} does not run"))?;
        Ok(OnNode { id, pid })
    }

    /// The GPUs that the device plugin gave a pod.
    pub(crate) async fn visible(&self, pod: &str) -> anyhow::Result<String> {
        let said = self.exec(pod, &["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"]).await?;
        let gpus = said.trim();
        anyhow::ensure!(!gpus.is_empty(), "pod {pod} has no NVIDIA_VISIBLE_DEVICES");
        Ok(gpus.to_owned())
    }

    /// Two pods of these that have the same GPU. Which one a pod gets the kubelet chooses, and of more pods than there are
    /// GPUs two have the same one.
    pub(crate) async fn two_on_one_gpu(&self, plan: impl Fn(&str) -> Plan) -> anyhow::Result<[String; 2]> {
        let mut seen = HashMap::new();
        for number in 0..=MOST_GPUS {
            let name = format!("app-{number}");
            // Members that would be held back, because they have another GPU than those before.
            self.start(plan(&name).starts_anyway()).await?;
            if let Some(other) = seen.insert(self.visible(&name).await?, name.clone()) {
                return Ok([other, name]);
            }
        }
        anyhow::bail!("more than {MOST_GPUS} GPUs: {seen:?}")
    }

    /// Two pods that share a claim of one GPU.
    pub(crate) async fn two_with_one_claim(
        &self,
        plan: impl Fn(&str, Gpu) -> Plan,
    ) -> anyhow::Result<[String; 2]> {
        self.reserve(1).await?;
        self.claim("gpu", 1).await?;
        for name in ["first", "second"] {
            self.start(plan(name, Gpu::Claim("gpu".to_owned()))).await?;
        }
        Ok(["first".to_owned(), "second".to_owned()])
    }
}

fn incarnation(pod: &Pod) -> Option<(String, String)> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let app = containers.iter().find(|one| one.name == APP)?;
    Some((pod.metadata.uid.clone()?, app.container_id.clone()?))
}

fn stand(pod: &Pod) -> Stand {
    let Some(status) = &pod.status else { return Stand::Coming };
    if let Some(phase @ ("Failed" | "Succeeded")) = status.phase.as_deref() {
        let words = [status.reason.as_deref(), status.message.as_deref()];
        return Stand::Lost(format!(
            "{phase} {}",
            words.into_iter().flatten().collect::<Vec<_>>().join(": ")
        ));
    }
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    if let Some(why) = containers.iter().find_map(lost) {
        return Stand::Lost(why);
    }
    let wanted = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let running =
        containers.iter().filter(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()));
    if running.count() == wanted { Stand::Up } else { Stand::Coming }
}

fn lost(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(ended) = &state.terminated {
        return Some(format!("container {} ended with {}", container.name, ended.exit_code));
    }
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| HOPELESS.contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(format!("container {}: {reason}: {message}", container.name))
}

async fn run(pods: Api<Pod>, pod: &str, container: &str, command: &[&str]) -> anyhow::Result<String> {
    let how = AttachParams::default().container(container).stdout(true).stderr(true);
    let mut process = pods.exec(pod, command.to_vec(), &how).await?;
    let (mut out, mut err) = (String::new(), String::new());
    let mut output = process.stdout().context("no standard output")?;
    let mut errors = process.stderr().context("no standard error")?;
    let ended = process.take_status().context("no status")?;
    tokio::try_join!(output.read_to_string(&mut out), errors.read_to_string(&mut err))?;
    let status = ended.await.context("the command's end is not told")?;
    let message = status.message.unwrap_or_default();
    anyhow::ensure!(status.status.as_deref() == Some("Success"), "{message}: {out}{err}");
    Ok(out)
}
