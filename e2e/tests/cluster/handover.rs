//! Two pods hand memory over by the driver's own calls, over a socket in a folder that they share.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use gpu_handoff_e2e::agent::{Answer, Command, RawMode};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;

use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario};
use crate::program::{App, agent};
use crate::scene::{SHARED_AT, Scene, Standard};

const BYTES: u64 = 4 << 20;
const ROUNDS: usize = 3;

/// The API's answer where a pod is not admitted.
const FORBIDDEN: u16 = 403;

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario("handover_with_gpus_of_the_device_plugin", Standard::Baseline, async |scene| {
            let pods = scene.two_on_one_gpu(|name| agent(name, Gpu::Plugin)).await?;
            hand_over(scene, &pods).await
        }),
        scenario("handover_of_restricted_pods", Standard::Restricted, async |scene| {
            is_refused(scene, agent("unrestricted", Gpu::Plugin)).await?;
            let pods = scene.two_on_one_gpu(|name| agent(name, Gpu::Plugin).restricted()).await?;
            has_no_privilege(scene, &pods[0]).await?;
            hand_over(scene, &pods).await
        }),
        scenario("handover_with_a_shared_claim", Standard::Baseline, async |scene| {
            let pods = scene.two_with_one_claim(agent).await?;
            hand_over(scene, &pods).await
        }),
        scenario("handover_of_restricted_pods_with_a_shared_claim", Standard::Restricted, async |scene| {
            let pods = scene.two_with_one_claim(|name, gpu| agent(name, gpu).restricted()).await?;
            hand_over(scene, &pods).await
        }),
    ]
}

/// By descriptor and by handle, fresh and again and again; every word is looked at.
async fn hand_over(scene: &Scene<'_>, pods: &[String; 2]) -> anyhow::Result<Outcome> {
    let (mut sender, mut receiver) = (scene.app(&pods[0]).await?, scene.app(&pods[1]).await?);
    for mode in [RawMode::VmmFresh, RawMode::VmmExported, RawMode::LegacyFresh, RawMode::LegacyExported] {
        let socket = Path::new(SHARED_AT).join(format!("{mode:?}"));
        let words =
            hand_over_by(&mut sender, &mut receiver, socket, mode, word_of(&scene.namespace, mode)).await?;
        let wanted = BYTES / 4 * ROUNDS as u64;
        anyhow::ensure!(words == wanted, "{mode:?}: {words} words were looked at, not {wanted}");
    }
    Ok(Outcome::Done)
}

/// A word of its own for each scenario and mode: what another wrote into the GPU's memory is not taken for it.
fn word_of(namespace: &str, mode: RawMode) -> u32 {
    let mut hasher = DefaultHasher::new();
    (namespace, format!("{mode:?}")).hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}

async fn hand_over_by(
    sender: &mut App,
    receiver: &mut App,
    socket: PathBuf,
    mode: RawMode,
    word: u32,
) -> anyhow::Result<u64> {
    let (rounds, word) = (ROUNDS, Some(word));
    let send = Command::RawSend { socket: socket.clone(), bytes: BYTES, rounds, mode, pause_us: 0, word };
    let receive = Command::RawReceive { socket, rounds };
    match tokio::try_join!(sender.ask(&send), receiver.ask(&receive))? {
        (Answer::Raw(_), Answer::Raw(received)) => Ok(received.words),
        other => anyhow::bail!("{mode:?}: sender and receiver answered {other:?}"),
    }
}

/// The namespace's standard is enforced: what is not restricted does not get in.
async fn is_refused(scene: &Scene<'_>, plan: Plan) -> anyhow::Result<()> {
    match scene.all::<Pod>().create(&PostParams::default(), &plan.pod()).await {
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
            let message = &status.message;
            anyhow::ensure!(message.contains("violates PodSecurity \"restricted"), "refused: {message}");
            Ok(())
        }
        other => anyhow::bail!("a pod that is not restricted: {other:?}"),
    }
}

/// It is what the pod runs with, not what it asked for.
async fn has_no_privilege(scene: &Scene<'_>, pod: &str) -> anyhow::Result<()> {
    let status = scene.exec(pod, &["cat", "/proc/1/status"]).await?;
    let is = |key: &str, value: &str| {
        status.lines().any(|line| line.split_once(':').is_some_and(|(k, v)| k == key && v.trim() == value))
    };
    for (key, value) in [("CapBnd", "0000000000000000"), ("NoNewPrivs", "1"), ("Seccomp", "2")] {
        anyhow::ensure!(is(key, value), "{key} of {pod}'s first process is not {value}:\n{status}");
    }
    let user = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
    anyhow::ensure!(!user.split_whitespace().any(|word| word == "0"), "it is root's: {user}");
    let written = scene.exec(pod, &["touch", "/tmp/written"]).await;
    anyhow::ensure!(
        written.as_ref().is_err_and(|e| format!("{e:#}").contains("Read-only file system")),
        "its root file system is written to: {written:?}"
    );
    Ok(())
}
