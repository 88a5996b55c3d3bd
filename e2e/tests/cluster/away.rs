//! What goes on while the API server is away, and what waits until it is back.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use k8s_openapi::api::core::v1::Pod;

use crate::ground::look_until;
use crate::members::{self, By, SOCKET};
use crate::plan::{APP, Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::pods::STARTED;
use crate::product;
use crate::program::{App, agent, agent_at_pipes};
use crate::scene::{Scene, Standard};

const GROUP: &str = "away";
const WORD: u32 = 0x000A_5EA7;

/// A pod that the kubelet knows of when the API server goes, and that it has not started.
const BOUND: &str = "bound";

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone("members_go_on_while_the_api_server_is_away", Standard::Restricted, api_server)]
}

async fn api_server(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let ground = scene.ground;
    product::install(ground).await?;
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    let mut two =
        Two { producer: scene.app_at_pipes("producer")?, consumer: scene.app_at_pipes("consumer")? };
    for pod in ["producer", "consumer"] {
        scene.start(agent_at_pipes(pod, claimed()).restricted().member(GROUP)).await?;
    }
    members::connect(scene, &mut two.producer, "producer", GROUP).await?;
    members::connect(scene, &mut two.consumer, "consumer", GROUP).await?;
    two.hand_over("before").await?;
    let daemons = product::pods(ground).await?;

    // Its volume waits for the daemon, which waits for the API server's end.
    product::signal(ground, "STOP").await?;
    let known = async {
        scene.make(bound()).await?;
        has_come_to_the_kubelet(scene, BOUND).await
    };
    let known = known.await;
    // It ends at once, as with its machine: else it would wait for those that watch.
    let stopped = ground.daemon(&["stop", "apiserver", "KILL"]).await;
    product::signal(ground, "CONT").await?;
    stopped?;
    let begin = Instant::now();
    let went_on = if known.is_ok() { Some(goes_on(scene, &mut two).await) } else { None };
    let away = begin.elapsed();
    ground.daemon(&["start", "apiserver"]).await?;
    ground.answers().await?;
    // They would come by themselves, but ask again after half a minute only.
    for daemon in ["manager", "scheduler"] {
        ground.daemon(&["stop", daemon]).await?;
        ground.daemon(&["start", daemon]).await?;
    }
    eprintln!("away: the API server was away for {:.1} s", away.as_secs_f64());
    known?;
    let went_on = went_on.context("it did not begin")?;
    let refused = went_on.context("while the API server was away")?;
    is_told_of_it(scene, &refused).await?;
    is_as_before(scene, &mut two, &daemons).await.context("with the API server again")?;
    Ok(Outcome::Done)
}

fn claimed() -> Gpu {
    Gpu::Claim("gpu".to_owned())
}

/// The kubelet asks the API server for each claim that a pod has, so this one has a GPU of the device plugin.
fn bound() -> Plan {
    agent(BOUND, Gpu::Plugin).restricted().member(GROUP).starts_anyway().asks_no_api()
}

/// Two members on one GPU.
struct Two {
    producer: App,
    consumer: App,
}

impl Two {
    /// A buffer goes from one to the other, who keeps it.
    async fn hand_over(&mut self, name: &str) -> anyhow::Result<()> {
        members::publish(&mut self.producer, name, WORD).await?;
        let acquired = members::acquire(&mut self.consumer, By::Name(name.to_owned()), name).await?;
        ensure!(matches!(acquired, Answer::Acquired { .. }), "{name}: {acquired:?}");
        members::holds(&mut self.consumer, name, WORD).await
    }
}

async fn has_come_to_the_kubelet(scene: &Scene<'_>, pod: &str) -> anyhow::Result<()> {
    let log = scene.ground.folder.join("log/kubelet.log");
    let pod = format!("{}/{pod}", scene.namespace);
    look_until(STARTED, "the kubelet knows of the pod", async || {
        let log = std::fs::read_to_string(&log)?;
        Ok(log.lines().any(|line| line.contains("SyncLoop ADD") && line.contains(&pod)).then_some(()))
    })
    .await
}

/// All that docs/kubernetes.md says of it, and that nothing more can be made.
/// Gives what was said to the consumer, and could be told to nobody else.
async fn goes_on(scene: &Scene<'_>, two: &mut Two) -> anyhow::Result<String> {
    let begin = Instant::now();
    let made = tokio::time::timeout(STARTED, scene.make(agent("late", claimed()).member(GROUP))).await?;
    ensure!(made.is_err(), "a pod was made");
    members::holds(&mut two.consumer, "before", WORD).await?;
    two.hand_over("meanwhile").await?;
    members::release(&mut two.consumer, "meanwhile").await?;
    let refused = members::is_not_there(&mut two.consumer, By::Name("nothing".to_owned())).await?;
    another_container(scene, two).await.context("the container is started anew")?;
    is_a_member(scene).await.context("a pod that was bound before")?;
    eprintln!("away: all that goes on was seen within {:.1} s", begin.elapsed().as_secs_f64());
    Ok(refused)
}

/// The producer's container ends, and another is the same member.
async fn another_container(scene: &Scene<'_>, two: &mut Two) -> anyhow::Result<()> {
    let first = scene.on_the_node("producer", APP).await?;
    let begin = Instant::now();
    scene.ground.inside(&["ctr", "-n", "k8s.io", "task", "kill", "--signal", "SIGKILL", &first.id]).await?;
    look_until(STARTED, "there is another container", async || {
        let now = scene.on_the_node("producer", APP).await;
        Ok(now.is_ok_and(|now| now != first).then_some(()))
    })
    .await?;
    members::connect(scene, &mut two.producer, "producer", GROUP).await?;
    two.hand_over("anew").await?;
    eprintln!("away: a container that ended was a member again after {:.1} s", begin.elapsed().as_secs_f64());
    members::release(&mut two.consumer, "anew").await?;
    // What it holds of the one before is its own until it lets go.
    members::release(&mut two.consumer, "before").await
}

/// It has run since the API server went, and publishes.
async fn is_a_member(scene: &Scene<'_>) -> anyhow::Result<()> {
    let container = look_until(STARTED, "its application is started", async || {
        Ok(scene.on_the_node(BOUND, APP).await.ok())
    })
    .await?;
    let memory = || "m".to_owned();
    let commands = [
        Command::Connect { socket: SOCKET.into() },
        Command::Fill { memory: memory(), bytes: members::BYTES, kind: MemoryKind::Vmm, word: WORD },
        Command::Publish { memory: memory(), name: memory() },
    ];
    let lines: Vec<String> = commands.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let run = "printf '%s\\n' \"$1\" | ctr -n k8s.io task exec --exec-id member \"$2\" agent";
    let said = scene.ground.inside(&["sh", "-c", run, "sh", &lines.join("\n"), &container.id]).await?;
    let answers: Vec<Answer> = said.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let [Answer::Connected { pod, .. }, Answer::Done { .. }, Answer::Published { .. }] = &answers[..] else {
        anyhow::bail!("{said}");
    };
    ensure!(*pod == format!("{}/{BOUND}", scene.namespace), "{pod}");
    Ok(())
}

/// What waited for the API server.
async fn is_told_of_it(scene: &Scene<'_>, refused: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    scene.runs(BOUND, STARTED).await?;
    let note = format!("the pod is a member of group {}/{GROUP} on this node", scene.namespace);
    scene.told(BOUND, "TakesPart", &note).await?;
    scene.told("consumer", "NotFound", refused).await?;
    let after = begin.elapsed().as_secs_f64();
    eprintln!("away: the events of meanwhile were there {after:.1} s after it answered again");
    Ok(())
}

/// Newcomers come, and nothing was started anew.
async fn is_as_before(scene: &Scene<'_>, two: &mut Two, daemons: &[Pod]) -> anyhow::Result<()> {
    scene.start(agent("late", claimed()).restricted().member(GROUP)).await?;
    let mut late = scene.app("late").await?;
    members::connect(scene, &mut late, "late", GROUP).await?;
    let acquired = members::acquire(&mut late, By::Name("anew".to_owned()), "l").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(&mut late, "l", WORD).await?;
    two.hand_over("after").await?;
    let now = product::pods(scene.ground).await?;
    ensure!(product::are_the_same(daemons, &now), "the daemon was started anew: {daemons:?} {now:?}");
    product::serves(scene.ground).await?;
    scene.ground.daemon(&["alive"]).await?;
    // Others find the cluster's own controllers at work.
    let other = Scene::open(scene.ground, "afterwards", Standard::Restricted).await?;
    let prepared = other.prepare().await;
    other.close().await?;
    prepared
}
