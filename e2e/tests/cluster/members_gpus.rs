//! Which GPUs the pods of a group have, and what that means for them: said when they start, not when the driver crashes.

use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::ground::look_until;
use crate::members::{By, acquire, connect, holds, publish};
use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario, scenario_alone};
use crate::pods::STARTED;
use crate::product;
use crate::program::agent;
use crate::scene::{Scene, Standard};

/// The most pods that are made to see some on one GPU and some on others.
const MOST_PODS: usize = 12;

const WORD: u32 = 0x0DD_BA11;

/// What different GPUs are told as: by whether they reach each other.
pub(crate) const APART: [&str; 2] = ["GpuNotReachable", "NoPeerAccess"];

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario("members_on_one_claim_exchange", Standard::Restricted, one_claim),
        scenario("members_with_a_gpu_each_are_held_back", Standard::Restricted, a_gpu_each),
        scenario("members_on_slices_of_different_gpus_are_held_back", Standard::Restricted, slices),
        scenario("members_that_start_anyway_are_refused_before_the_driver", Standard::Restricted, anyway),
        scenario_alone("members_are_held_back_as_the_policy_says", Standard::Restricted, by_policy),
        scenario("members_alone_on_their_node_are_told_where_the_others_are", Standard::Restricted, alone),
    ]
}

fn w() -> By {
    By::Name("w".to_owned())
}

fn member(name: &str, gpu: Gpu) -> Plan {
    agent(name, gpu).restricted().member("g")
}

fn claimed(name: &str, claim: &str) -> Plan {
    member(name, Gpu::Claim(claim.to_owned()))
}

/// One ResourceClaim gives both the same GPU.
async fn one_claim(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    let pods = scene.two_with_one_claim(member).await?;
    hand_over(scene, [&pods[0], &pods[1]]).await?;
    for pod in &pods {
        let warnings = scene.notes(pod).await?.into_iter().filter(|(reason, _)| reason != "TakesPart");
        anyhow::ensure!(warnings.count() == 0, "{pod}: {:?}", scene.notes(pod).await?);
    }
    Ok(Outcome::Done)
}

async fn hand_over(scene: &Scene<'_>, [from, to]: [&str; 2]) -> anyhow::Result<()> {
    let (mut producer, mut consumer) = (scene.app(from).await?, scene.app(to).await?);
    connect(scene, &mut producer, from, "g").await?;
    connect(scene, &mut consumer, to, "g").await?;
    publish(&mut producer, "w", WORD).await?;
    let acquired = acquire(&mut consumer, w(), "l").await?;
    anyhow::ensure!(matches!(acquired, Answer::Acquired { .. }), "{to}: {acquired:?}");
    holds(&mut consumer, "l", WORD).await
}

/// The product, and two claims of a GPU each.
async fn claim_two(scene: &Scene<'_>) -> anyhow::Result<()> {
    product::install(scene.ground).await?;
    scene.reserve(2).await?;
    scene.claim("one", 1).await?;
    scene.claim("another", 1).await
}

/// Two claims, each of one GPU: the second pod is told so, and its application is started when a third has the same GPU.
async fn a_gpu_each(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if let Some(few) = less_than_two(scene) {
        return Ok(few);
    }
    claim_two(scene).await?;
    scene.start(claimed("first", "one")).await?;
    scene.make(claimed("second", "another")).await?;
    is_held_back(scene, "second").await?;
    scene.start(claimed("third", "another")).await?;
    scene.runs("second", STARTED).await?;
    scene.note("second", &["MayStart"]).await?;
    hand_over(scene, ["second", "third"]).await?;
    Ok(Outcome::Done)
}

/// The owner of a pod that is not started reads why, from us and from the kubelet, and what to do.
pub(crate) async fn is_held_back(scene: &Scene<'_>, pod: &str) -> anyhow::Result<()> {
    let note = scene.note(pod, &APART).await?;
    anyhow::ensure!(note.contains("ResourceClaim") && note.contains("on-failure: block"), "{pod}: {note}");
    let probe = scene.warning(pod, "Unhealthy").await?;
    anyhow::ensure!(
        probe.contains("GPU_NOT_REACHABLE") || probe.contains("NO_PEER_ACCESS"),
        "{pod}: {probe}"
    );
    anyhow::ensure!(!scene.has_begun(pod).await?, "the application of {pod} was started all the same");
    Ok(())
}

/// Time slices: which GPU a pod's is of the kubelet chooses. Those on the first one's run, others are told.
async fn slices(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if let Some(few) = less_than_two(scene) {
        return Ok(few);
    }
    product::install(scene.ground).await?;
    scene.start(member("app-0", Gpu::Plugin)).await?;
    let (mut held_back, mut on_one) = (Vec::new(), None);
    for number in 1..=MOST_PODS {
        let name = format!("app-{number}");
        scene.make(member(&name, Gpu::Plugin)).await?;
        let what = format!("{name} runs or is told why not");
        let runs = look_until(STARTED, &what, async || {
            let told =
                scene.notes(&name).await?.into_iter().any(|(reason, _)| APART.contains(&reason.as_str()));
            let begun = scene.has_begun(&name).await?;
            Ok((told || begun).then_some(begun))
        })
        .await?;
        if runs {
            on_one = on_one.or(Some(name));
        } else {
            held_back.push(name);
        }
        if on_one.is_some() && !held_back.is_empty() {
            break;
        }
    }
    let (Some(on_one), Some(first_apart)) = (on_one, held_back.first()) else {
        anyhow::bail!("of {MOST_PODS} pods {held_back:?} were held back")
    };
    scene.runs(&on_one, STARTED).await?;
    // One that has the same GPU as one that was held back frees that.
    let mut with = Vec::new();
    for pod in ["app-0", &on_one] {
        with.push(scene.visible(pod).await?);
    }
    if with[0] == with[1] {
        is_held_back(scene, first_apart).await?;
        hand_over(scene, ["app-0", &on_one]).await?;
    } else {
        scene.runs(first_apart, STARTED).await?;
        hand_over(scene, [first_apart, &on_one]).await?;
    }
    Ok(Outcome::Done)
}

/// With `on-failure: start` the application starts, its owner is told, and it is refused where the driver would crash.
async fn anyway(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if let Some(few) = less_than_two(scene) {
        return Ok(few);
    }
    claim_two(scene).await?;
    scene.start(claimed("first", "one")).await?;
    scene.start(claimed("second", "another").starts_anyway()).await?;
    let note = scene.note("second", &APART).await?;
    anyhow::ensure!(!note.contains("not started"), "{note}");
    let (mut producer, mut consumer) = (scene.app("first").await?, scene.app("second").await?);
    connect(scene, &mut producer, "first", "g").await?;
    connect(scene, &mut consumer, "second", "g").await?;
    publish(&mut producer, "w", WORD).await?;
    let (reason, text) = match acquire(&mut consumer, w(), "l").await? {
        Answer::Refused { code, text } if code == "GPU_NOT_REACHABLE" => ("GpuNotReachable", text),
        Answer::Refused { code, text } if code == "NO_PEER_ACCESS" => ("NoPeerAccess", text),
        other => anyhow::bail!("the consumer: {other:?}"),
    };
    scene.told("second", reason, &text).await?;
    Ok(Outcome::Done)
}

/// Where the annotation says nothing, the policy does; and it may have it say nothing else.
async fn by_policy(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if let Some(few) = less_than_two(scene) {
        return Ok(few);
    }
    claim_two(scene).await?;
    let policy = |rule: &str| {
        let terms = json!({ "on-failure": rule });
        json!({ "version": "gpu-handoff.io/v1", "namespaces": { &scene.namespace: terms } })
    };
    product::go_by(scene.ground, &policy("start")).await?;
    scene.start(claimed("first", "one")).await?;
    scene.start(claimed("second", "another").under(&policy("start"))?).await?;
    let note = scene.note("second", &APART).await?;
    anyhow::ensure!(!note.contains("not started"), "{note}");

    product::go_by(scene.ground, &policy("always-block")).await?;
    // It was made by somebody who asked no webhook.
    scene.make(claimed("anyway", "one").starts_anyway()).await?;
    let note = scene.note("anyway", &["SlotRefused"]).await?;
    anyhow::ensure!(note.contains("on-failure: wanted block, found start"), "{note}");
    let of_another_group =
        |name, claim: &str| agent(name, Gpu::Claim(claim.to_owned())).restricted().member("h");
    scene.start(of_another_group("third", "one")).await?;
    scene.make(of_another_group("fourth", "another")).await?;
    is_held_back(scene, "fourth").await?;

    product::go_by(scene.ground, &policy("start")).await?;
    scene.runs("fourth", STARTED).await?;
    Ok(Outcome::Done)
}

fn less_than_two(scene: &Scene<'_>) -> Option<Outcome> {
    let gpus = scene.ground.gpus();
    (gpus < 2).then(|| Outcome::NotRun(format!("it takes two GPUs, and this node has {gpus}")))
}

/// A member on a node that there is not.
async fn alone(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    let mut elsewhere = member("elsewhere", Gpu::None).pod_in(&scene.namespace)?;
    elsewhere.spec.get_or_insert_default().node_name = Some("node-2".to_owned());
    scene.all::<Pod>().create(&PostParams::default(), &elsewhere).await?;
    scene.make(member("alone", Gpu::Plugin)).await?;
    let note = scene.note("alone", &["NoPeerOnNode"]).await?;
    anyhow::ensure!(note.contains("elsewhere on node-2") && note.contains("colocate"), "{note}");
    let probe = scene.warning("alone", "Unhealthy").await?;
    anyhow::ensure!(probe.contains("NO_PEER_ON_NODE"), "{probe}");
    anyhow::ensure!(!scene.has_begun("alone").await?, "its application was started all the same");
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    scene.all::<Pod>().delete("elsewhere", &at_once).await?;
    scene.runs("alone", STARTED).await?;
    Ok(Outcome::Done)
}
