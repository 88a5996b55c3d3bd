//! Publishers that go without anybody's wish: evicted, drained with their node, killed by the kernel for their memory. How soon
//! their holders hear of it, and how soon the GPU's memory is back, is printed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_e2e::conformance::actor::Actor;
use k8s_openapi::api::core::v1::Pod;
use kube::api::EvictParams;
use kube::runtime::wait::conditions;

use crate::lifecycle::{BACK, OBSERVED, relists, until_back, warm_up};
use crate::members::{self, By};
use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::pods::STARTED;
use crate::product;
use crate::program::{App, agent, agent_that_grows, grow, puppet};
use crate::scene::{Scene, Standard, await_in};

const GROUP: &str = "departures";
const WORD: u32 = 0x0DE_FA11;
/// How long a holder may wait for the news. It comes within milliseconds of what is told of the pod.
const NEWS_MS: u64 = 20_000;
/// How long an evicted pod has to end: its holders hear of it before that.
const GRACE_S: i64 = 3;
/// The most that a container may have, which is more than an application of ours takes.
const MEMORY: &str = "96Mi";

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario_alone("members_that_are_evicted_or_drained", Standard::Restricted, evicted_and_drained),
        scenario_alone("a_publisher_that_the_kernel_kills", Standard::Restricted, killed),
    ]
}

fn plan(pod: &str) -> Plan {
    agent(pod, gpu()).restricted().member(GROUP)
}

fn gpu() -> Gpu {
    Gpu::Claim("gpu".to_owned())
}

/// Who looks at the GPU's memory, and who holds what the producer publishes.
struct Witnesses {
    observer: Actor,
    before: u64,
    holder: App,
}

impl Witnesses {
    async fn gather(scene: &Scene<'_>) -> anyhow::Result<Self> {
        product::install(scene.ground).await?;
        scene.reserve(1).await?;
        scene.claim("gpu", 1).await?;
        scene.start(puppet("observer", gpu()).restricted()).await?;
        let observer = Actor::meet_for(scene.shared(), "observer", OBSERVED)?;
        scene.start(plan("holder")).await?;
        let mut holder = scene.app("holder").await?;
        members::connect(scene, &mut holder, "holder", GROUP).await?;
        holder.ask(&Command::Watch).await?;
        warm_up(scene, GROUP, Some(&mut holder)).await?;
        let before = observer.used_memory()?;
        Ok(Self { observer, before, holder })
    }

    /// The producer's application publishes, and the holder leases it; gives the buffer's id.
    async fn hand_over(&mut self, scene: &Scene<'_>, producer: &mut App) -> anyhow::Result<String> {
        members::connect(scene, producer, "producer", GROUP).await?;
        let id = members::publish(producer, "w", WORD).await?;
        let acquired = members::acquire(&mut self.holder, By::Name("w".to_owned()), "l").await?;
        ensure!(matches!(&acquired, Answer::Acquired { id: got, .. } if *got == id), "{acquired:?}");
        members::holds(&mut self.holder, "l", WORD).await?;
        Ok(id)
    }

    /// The holder hears this of a buffer.
    async fn hears(&mut self, what: &str, id: &str) -> anyhow::Result<()> {
        let ask = Command::AwaitEvent { what: what.to_owned(), id: id.to_owned(), timeout_ms: NEWS_MS };
        match self.holder.ask(&ask).await? {
            Answer::Event(_) => Ok(()),
            other => anyhow::bail!("{what} of {id}: {other:?}"),
        }
    }

    /// What the holder has is as it was; it lets go of it, and then the memory comes back.
    async fn lets_go(&mut self, begin: Instant) -> anyhow::Result<Duration> {
        let used = self.observer.used_memory()?;
        ensure!(used >= self.before + members::BYTES, "{used} bytes are in use, {} before", self.before);
        let verified = self.holder.ask(&Command::Verify { lease: "l".to_owned(), word: WORD }).await?;
        ensure!(matches!(verified, Answer::Verified { words: 1.., wrong: 0 }), "{verified:?}");
        members::release(&mut self.holder, "l").await?;
        until_back(&self.observer, self.before, begin).await
    }
}

async fn evicted_and_drained(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut witnesses = Witnesses::gather(scene).await?;
    scene.start(plan("producer").grace_s(GRACE_S)).await?;
    is_evicted(scene, &mut witnesses).await.context("eviction")?;
    scene.start(plan("producer")).await?;
    let mut producer = scene.app("producer").await?;
    witnesses.hand_over(scene, &mut producer).await?;
    is_drained(scene, witnesses.before).await.context("drain")?;
    Ok(Outcome::Done)
}

/// By the Eviction API: what it has published is retired while it still runs.
async fn is_evicted(scene: &Scene<'_>, witnesses: &mut Witnesses) -> anyhow::Result<()> {
    let mut producer = scene.app("producer").await?;
    let id = witnesses.hand_over(scene, &mut producer).await?;
    let uid = scene.uid("producer").await?;
    // A pod that has just started is not looked at before that.
    relists(scene.ground, 2).await?;
    let begin = Instant::now();
    scene.all::<Pod>().evict("producer", &EvictParams::default()).await?;
    witnesses.hears("retiring", &id).await?;
    let news = begin.elapsed();
    let state = witnesses.holder.ask(&Command::LeaseState { lease: "l".to_owned() }).await?;
    ensure!(matches!(&state, Answer::LeaseState { state } if state == "retiring"), "{state:?}");
    // It is there, and hears that it publishes nothing more.
    let refused = producer.ask(&Command::Publish { memory: "w".to_owned(), name: "late".to_owned() }).await?;
    ensure!(matches!(&refused, Answer::Refused { code, .. } if code == "SHUTTING_DOWN"), "{refused:?}");
    let back = witnesses.lets_go(begin).await?;
    let is_gone = conditions::is_deleted(&uid);
    await_in(&scene.all::<Pod>(), "producer", "it is gone", BACK, is_gone).await?;
    eprintln!(
        "departures: evicted, with {GRACE_S} s to end: the holder was told after {} ms, memory was back after {} ms, \
         the pod gone after {} ms",
        news.as_millis(),
        back.as_millis(),
        begin.elapsed().as_millis()
    );
    scene.note("producer", &["Retiring"]).await?;
    Ok(())
}

/// With all pods of its node but those of daemon sets. Nobody else's are there: this scenario has the cluster alone.
async fn is_drained(scene: &Scene<'_>, before: u64) -> anyhow::Result<()> {
    let ground = scene.ground;
    let daemons = product::pods(ground).await?;
    let node = ground.node().await?;
    let begin = Instant::now();
    let drain = ["kubectl", "drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"];
    let drained = ground.inside(&drain).await;
    let after = begin.elapsed();
    ground.inside(&["kubectl", "uncordon", &node]).await?;
    drained?;
    for pod in ["producer", "holder", "observer"] {
        ensure!(scene.all::<Pod>().get_opt(pod).await?.is_none(), "{pod} is still there");
    }
    let now = product::pods(ground).await?;
    ensure!(product::are_the_same(&daemons, &now), "the daemon was not to go: {daemons:?} {now:?}");
    scene.start(puppet("witness", gpu()).restricted()).await?;
    let witness = Actor::meet_for(scene.shared(), "witness", OBSERVED)?;
    // The holder's context is gone as well.
    ensure!(witness.used_memory()? <= before, "{} bytes are in use, {before} before", witness.used_memory()?);
    eprintln!(
        "departures: the node was drained after {} ms, and nothing is left in memory",
        after.as_millis()
    );
    for pod in ["producer", "holder"] {
        scene.start(plan(pod)).await?;
    }
    let (mut producer, mut holder) = (scene.app("producer").await?, scene.app("holder").await?);
    members::connect(scene, &mut producer, "producer", GROUP).await?;
    members::connect(scene, &mut holder, "holder", GROUP).await?;
    members::is_not_there(&mut holder, By::Name("w".to_owned())).await?;
    members::publish(&mut producer, "w", WORD).await?;
    members::acquire(&mut holder, By::Name("w".to_owned()), "l").await?;
    members::holds(&mut holder, "l", WORD).await
}

/// For want of memory, the first process of its container, and with it all that are in there.
async fn killed(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut witnesses = Witnesses::gather(scene).await?;
    let pipe = scene.make_pipe("producer.grow")?;
    scene.start(agent_that_grows("producer", gpu()).restricted().member(GROUP).memory(MEMORY)).await?;
    let mut producer = scene.app("producer").await?;
    let id = witnesses.hand_over(scene, &mut producer).await?;
    let (uid, container) = scene.incarnation("producer").await?;
    let begin = Instant::now();
    grow(&pipe).await?;
    witnesses.hears("orphaned", &id).await?;
    let news = begin.elapsed();
    let back = witnesses.lets_go(begin).await?;
    scene.has_started_again("producer", &uid, &container, STARTED).await?;
    eprintln!(
        "departures: out of memory: the holder was told after {} ms, memory was back after {} ms, the container after {} ms",
        news.as_millis(),
        back.as_millis(),
        begin.elapsed().as_millis()
    );
    let why = scene.last_end("producer").await?;
    ensure!(why == "OOMKilled", "it ended by {why}");
    scene.note("holder", &["BuffersOrphaned"]).await?;
    // The same pod takes part as before, by the next process.
    members::is_not_there(&mut witnesses.holder, By::Name("w".to_owned())).await?;
    let mut producer = scene.app("producer").await?;
    witnesses.hand_over(scene, &mut producer).await?;
    Ok(Outcome::Done)
}
