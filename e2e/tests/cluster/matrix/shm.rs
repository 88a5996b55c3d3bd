//! `/dev/shm` and the IPC namespace of pods.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;

use crate::plan::{APP, Gpu, Plan, TWIN};
use crate::play::{Outcome, Scenario, scenario};
use crate::scene::{Scene, Standard, await_in};

/// Ends when it is told to.
const IDLE: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; sleep 86400 & wait"];

/// What a container's `/dev/shm` takes, in MiB.
const SHM_MIB: usize = 64;

/// How long a container may take to be started again.
const RESTARTED: Duration = Duration::from_secs(60);

pub(super) fn all() -> Vec<Scenario> {
    vec![
        scenario("matrix_01_ipc_namespace_and_dev_shm_go_together", Standard::Baseline, go_together),
        scenario("matrix_21_a_full_dev_shm", Standard::Baseline, full),
    ]
}

/// The IPC namespace, and the file system of `/dev/shm`, that a container has.
async fn place(scene: &Scene<'_>, pod: &str, container: &str) -> anyhow::Result<(String, String)> {
    let namespace = scene.exec_in(pod, container, &["readlink", "/proc/self/ns/ipc"]).await?;
    let device = scene.exec_in(pod, container, &["stat", "-c", "%d", "/dev/shm"]).await?;
    Ok((namespace, device))
}

/// A pod's containers share both, two pods neither; also after a container was started again.
async fn go_together(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    scene.start(Plan::new("both", Gpu::None, &IDLE).twin()).await?;
    scene.start(Plan::new("other", Gpu::None, &IDLE)).await?;
    let (app, twin) = (place(scene, "both", APP).await?, place(scene, "both", TWIN).await?);
    let other = place(scene, "other", APP).await?;
    anyhow::ensure!(app == twin, "a pod's containers have {app:?} and {twin:?}");
    anyhow::ensure!(app.0 != other.0 && app.1 != other.1, "two pods have {app:?} and {other:?}");
    // It may be killed itself: all of a PID namespace ends with its first process. The restart tells whether it worked.
    let told = scene.exec_in("both", TWIN, &["sh", "-c", "kill -TERM 1"]).await;
    let again = |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        let twin = statuses.and_then(|all| all.iter().find(|one| one.name == TWIN));
        twin.is_some_and(|one| {
            one.restart_count == 1 && one.state.as_ref().is_some_and(|state| state.running.is_some())
        })
    };
    let restarted = await_in(&scene.all(), "both", "the container runs again", RESTARTED, again).await;
    restarted.with_context(|| format!("told to end, it answered {told:?}"))?;
    let twin = place(scene, "both", TWIN).await?;
    anyhow::ensure!(app == twin, "after a restart they have {app:?} and {twin:?}");
    Ok(Outcome::Done)
}

/// Who writes more than it takes is told so.
async fn full(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    scene.start(Plan::new("writer", Gpu::None, &IDLE)).await?;
    let count = format!("count={}", SHM_MIB + 1);
    let write = ["dd", "if=/dev/zero", "of=/dev/shm/full", "bs=1M", &count];
    let said = scene.exec("writer", &write).await.err().context("it takes more than it should")?;
    anyhow::ensure!(format!("{said:#}").contains("No space left on device"), "{said:#}");
    let size = scene.exec("writer", &["stat", "-c", "%s", "/dev/shm/full"]).await?;
    let wanted = SHM_MIB << 20;
    anyhow::ensure!(size.trim() == wanted.to_string(), "it took {size} bytes, not {wanted}");
    Ok(Outcome::Done)
}
