//! Who a process is, the kernel says: pods that would be others, and pods that are not like most.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::bystanders::{BUFFER, Bystanders, PRODUCER, gpu};
use crate::ground::look_until;
use crate::members::{self, By};
use crate::plan::{APP, Gpu, IMAGE, Plan, SLOTS_AT, TWIN};
use crate::play::{Outcome, Scenario, scenario};
use crate::product;
use crate::program::agent;
use crate::scene::{SHARED, SHARED_AT, Scene, Standard, await_in};

const INTRUDER: &str = "intruder";
const INTRUDERS: &str = "intruders";

/// How long the node may take to hear of what the kubelet does.
const HEARD: Duration = Duration::from_secs(30);

/// How long a pod that is deleted may have: more than the scenario takes.
const LONG_S: i64 = 120;

/// What the kubelet says of a static pod with an inline volume.
const REFUSED_BY_THE_KUBELET: &str = "static pods may not reference csidrivers";

/// Has the shell in groups below its container's own, which are called as another pod's are: `forge POD CONTAINER`, and `own_groups`
/// says where. A privileged container sees the groups of the whole machine where there is one hierarchy, and else only its own.
const FORGE: &str = r#"
own_groups() {
    own=$(grep '^0::' /proc/self/cgroup) || true
    for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
        if [ -e "$root/cgroup.procs" ] && [ ! -e "$root/cpuset.cpus" ]; then
            if [ -e "$root${own#0::}/cgroup.procs" ]; then echo "$root${own#0::}"; else echo "$root"; fi
        fi
    done
}
forge() {
    groups=$(own_groups)
    for group in $groups; do
        mkdir -p "$group/kubepods/besteffort/pod$1/$2"
        echo $$ > "$group/kubepods/besteffort/pod$1/$2/cgroup.procs"
    done
}
"#;

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario("matrix_14_an_impersonating_mount", Standard::Privileged, mounts),
        scenario("matrix_15_paths_of_cgroups", Standard::Privileged, names_of_groups),
        scenario("identity_of_a_connection_that_is_passed_on", Standard::Baseline, passed_on),
        scenario("identity_of_a_pod_that_is_being_deleted", Standard::Restricted, being_deleted),
        scenario("identity_of_a_pods_containers", Standard::Baseline, containers),
        scenario("identity_of_a_pod_on_the_nodes_network", Standard::Privileged, nodes_network),
        scenario("identity_of_a_static_pod", Standard::Privileged, static_pod),
    ]
}

fn idle(name: &str) -> Plan {
    Plan::new(name, Gpu::None, &["sleep", "86400"])
}

/// A member of another group that may do on the node what it likes, and reaches the slots of all.
async fn start_intruder(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.start(idle(INTRUDER).privileged_with_all_slots().member(INTRUDERS)).await
}

/// The producer's slot, as the intruder has it.
async fn slot_of_the_producer(scene: &Scene<'_>) -> anyhow::Result<String> {
    let uid = scene.uid(PRODUCER).await?;
    let records = format!("grep -l {uid} {SLOTS_AT}/volumes/*");
    let found = scene.exec(INTRUDER, &["sh", "-c", &records]).await?;
    let name = found.trim().rsplit('/').next().and_then(|file| file.strip_suffix(".json"));
    Ok(format!("{SLOTS_AT}/slots/{}", name.context("the producer has no slot")?))
}

/// Whatever the intruder does to be another: at the other's slot it is refused, at its own it is who it is. What it did shows in what
/// the script prints.
async fn is_who_it_is(
    scene: &Scene<'_>,
    bystanders: &mut Bystanders,
    script: &str,
    shows: &str,
) -> anyhow::Result<()> {
    let slot = slot_of_the_producer(scene).await?;
    let own = format!("welcome {0}/{INTRUDER} of {0}/{INTRUDERS}", scene.namespace);
    for (deed, wanted) in [(format!("knock {slot}"), "refused: PEER_UNKNOWN"), ("hello".to_owned(), &own)] {
        let said = scene.exec(INTRUDER, &["sh", "-ec", &format!("{script}\nexec intruder {deed}")]).await?;
        let (before, told) = said.trim_end().rsplit_once('\n').unwrap_or(("", said.trim_end()));
        ensure!(before.contains(shows), "it was to look like {shows}: {said}");
        ensure!(told.starts_with(wanted), "{deed}: {told}");
        bystanders.are_not_in(told)?;
    }
    bystanders.go_on().await
}

/// A container's own groups may be called as another pod's, on the way down from its own.
async fn names_of_groups(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    start_intruder(scene).await?;
    // As it is.
    is_who_it_is(scene, &mut bystanders, "", "").await?;
    let (pod, container) = (scene.uid(PRODUCER).await?, scene.container_number(PRODUCER).await?);
    let forged = format!("pod{pod}/{container}");
    let script = format!("{FORGE}\nforge {pod} {container}\ncat /proc/self/cgroup");
    is_who_it_is(scene, &mut bystanders, &script, &forged).await?;
    Ok(Outcome::Done)
}

/// What a container sees in `/proc`, and in the list of its mounts, is its own matter.
async fn mounts(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    start_intruder(scene).await?;
    let (pod, container) = (scene.uid(PRODUCER).await?, scene.container_number(PRODUCER).await?);
    // In the place of its own list of groups, the other's.
    let list = scene.exec(PRODUCER, &["cat", "/proc/self/cgroup"]).await?;
    let forged =
        if list.contains(&pod) { list } else { format!("0::/kubepods/besteffort/pod{pod}/{container}\n") };
    std::fs::write(scene.shared().join("cgroup"), &forged)?;
    let script = format!("mount -o bind {SHARED_AT}/cgroup /proc/$$/cgroup\ncat /proc/$$/cgroup");
    is_who_it_is(scene, &mut bystanders, &script, &format!("pod{pod}")).await?;
    // Among its mounts, a group that is called as the other's.
    let script = format!(
        r#"{FORGE}
        forge {pod} {container}
        for group in $groups; do
            mount -o bind "$group/kubepods/besteffort/pod{pod}/{container}" "$group"
        done
        grep pod{pod} /proc/$$/mountinfo"#
    );
    is_who_it_is(scene, &mut bystanders, &script, &format!("pod{pod}/{container}")).await?;
    Ok(Outcome::Done)
}

/// Rights are of who connected, wherever the connection goes, and end with it.
async fn passed_on(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let plan = Plan::new(INTRUDER, gpu(), &["sleep", "86400"]).member(INTRUDERS);
    scene.start(plan).await?;
    let at = format!("{SHARED_AT}/lent");
    let (lend, borrow) = (["intruder", "lend", &at], ["intruder", "borrow", &at]);
    let (lent, borrowed) = tokio::try_join!(scene.exec(PRODUCER, &lend), scene.exec(INTRUDER, &borrow))?;
    ensure!(borrowed.contains("FORKED"), "whoever has a connection from another pod: {borrowed}");
    bystanders.are_not_in(&borrowed)?;
    ensure!(lent.starts_with("it has ended"), "a connection that another has used: {lent}");
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}

/// Who is being deleted publishes nothing more, and what it has published is on its way out; it may still let go of what it holds.
async fn being_deleted(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let leaver = agent("leaver", gpu()).restricted().member(crate::bystanders::GROUP).grace_s(LONG_S);
    scene.start(leaver).await?;
    let mut app = scene.app("leaver").await?;
    members::connect(scene, &mut app, "leaver", crate::bystanders::GROUP).await?;
    members::publish(&mut app, "last", 7).await?;
    let acquired = members::acquire(&mut bystanders.consumer, By::Name("last".to_owned()), "last").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    let held = members::acquire(&mut app, By::Name(BUFFER.to_owned()), "own").await?;
    ensure!(matches!(held, Answer::Acquired { .. }), "{held:?}");
    scene.all::<Pod>().delete("leaver", &DeleteParams::default()).await?;
    let app = tokio::sync::Mutex::new(app);
    let refused = look_until(HEARD, "the pod may not publish any more", async || {
        let publish =
            gpu_handoff_e2e::agent::Command::Publish { memory: "last".to_owned(), name: "later".to_owned() };
        match app.lock().await.ask(&publish).await? {
            Answer::Refused { code, text } => Ok(Some((code, text))),
            Answer::Published { .. } => Ok(None),
            other => anyhow::bail!("publish: {other:?}"),
        }
    });
    let (code, text) = refused.await?;
    ensure!(code == "SHUTTING_DOWN" && text.contains("being deleted"), "{code}: {text}");
    let consumer = tokio::sync::Mutex::new(&mut bystanders.consumer);
    look_until(HEARD, "who holds its buffer hears that it retires", async || {
        let state = gpu_handoff_e2e::agent::Command::LeaseState { lease: "last".to_owned() };
        let state = consumer.lock().await.ask(&state).await?;
        Ok(matches!(&state, Answer::LeaseState { state } if state == "retiring").then_some(()))
    })
    .await?;
    members::release(&mut bystanders.consumer, "last").await?;
    members::release(&mut app.into_inner(), "own").await?;
    bystanders.go_on().await?;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    scene.all::<Pod>().delete("leaver", &at_once).await?;
    Ok(Outcome::Done)
}

/// Each of them is the pod, also one that came to look at it later.
async fn containers(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    scene.reserve(1).await?;
    scene.claim("gpu", 1).await?;
    scene.start(agent("both", gpu()).twin().member("containers")).await?;
    let (mut one, mut other) = (scene.app("both").await?, scene.app_in("both", TWIN).await?);
    for app in [&mut one, &mut other] {
        members::connect(scene, app, "both", "containers").await?;
    }
    members::publish(&mut one, "w", 9).await?;
    let acquired = members::acquire(&mut other, By::Name("w".to_owned()), "l").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(&mut other, "l", 9).await?;
    let wanted = format!("welcome {0}/both of {0}/containers\n", scene.namespace);
    for container in [APP, TWIN] {
        let said = scene.exec_in("both", container, &["intruder", "hello"]).await?;
        ensure!(said == wanted, "{container}: {said}");
    }
    debug(scene, "both", "debugger").await?;
    let said = scene.exec_in("both", "debugger", &["intruder", "hello"]).await?;
    ensure!(said == wanted, "an ephemeral container: {said}");
    members::holds(&mut other, "l", 9).await?;
    Ok(Outcome::Done)
}

/// Starts a container in a pod that runs, as `kubectl debug` does, with the pod's door.
async fn debug(scene: &Scene<'_>, pod: &str, name: &str) -> anyhow::Result<()> {
    let container = json!({
        "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "86400"],
        "volumeMounts": [{ "name": "gpu-handoff", "mountPath": "/run/gpu-handoff", "readOnly": true }]
    });
    let patch = Patch::Strategic(json!({ "spec": { "ephemeralContainers": [container] } }));
    let pods = scene.all::<Pod>();
    pods.patch_ephemeral_containers(pod, &PatchParams::default(), &patch).await?;
    let runs = |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.ephemeral_container_statuses.as_ref());
        statuses.is_some_and(|all| {
            all.iter().any(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
        })
    };
    await_in(&pods, pod, "the ephemeral container runs", HEARD, runs).await.map(drop)
}

async fn nodes_network(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    scene.start(agent("hostnet", gpu()).host_network().member(crate::bystanders::GROUP)).await?;
    let mut app = scene.app("hostnet").await?;
    members::connect(scene, &mut app, "hostnet", crate::bystanders::GROUP).await?;
    let acquired = members::acquire(&mut app, By::Name(BUFFER.to_owned()), "l").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}

/// The kubelet's own pods, from files: they have another kind of UID, and no volume of ours where the kubelet lets them name no objects
/// of the API. One that reaches another's slot is nobody there.
async fn static_pod(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let folder = scene.ground.folder.join("static-pods");
    if !folder.is_dir() {
        return Ok(Outcome::NotRun("the kubelet of this cluster has no folder of static pods".to_owned()));
    }
    let mut bystanders = Bystanders::start(scene).await?;
    start_intruder(scene).await?;
    let slot = slot_of_the_producer(scene).await?;
    let member = StaticPod::make(scene, &folder, idle("static-member").member("statics"))?;
    let log = scene.ground.folder.join("log/kubelet.log");
    look_until(HEARD, "the kubelet refuses a static pod with a slot", async || {
        let log = std::fs::read_to_string(&log)?;
        let says = |line: &str| line.contains(&member.name()) && line.contains(REFUSED_BY_THE_KUBELET);
        Ok(log.lines().any(says).then_some(()))
    })
    .await?;
    drop(member);
    let other = StaticPod::make(scene, &folder, idle("static-other").privileged_with_all_slots())?;
    let of_it = async || {
        let pods = scene.all::<Pod>().list(&ListParams::default()).await?;
        let mut names = pods.items.into_iter().filter_map(|pod| pod.metadata.name);
        Ok(names.find(|name| name.starts_with("static-other")))
    };
    let name = look_until(HEARD, "the static pod has a mirror", of_it).await?;
    scene.runs(&name, HEARD).await?;
    let said = scene.exec(&name, &["intruder", "knock", &slot]).await?;
    ensure!(said.starts_with("refused: PEER_UNKNOWN (pod: "), "a static pod at another's slot: {said}");
    bystanders.are_not_in(&said)?;
    drop(other);
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}

/// A pod of the kubelet's folder, until it is dropped.
struct StaticPod(PathBuf);

impl StaticPod {
    fn make(scene: &Scene<'_>, folder: &Path, plan: Plan) -> anyhow::Result<Self> {
        let file = folder.join(format!("{}-{}.json", scene.namespace, plan.name));
        let mut pod = plan.pod_in(&scene.namespace)?;
        pod.metadata.namespace = Some(scene.namespace.clone());
        // It may not name objects of the API, such as the claim of the shared folder.
        let spec = pod.spec.as_mut().context("a pod without a specification")?;
        spec.volumes.get_or_insert_default().retain(|volume| volume.name != SHARED);
        for container in &mut spec.containers {
            container.volume_mounts.get_or_insert_default().retain(|mount| mount.name != SHARED);
        }
        std::fs::write(&file, serde_json::to_vec(&pod)?)?;
        Ok(Self(file))
    }

    /// Its file's.
    fn name(&self) -> String {
        self.0.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        // Whoever finds it there next time has nothing to do with it.
        let _ = std::fs::remove_file(&self.0);
    }
}
