//! Pods that take part by their annotation: the product as its users meet it.

use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};

use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, scenario};
use crate::product;
use crate::program::{App, agent};
use crate::scene::{Scene, Standard};

const BYTES: u64 = 4 << 20;
const WORD: u32 = 0x0DD_BA11;
const SOCKET: &str = "/run/gpu-handoff/app.sock";

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
    let id = publish(&mut producer).await?;
    let acquired = consumer.ask(&acquire(None)).await?;
    anyhow::ensure!(matches!(acquired, Answer::Acquired { .. }), "the consumer: {acquired:?}");
    let verified = consumer.ask(&Command::Verify { lease: "l".into(), word: WORD }).await?;
    anyhow::ensure!(matches!(verified, Answer::Verified { .. }), "what came: {verified:?}");
    // Neither by its name nor by its id.
    for by in [None, Some(id)] {
        let refused = stranger.ask(&acquire(by)).await?;
        anyhow::ensure!(
            matches!(&refused, Answer::Refused { code, .. } if code == "NOT_FOUND" || code == "WAIT_TIMEOUT"),
            "the stranger: {refused:?}"
        );
    }
    Ok(Outcome::Done)
}

/// Connects, and looks at whom the node takes the application for.
async fn connect(scene: &Scene<'_>, app: &mut App, pod: &str, group: &str) -> anyhow::Result<()> {
    let wanted = (format!("{}/{pod}", scene.namespace), format!("{}/{group}", scene.namespace));
    match app.ask(&Command::Connect { socket: SOCKET.into() }).await? {
        Answer::Connected { pod, group } if (&pod, &group) == (&wanted.0, &wanted.1) => Ok(()),
        other => anyhow::bail!("{pod} is to be {wanted:?}: {other:?}"),
    }
}

async fn publish(app: &mut App) -> anyhow::Result<String> {
    let fill = Command::Fill { memory: "m".into(), bytes: BYTES, kind: MemoryKind::Vmm, word: WORD };
    let filled = app.ask(&fill).await?;
    anyhow::ensure!(matches!(filled, Answer::Done { .. }), "fill: {filled:?}");
    match app.ask(&Command::Publish { memory: "m".into(), name: "w".into() }).await? {
        Answer::Published { id, .. } => Ok(id),
        other => anyhow::bail!("publish: {other:?}"),
    }
}

fn acquire(id: Option<String>) -> Command {
    let name = id.is_none().then(|| "w".to_owned());
    Command::Acquire { name, id, newer_than: 0, wait_ms: 0, lease: "l".into(), announce: false }
}
