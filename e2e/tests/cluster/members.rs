//! Pods that take part by their annotation: the product as its users meet it.

use anyhow::{bail, ensure};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};

use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, scenario};
use crate::product;
use crate::program::{App, agent};
use crate::scene::{Scene, Standard};

/// Of each buffer.
pub(crate) const BYTES: u64 = 4 << 20;
const WORD: u32 = 0x0DD_BA11;
pub(crate) const SOCKET: &str = "/run/gpu-handoff/app.sock";

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario("members_hand_over_by_annotation", Standard::Restricted, hand_over)]
}

/// Two pods of a group hand a buffer over; a third of another group does not learn that it exists.
async fn hand_over(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    let pods = scene.two_on_one_gpu(|name| agent(name, Gpu::Plugin).restricted().member("weights")).await?;
    scene.start(agent("stranger", Gpu::Plugin).restricted().member("others")).await?;
    let (mut producer, mut consumer) = (scene.app(&pods[0]).await?, scene.app(&pods[1]).await?);
    let mut stranger = scene.app("stranger").await?;
    connect(scene, &mut producer, &pods[0], "weights").await?;
    connect(scene, &mut consumer, &pods[1], "weights").await?;
    connect(scene, &mut stranger, "stranger", "others").await?;
    let id = publish(&mut producer, "w", WORD).await?;
    let acquired = acquire(&mut consumer, By::Name("w".to_owned()), "l").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "the consumer: {acquired:?}");
    holds(&mut consumer, "l", WORD).await?;
    // Its owner reads what its program was told, in the same words.
    for by in [By::Name("w".to_owned()), By::Id(id)] {
        let told = is_not_there(&mut stranger, by).await?;
        scene.told("stranger", "NotFound", &told).await?;
    }
    for (pod, group) in [(pods[0].as_str(), "weights"), ("stranger", "others")] {
        let note = format!("the pod is a member of group {}/{group} on this node", scene.namespace);
        scene.told(pod, "TakesPart", &note).await?;
    }
    Ok(Outcome::Done)
}

/// How a buffer is asked for.
#[derive(Debug, Clone)]
pub(crate) enum By {
    Id(String),
    Name(String),
}

/// Connects, and looks at whom the node takes the application for.
pub(crate) async fn connect(scene: &Scene<'_>, app: &mut App, pod: &str, group: &str) -> anyhow::Result<()> {
    let wanted = (format!("{}/{pod}", scene.namespace), format!("{}/{group}", scene.namespace));
    match app.ask(&Command::Connect { socket: SOCKET.into() }).await? {
        Answer::Connected { pod, group } if (&pod, &group) == (&wanted.0, &wanted.1) => Ok(()),
        other => bail!("{pod} is to be {wanted:?}: {other:?}"),
    }
}

/// Publishes memory full of one word, under a name that is also the memory's; gives the buffer's id.
pub(crate) async fn publish(app: &mut App, name: &str, word: u32) -> anyhow::Result<String> {
    let fill = Command::Fill { memory: name.to_owned(), bytes: BYTES, kind: MemoryKind::Vmm, word };
    let filled = app.ask(&fill).await?;
    ensure!(matches!(filled, Answer::Done { .. }), "fill: {filled:?}");
    match app.ask(&Command::Publish { memory: name.to_owned(), name: name.to_owned() }).await? {
        Answer::Published { id, .. } => Ok(id),
        other => bail!("publish: {other:?}"),
    }
}

pub(crate) async fn acquire(app: &mut App, by: By, lease: &str) -> anyhow::Result<Answer> {
    let (id, name) = match by {
        By::Id(id) => (Some(id), None),
        By::Name(name) => (None, Some(name)),
    };
    let lease = lease.to_owned();
    app.ask(&Command::Acquire { name, id, newer_than: 0, wait_ms: 0, lease, announce: false }).await
}

/// A lease is held, and its memory is full of the word.
pub(crate) async fn holds(app: &mut App, lease: &str, word: u32) -> anyhow::Result<()> {
    let state = app.ask(&Command::LeaseState { lease: lease.to_owned() }).await?;
    ensure!(matches!(&state, Answer::LeaseState { state } if state == "held"), "lease {lease}: {state:?}");
    let verified = app.ask(&Command::Verify { lease: lease.to_owned(), word }).await?;
    ensure!(matches!(verified, Answer::Verified { words: 1.., wrong: 0 }), "what came: {verified:?}");
    Ok(())
}

pub(crate) async fn release(app: &mut App, lease: &str) -> anyhow::Result<()> {
    let released = app.ask(&Command::Release { lease: lease.to_owned() }).await?;
    ensure!(matches!(released, Answer::Done { .. }), "release {lease}: {released:?}");
    Ok(())
}

/// Retires what nobody holds any more.
pub(crate) async fn retire(app: &mut App, name: &str) -> anyhow::Result<()> {
    let retired = app.ask(&Command::Retire { name: name.to_owned(), deadline_ms: 0 }).await?;
    ensure!(matches!(retired, Answer::Retired { leases: 0 }), "retire {name}: {retired:?}");
    Ok(())
}

/// To who may not have it, a buffer is none. Gives the sentence that says so.
pub(crate) async fn is_not_there(app: &mut App, by: By) -> anyhow::Result<String> {
    match acquire(app, by.clone(), "nothing").await? {
        Answer::Refused { code, text } if code == "NOT_FOUND" => Ok(text),
        other => bail!("{by:?} asked for by a stranger: {other:?}"),
    }
}
