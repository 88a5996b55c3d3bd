//! Who keeps what is over is killed or evicted, as the policy says; and a buffer that outlives its process does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::wait::conditions;
use serde_json::{Value, json};

use crate::ground::look_until;
use crate::members::{self, By};
use crate::plan::{APP, Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product;
use crate::program::{App, agent};
use crate::scene::{Scene, Standard, await_in};

const GROUP: &str = "orphans";
/// How long who keeps what is over may keep it, and how long its end may take then.
const DEADLINE: Duration = Duration::from_secs(1);
const ENDED: Duration = Duration::from_secs(60);

/// How a process ends that SIGKILL ended.
const KILLED: i32 = 128 + 9;
const WORD: u32 = 0x0DD_0A11;

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone(
        "orphans_are_evicted_or_killed_as_the_policy_says",
        Standard::Restricted,
        as_the_policy_says,
    )]
}

async fn as_the_policy_says(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    product::go_by(scene.ground, &policy(scene, "kill")).await?;
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    for pod in ["producer", "holder", "bystander"] {
        scene.start(plan(pod)).await?;
    }
    let mut producer = connected(scene, "producer").await?;
    let mut bystander = connected(scene, "bystander").await?;

    is_killed(scene, &mut producer, "holder", &mut bystander).await.context("kill")?;
    let lasting = publish_lasting(&mut producer, "lasting").await?;
    is_killed(scene, &mut bystander_of(scene).await?, "producer", &mut bystander)
        .await
        .context("kill the producer")?;
    drop(producer);
    outlives_its_process(scene, &lasting, &mut bystander).await.context("what outlives its process")?;

    product::go_by(scene.ground, &policy(scene, "evict")).await?;
    let mut producer = connected(scene, "producer").await?;
    is_evicted(scene, &mut producer, "holder").await.context("evict")?;
    ends_with_its_pod(scene, &mut bystander).await.context("a pod's buffers end with it")?;
    Ok(Outcome::Done)
}

fn policy(scene: &Scene<'_>, orphans: &str) -> Value {
    let terms = json!({
        "orphans": orphans, "retire-deadline": format!("{}s", DEADLINE.as_secs()), "pod-lifetime-bytes": "64Mi",
    });
    json!({ "version": "gpu-handoff.io/v1", "namespaces": { &scene.namespace: terms } })
}

fn plan(pod: &str) -> Plan {
    agent(pod, Gpu::Claim("gpu".to_owned())).restricted().member(GROUP)
}

async fn connected(scene: &Scene<'_>, pod: &str) -> anyhow::Result<App> {
    let mut app = scene.app(pod).await?;
    members::connect(scene, &mut app, pod, GROUP).await?;
    Ok(app)
}

/// Another publisher, in a pod of its own.
async fn bystander_of(scene: &Scene<'_>) -> anyhow::Result<App> {
    scene.start(plan("second")).await?;
    connected(scene, "second").await
}

/// The process of a pod that keeps what its publisher revokes is killed, and nobody else.
async fn is_killed(scene: &Scene<'_>, publisher: &mut App, pod: &str, other: &mut App) -> anyhow::Result<()> {
    let mut holder = connected(scene, pod).await?;
    let name = format!("kept-by-{pod}");
    members::publish(publisher, &name, WORD).await?;
    for (app, lease) in [(&mut holder, "kept"), (&mut *other, "let-go")] {
        let acquired = members::acquire(app, By::Name(name.clone()), lease).await?;
        ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    }
    let begin = Instant::now();
    revoke(publisher, &name).await?;
    members::release(other, "let-go").await?;
    let restarts = |pod: &Pod| container(pod).map_or(0, |c| c.restart_count);
    let was_killed = move |pod: Option<&Pod>| {
        pod.is_some_and(|pod| restarts(pod) > 0 && last_end(pod) == Some(KILLED) && is_running(pod))
    };
    await_in(&scene.all::<Pod>(), pod, "its process was killed and it runs again", ENDED, was_killed).await?;
    ensure!(begin.elapsed() >= DEADLINE, "it was killed after {:?}", begin.elapsed());
    eprintln!(
        "orphans: {pod} was killed and ran again {:.1} s after the revoke",
        begin.elapsed().as_secs_f64()
    );
    // The sidecar of the same pod, and who let go, live on.
    let sidecars = scene.all::<Pod>().get(pod).await?.status.and_then(|s| s.init_container_statuses);
    ensure!(sidecars.iter().flatten().all(|c| c.restart_count == 0), "{sidecars:?}");
    let state = other.ask(&Command::LeaseState { lease: "let-go".to_owned() }).await;
    ensure!(state.is_ok(), "who let go has gone too: {state:?}");
    // Their owners read of it.
    let said = scene.note(pod, &["ProcessKilled"]).await?;
    ensure!(said.contains("`orphans: kill`"), "{said}");
    let said = scene.note(pod, &["BuffersOrphaned"]).await?;
    ensure!(said.contains("leases are left"), "{said}");
    Ok(())
}

async fn outlives_its_process(scene: &Scene<'_>, lasting: &str, other: &mut App) -> anyhow::Result<()> {
    let acquired = members::acquire(other, By::Id(lasting.to_owned()), "lasting").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(other, "lasting", WORD).await?;
    // The next process of the pod finds it by its name, and takes its place.
    let mut second = connected(scene, "producer").await?;
    let found = members::acquire(&mut second, By::Name("lasting".to_owned()), "own").await?;
    ensure!(matches!(&found, Answer::Acquired { id, .. } if id == lasting), "{found:?}");
    members::holds(&mut second, "own", WORD).await?;
    members::release(&mut second, "own").await?;
    let next = publish_lasting(&mut second, "lasting").await?;
    let acquired = members::acquire(other, By::Name("lasting".to_owned()), "next").await?;
    ensure!(matches!(&acquired, Answer::Acquired { id, .. } if *id == next), "{acquired:?}");
    members::release(other, "lasting").await
}

/// A pod that keeps what its publisher revokes is evicted, but not against a budget, which is said.
async fn is_evicted(scene: &Scene<'_>, producer: &mut App, pod: &str) -> anyhow::Result<()> {
    let mut holder = connected(scene, pod).await?;
    let there = scene.all::<Pod>().get(pod).await?;
    let uid = there.metadata.uid.clone().context("a pod has a UID")?;
    protect(scene, there.metadata.labels.context("a member has its group's label")?).await?;
    members::publish(producer, "kept", WORD).await?;
    let acquired = members::acquire(&mut holder, By::Name("kept".to_owned()), "kept").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    revoke(producer, "kept").await?;
    look_until(ENDED, "it is said that it may not be evicted now", async || {
        let said = product::count_in_log(scene.ground, "disruption budget").await?;
        Ok((said > 0).then_some(()))
    })
    .await?;
    let there = scene.all::<Pod>().get(pod).await?;
    ensure!(there.metadata.deletion_timestamp.is_none(), "it was evicted against its budget");
    scene.all::<PodDisruptionBudget>().delete(BUDGET, &DeleteParams::default()).await?;
    let begin = Instant::now();
    await_in(&scene.all::<Pod>(), pod, "it is evicted", ENDED, conditions::is_deleted(&uid)).await?;
    eprintln!("orphans: {pod} was gone {:.1} s after its budget was", begin.elapsed().as_secs_f64());
    let evicted = product::count_in_log(scene.ground, "evicted: it leases").await?;
    ensure!(evicted == 1, "{evicted} evictions were logged");
    let said = scene.note(pod, &["PodEvicted"]).await?;
    ensure!(said.contains("`orphans: evict`"), "{said}");
    scene.note("producer", &["BuffersOrphaned"]).await?;
    Ok(())
}

const BUDGET: &str = "all-of-them";

async fn protect(scene: &Scene<'_>, labels: BTreeMap<String, String>) -> anyhow::Result<()> {
    let selector = LabelSelector { match_labels: Some(labels), match_expressions: None };
    let budget = PodDisruptionBudget {
        metadata: ObjectMeta { name: Some(BUDGET.to_owned()), ..ObjectMeta::default() },
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(100)),
            selector: Some(selector),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    };
    scene.all::<PodDisruptionBudget>().create(&PostParams::default(), &budget).await?;
    Ok(())
}

async fn ends_with_its_pod(scene: &Scene<'_>, other: &mut App) -> anyhow::Result<()> {
    members::release(other, "next").await?;
    let pods = scene.all::<Pod>();
    let deleted = pods.delete("producer", &DeleteParams::default()).await?.left();
    let uid = deleted.and_then(|pod| pod.metadata.uid).context("a pod has a UID")?;
    await_in(&pods, "producer", "it is gone", ENDED, conditions::is_deleted(&uid)).await?;
    members::is_not_there(other, By::Name("lasting".to_owned())).await.map(drop)
}

async fn publish_lasting(app: &mut App, name: &str) -> anyhow::Result<String> {
    let memory = name.to_owned();
    let fill =
        Command::Fill { memory: memory.clone(), bytes: members::BYTES, kind: MemoryKind::Vmm, word: WORD };
    let filled = app.ask(&fill).await?;
    ensure!(matches!(filled, Answer::Done { .. }), "fill: {filled:?}");
    match app.ask(&Command::PublishLasting { memory, name: name.to_owned() }).await? {
        Answer::Published { id, .. } => Ok(id),
        other => bail!("publish: {other:?}"),
    }
}

async fn revoke(app: &mut App, name: &str) -> anyhow::Result<()> {
    let revoked = app.ask(&Command::Retire { name: name.to_owned(), deadline_ms: 0 }).await?;
    ensure!(matches!(revoked, Answer::Retired { leases: 1.. }), "revoke: {revoked:?}");
    Ok(())
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|c| c.name == APP)
}

fn last_end(pod: &Pod) -> Option<i32> {
    container(pod)?.last_state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code)
}

fn is_running(pod: &Pod) -> bool {
    container(pod).and_then(|c| c.state.as_ref()).is_some_and(|state| state.running.is_some())
}
