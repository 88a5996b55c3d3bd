//! What becomes of a pod's memory when the pod is deleted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_e2e::conformance::actor::Actor;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::runtime::wait::conditions;

use crate::ground::{Ground, look_until};
use crate::members::{self, By};
use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product;
use crate::program::{App, agent_that_ends, puppet};
use crate::scene::{Scene, Standard, await_in};

/// How many pods come and go, one after the other, if not as few as these.
const ROUNDS: &str = "GPU_HANDOFF_E2E_ROUNDS";
const FEW: usize = 3;

/// How long memory may take to be back before that is a fault, and a pod to be gone. How fast it is, is printed.
pub(crate) const BACK: Duration = Duration::from_secs(20);

/// How long somebody looks at the GPU's memory.
pub(crate) const OBSERVED: Duration = Duration::from_secs(900);

/// Between two looks at the GPU's memory.
const PAUSE: Duration = Duration::from_millis(2);

/// How often the kubelet has looked at all containers.
const RELISTS: &str = "kubelet_pleg_relist_duration_seconds_count";

const POD: &str = "producer";
/// Comes before all that is measured.
const FIRST: &str = "first";
const GROUP: &str = "lifecycle";

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario_alone("memory_of_a_deleted_pod_comes_back", Standard::Restricted, comes_back)]
}

async fn comes_back(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let rounds = crate::number(ROUNDS, FEW)?;
    product::install(scene.ground).await?;
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    scene.start(puppet("observer", gpu()).restricted()).await?;
    let observer = Actor::meet_for(scene.shared(), "observer", OBSERVED)?;
    warm_up(scene, GROUP, None).await?;
    let before = observer.used_memory()?;
    let (mut back, mut gone) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for word in (1..).take(rounds) {
        // Each has the name of the one before it, publishes under the same name, and finds nothing of it.
        scene.start(plan()).await?;
        let used = observer.used_memory()?;
        ensure!(used == before, "{used} bytes are in use when pod {word} starts, {before} were at first");
        let mut app = scene.app(POD).await?;
        members::connect(scene, &mut app, POD, GROUP).await?;
        members::publish(&mut app, "w", word).await?;
        let used = observer.used_memory()?;
        ensure!(used >= before + members::BYTES, "{used} bytes are in use with a buffer, {before} before");
        // A pod that has just started is not looked at before that.
        relists(scene.ground, 2).await?;
        let begin = Instant::now();
        let uid = delete(scene, POD).await?;
        back.push(until_back(&observer, before, begin).await?);
        await_in(&scene.all::<Pod>(), POD, "the pod is gone", BACK, conditions::is_deleted(&uid)).await?;
        gone.push(begin.elapsed());
    }
    let said = scene.note(POD, &["Retiring"]).await?;
    ensure!(said.contains("is being deleted"), "{said}");
    tell("memory back", &mut back);
    tell("pod gone", &mut gone);
    Ok(Outcome::Done)
}

/// A pod publishes, and lets go of everything before it ends. The node's GPU worker stays, and so does the holder's program, each
/// with the memory that a driver takes for any process that uses a GPU: that is there before anything is measured.
pub(crate) async fn warm_up(scene: &Scene<'_>, group: &str, holder: Option<&mut App>) -> anyhow::Result<()> {
    scene.start(agent_that_ends(FIRST, gpu()).restricted().member(group)).await?;
    let mut app = scene.app(FIRST).await?;
    members::connect(scene, &mut app, FIRST, group).await?;
    members::publish(&mut app, "warm", 0).await?;
    if let Some(holder) = holder {
        let acquired = members::acquire(holder, By::Name("warm".to_owned()), "warm").await?;
        ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
        members::holds(holder, "warm", 0).await?;
        members::release(holder, "warm").await?;
    }
    members::retire(&mut app, "warm").await?;
    let freed = app.ask(&Command::Free { memory: "warm".to_owned() }).await?;
    ensure!(matches!(freed, Answer::Done { .. }), "free: {freed:?}");
    let uid = delete(scene, FIRST).await?;
    await_in(&scene.all::<Pod>(), FIRST, "the pod is gone", BACK, conditions::is_deleted(&uid)).await?;
    Ok(())
}

/// Waits until the kubelet has looked at all containers so many times more.
pub(crate) async fn relists(ground: &Ground, times: u64) -> anyhow::Result<()> {
    let count = async || {
        let metrics = ground.kubelet_metrics().await?;
        let counts =
            metrics.lines().filter_map(|line| line.strip_prefix(RELISTS)?.trim().parse::<u64>().ok());
        counts.reduce(u64::max).context("the kubelet does not tell of its relists")
    };
    let wanted = count().await? + times;
    let what = format!("the kubelet has looked at containers {times} times");
    look_until(BACK, &what, async || Ok((count().await? >= wanted).then_some(()))).await
}

fn gpu() -> Gpu {
    Gpu::Claim("gpu".to_owned())
}

fn plan() -> Plan {
    agent_that_ends(POD, gpu()).restricted().member(GROUP)
}

async fn delete(scene: &Scene<'_>, pod: &str) -> anyhow::Result<String> {
    let deleted = scene.all::<Pod>().delete(pod, &DeleteParams::default()).await?;
    deleted.left().and_then(|pod| pod.metadata.uid).context("a pod that is being deleted has a UID")
}

/// Waits until as much of the GPU's memory is in use as before; gives how long after the beginning.
pub(crate) async fn until_back(observer: &Actor, before: u64, begin: Instant) -> anyhow::Result<Duration> {
    while observer.used_memory()? != before {
        ensure!(begin.elapsed() < BACK, "the memory is not back {BACK:?} after the pod was deleted");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(begin.elapsed())
}

fn tell(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1].as_millis();
    let rounds = times.len();
    eprintln!("lifecycle: {what} after p50 {} ms, p99 {} ms, in {rounds} rounds", at(50), at(99));
}
