//! What the driver answers when one pod hands memory or an event to another.

use std::time::Duration;

use gpu_handoff_e2e::conformance::actor::{Actor, Kind};
use k8s_openapi::api::core::v1::Pod;

use crate::plan::{ANY_USER, Gpu};
use crate::play::{Outcome, Scenario, scenario};
use crate::program::{puppet, puppet_not_first};
use crate::scene::{Scene, Standard, await_in};

const OK: &str = "OK";
const SAME_PROCESS: &str = "CUDA_ERROR_INVALID_CONTEXT (201)";
const NO_FILE: &str = "CUDA_ERROR_MAP_FAILED (205)";
const NO_SUCH_VALUE: &str = "CUDA_ERROR_INVALID_VALUE (1)";
const NO_SUCH_DEVICE: &str = "CUDA_ERROR_INVALID_DEVICE (101)";
/// The importer's process ended without an answer.
const CRASH: &str = "connection closed";
/// What a shell calls that end.
const SIGSEGV: i32 = 128 + 11;

/// How long the kubelet may take to say so.
const ENDED: Duration = Duration::from_secs(30);

pub(super) fn all() -> Vec<Scenario> {
    vec![
        scenario("matrix_05_events_need_one_dev_shm", Standard::Privileged, one_dev_shm),
        scenario("matrix_06_events_need_one_user", Standard::Privileged, one_user),
        scenario("matrix_08_equal_process_numbers", Standard::Baseline, equal_numbers),
        scenario("matrix_17_user_namespaces_of_pods", Standard::Baseline, user_namespaces),
        scenario("matrix_24_different_gpus", Standard::Baseline, different_gpus),
        scenario("matrix_26_one_claim_and_the_nodes_namespaces", Standard::Privileged, nodes_namespaces),
    ]
}

/// Asks all of it, and tells every answer where one is another.
fn answers(from: &Actor, to: &Actor, wanted: &[(Kind, &str)]) -> anyhow::Result<()> {
    let mut given = Vec::new();
    for &(kind, _) in wanted {
        given.push((kind, from.hand_over(kind, to)?));
    }
    let as_wanted = given.iter().zip(wanted).all(|((_, given), (_, wanted))| given == wanted);
    anyhow::ensure!(as_wanted, "the driver answered {given:?}, not {wanted:?}");
    Ok(())
}

/// Two pods that share a claim: the first's puppet is process 1 of its container, the second's is not.
async fn two(scene: &Scene<'_>) -> anyhow::Result<[Actor; 2]> {
    let pods = scene.two_with_one_claim(|name, gpu| match name {
        "first" => puppet(name, gpu),
        _ => puppet_not_first(name, gpu),
    });
    let [first, second] = scene.actors(&pods.await?)?;
    anyhow::ensure!(first.pid()? == 1 && second.pid()? != 1, "the processes have other numbers");
    Ok([first, second])
}

async fn equal_numbers(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let pods = scene.two_with_one_claim(puppet).await?;
    let [first, second] = scene.actors(&pods)?;
    anyhow::ensure!((first.pid()?, second.pid()?) == (1, 1), "the processes have other numbers than 1");
    let wanted =
        [(Kind::Legacy, SAME_PROCESS), (Kind::Event, SAME_PROCESS), (Kind::Vmm, OK), (Kind::Pool, OK)];
    answers(&first, &second, &wanted)?;
    scene.start(puppet_not_first("third", Gpu::Claim("gpu".to_owned()))).await?;
    let third = scene.actor("third")?;
    answers(&first, &third, &[(Kind::Legacy, OK), (Kind::Vmm, OK), (Kind::Pool, OK)])?;
    Ok(Outcome::Done)
}

async fn one_dev_shm(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let [first, second] = two(scene).await?;
    let apart = [(Kind::Legacy, OK), (Kind::Event, NO_FILE), (Kind::Vmm, OK), (Kind::Pool, OK)];
    answers(&first, &second, &apart)?;
    let gpu = || Gpu::Claim("gpu".to_owned());
    scene.start(puppet("third", gpu()).host_ipc()).await?;
    scene.start(puppet_not_first("fourth", gpu()).host_ipc()).await?;
    let together = [(Kind::Legacy, OK), (Kind::Event, OK), (Kind::Vmm, OK), (Kind::Pool, OK)];
    answers(&scene.actor("third")?, &scene.actor("fourth")?, &together)?;
    Ok(Outcome::Done)
}

async fn one_user(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let pods = scene.two_with_one_claim(|name, gpu| match name {
        "first" => puppet(name, gpu).host_ipc(),
        _ => puppet_not_first(name, gpu).host_ipc().user(ANY_USER),
    });
    let [root, other] = scene.actors(&pods.await?)?;
    let wanted = [(Kind::Legacy, OK), (Kind::Event, NO_FILE), (Kind::Vmm, OK), (Kind::Pool, OK)];
    answers(&root, &other, &wanted)?;
    Ok(Outcome::Done)
}

async fn nodes_namespaces(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let pods = scene.two_with_one_claim(|name, gpu| puppet(name, gpu).host_ipc().host_pid()).await?;
    let [first, second] = scene.actors(&pods)?;
    anyhow::ensure!(first.pid()? != second.pid()?, "two processes of a node have one number");
    let wanted = [(Kind::Legacy, OK), (Kind::Event, OK), (Kind::Vmm, OK), (Kind::Pool, OK)];
    answers(&first, &second, &wanted)?;
    Ok(Outcome::Done)
}

/// Such a pod has its GPU as any other; or it does not start, and is told why.
async fn user_namespaces(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    if !scene.ground.makes_user_namespaces().await? {
        scene.make(puppet("first", Gpu::None).own_users()).await?;
        let why = scene.warning("first", "FailedCreatePodSandBox").await?;
        anyhow::ensure!(why.contains("runtime does not support user namespaces"), "it is told: {why}");
        return Ok(Outcome::Refused("the runtime has no user namespaces, and the pod is told".to_owned()));
    }
    let pods = scene.two_with_one_claim(|name, gpu| match name {
        "first" => puppet(name, gpu).own_users(),
        _ => puppet_not_first(name, gpu),
    });
    let pods = pods.await?;
    let users = scene.exec(&pods[0], &["cat", "/proc/self/uid_map"]).await?;
    let first = users.split_whitespace().nth(1);
    anyhow::ensure!(first.is_some_and(|on_node| on_node != "0"), "its users are the node's: {users}");
    let [own, other] = scene.actors(&pods)?;
    answers(&own, &other, &[(Kind::Legacy, OK), (Kind::Vmm, OK), (Kind::Pool, OK)])?;
    Ok(Outcome::Done)
}

/// A pod has the device nodes of its own GPUs alone, so the other's memory is out of reach.
async fn different_gpus(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let gpus = scene.ground.gpus();
    if gpus < 2 {
        return Ok(Outcome::NotRun(format!("it takes two GPUs, and this node has {gpus}")));
    }
    scene.reserve(2).await?;
    scene.claim("one", 1).await?;
    scene.claim("another", 1).await?;
    scene.start(puppet("first", Gpu::Claim("one".to_owned()))).await?;
    scene.start(puppet_not_first("second", Gpu::Claim("another".to_owned()))).await?;
    let wanted = [(Kind::Legacy, NO_SUCH_VALUE), (Kind::Vmm, NO_SUCH_DEVICE), (Kind::Pool, CRASH)];
    answers(&scene.actor("first")?, &scene.actor("second")?, &wanted)?;
    // It is the driver that ends the importer, and nothing else.
    let ended = |pod: Option<&Pod>| ended_with(pod).is_some();
    let pod = await_in(&scene.all(), "second", "the importer has ended", ENDED, ended).await?;
    let code = ended_with(pod.as_ref());
    anyhow::ensure!(code == Some(SIGSEGV), "the importer ended with {code:?}, not {SIGSEGV}");
    Ok(Outcome::Done)
}

/// What a pod's container last ended with.
fn ended_with(pod: Option<&Pod>) -> Option<i32> {
    let container = pod?.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let state = [&container.state, &container.last_state];
    state.into_iter().find_map(|state| Some(state.as_ref()?.terminated.as_ref()?.exit_code))
}
