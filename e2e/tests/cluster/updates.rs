//! What the daemon's probes are for: an update goes on when the new one serves, and not before; one that is stuck is restarted, and
//! that costs no buffer.

use std::time::{Duration, Instant};

use anyhow::ensure;
use gpu_handoff_e2e::agent::Answer;
use serde_json::{Value, json};

use crate::ground::look_until;
use crate::members::{self, By};
use crate::plan::Gpu;
use crate::play::{Outcome, Scenario, not_run, scenario_alone};
use crate::product;
use crate::program::agent;
use crate::scene::{Scene, Standard};

/// How long until the kubelet has noticed, has asked it to end in vain, and has started it anew.
const RESTARTED: Duration = Duration::from_secs(90);
const GROUP: &str = "stuck";
const WORD: u32 = 0x0570_CCED;

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        not_run(
            "an_update_waits_until_the_daemon_serves",
            "a daemon without its kubelet ends there, instead of waiting: why is not known yet",
        ),
        scenario_alone("a_daemon_that_is_stuck_is_restarted_and_no_buffer_lost", Standard::Restricted, stuck),
    ]
}

/// The daemon of the manifest, but that the kubelet is out of patience sooner.
async fn stuck(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let ground = scene.ground;
    product::install(ground).await?;
    let generation =
        product::change(ground, json!({ "name": "plugin", "livenessProbe": impatient() })).await?;
    product::has_rolled(ground, generation).await?;
    let done = is_restarted(scene).await;
    product::install(ground).await?;
    done.map(|()| Outcome::Done)
}

/// A liveness probe whose kubelet is soon out of patience.
fn impatient() -> Value {
    json!({ "periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 5 })
}

async fn is_restarted(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    let plan = |pod: &str| agent(pod, Gpu::Claim("gpu".to_owned())).restricted().member(GROUP);
    for pod in ["producer", "consumer"] {
        scene.start(plan(pod)).await?;
    }
    let (mut producer, mut consumer) = (scene.app("producer").await?, scene.app("consumer").await?);
    members::connect(scene, &mut producer, "producer", GROUP).await?;
    members::connect(scene, &mut consumer, "consumer", GROUP).await?;
    members::publish(&mut producer, "w", WORD).await?;
    members::acquire(&mut consumer, By::Name("w".to_owned()), "before").await?;

    let begin = Instant::now();
    product::signal(scene.ground, "STOP").await?;
    look_until(RESTARTED, "the stuck daemon is restarted", async || {
        let pods = product::pods(scene.ground).await?;
        Ok(pods.iter().any(|pod| product::restarts(pod) == 1).then_some(()))
    })
    .await?;
    product::serves(scene.ground).await?;
    eprintln!("updates: a stuck daemon serves again after {:.1} s", begin.elapsed().as_secs_f64());
    members::holds(&mut consumer, "before", WORD).await?;
    let acquired = members::acquire(&mut consumer, By::Name("w".to_owned()), "after").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(&mut consumer, "after", WORD).await
}
