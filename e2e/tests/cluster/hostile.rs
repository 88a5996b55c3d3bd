//! Pods that mean harm: they have what is theirs and no more, their owners read why, and others go on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::{CSIVolumeSource, Container, Event, Pod, Volume, VolumeMount};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::runtime::wait::conditions;

use crate::bystanders::{BUFFER, Bystanders, CONSUMER, GROUP, PRODUCER, gpu};
use crate::ground::look_until;
use crate::members::{self, By};
use crate::plan::{Gpu, IMAGE, Plan};
use crate::play::{Outcome, Scenario, scenario};
use crate::program::agent;
use crate::scene::{SHARED, SHARED_AT, Scene, Standard, await_in};

const DRIVER: &str = "gpu-handoff.io";
const ANNOTATION: &str = "gpu-handoff.io/group";
const INTRUDERS: &str = "intruders";
/// The container that injection adds, and where it has the slot.
const SIDECAR: &str = "gpu-handoff";
const SLOT_AT: &str = "/run/gpu-handoff-slot";

/// How long the kubelet may take to say what it makes of a pod.
const TOLD: Duration = Duration::from_secs(60);

/// Volumes of our driver that a pod asks for, of which it gets one.
const VOLUMES: usize = 20;

/// Rounds of the others beside a storm, and how long each may take on a machine that is busy with that.
const ROUNDS: usize = 20;
const ROUND: Duration = Duration::from_secs(5);

/// Bytes of a pod's annotations, keys and values, that the API server takes.
const ANNOTATIONS_BYTES: usize = 256 << 10;

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario("hostile_volumes_of_our_driver", Standard::Baseline, volumes),
        scenario("hostile_sidecar_of_the_users_own", Standard::Baseline, own_sidecar),
        scenario("hostile_storm_on_a_slot", Standard::Baseline, storm),
        scenario("hostile_publisher_of_anothers_memory", Standard::Baseline, anothers_memory),
        scenario("hostile_annotations", Standard::Baseline, annotations),
    ]
}

fn idle(name: &str) -> Plan {
    Plan::new(name, Gpu::None, &["sleep", "86400"])
}

/// An inline volume of our driver.
fn volume(name: &str, attributes: &[(&str, &str)]) -> Volume {
    let attributes = attributes.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    let csi = CSIVolumeSource {
        driver: DRIVER.to_owned(),
        read_only: Some(true),
        volume_attributes: Some(attributes),
        ..CSIVolumeSource::default()
    };
    Volume { name: name.to_owned(), csi: Some(csi), ..Volume::default() }
}

impl Scene<'_> {
    /// Makes a pod that is changed after what is injected into it.
    async fn make_changed(&self, plan: Plan, change: impl FnOnce(&mut Pod)) -> anyhow::Result<()> {
        let mut pod = plan.pod_in(&self.namespace)?;
        change(&mut pod);
        let made = self.all::<Pod>().create(&PostParams::default(), &pod).await;
        made.map(drop).context("make a changed pod")
    }

    /// Waits until an event about a pod has these words, and gives what it says.
    async fn reads(&self, pod: &str, words: &str) -> anyhow::Result<String> {
        let about = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        look_until(TOLD, &format!("the owner of {pod} reads {words:?}"), async || {
            let events = self.all::<Event>().list(&about).await?;
            Ok(events.items.into_iter().filter_map(|event| event.message).find(|said| said.contains(words)))
        })
        .await
    }
}

fn add_volumes(pod: &mut Pod, volumes: Vec<Volume>) {
    if let Some(spec) = &mut pod.spec {
        let mount = |volume: &Volume| VolumeMount {
            name: volume.name.clone(),
            mount_path: format!("/volumes/{}", volume.name),
            read_only: Some(true),
            ..VolumeMount::default()
        };
        let mounts = volumes.iter().map(mount).collect::<Vec<_>>();
        spec.containers
            .iter_mut()
            .for_each(|one| one.volume_mounts.get_or_insert_default().extend(mounts.clone()));
        spec.volumes.get_or_insert_default().extend(volumes);
    }
}

fn annotate(pod: &mut Pod, key: &str, value: &str) {
    pod.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

/// One slot a pod, for who asks as it should; whose it is, is the kubelet's word, whatever the volume's attributes say.
async fn volumes(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let many = || (0..VOLUMES).map(|number| volume(&format!("slot-{number}"), &[])).collect();
    let one = |attributes: &[(&str, &str)]| vec![volume("slot", attributes)];
    let writable = || {
        let mut volume = volume("slot", &[]);
        volume.csi.iter_mut().for_each(|csi| csi.read_only = None);
        vec![volume]
    };
    let refused: [(&str, bool, Vec<Volume>, &str); 4] = [
        ("many", true, many(), "the pod has a slot already, as volume"),
        (
            "attributes",
            true,
            one(&[("slots", "1000")]),
            "the attribute \"slots\", which gpu-handoff.io does not know",
        ),
        ("writable", true, writable(), "the volume is not read-only"),
        ("unnamed", false, one(&[]), "names no group: annotate it with `gpu-handoff.io/group: NAME`"),
    ];
    for (name, annotated, volumes, _) in refused.clone() {
        let change = |pod: &mut Pod| {
            add_volumes(pod, volumes);
            if annotated {
                annotate(pod, ANNOTATION, INTRUDERS);
            }
        };
        scene.make_changed(idle(name), change).await?;
    }
    for (name, _, _, words) in refused {
        let said = scene.reads(name, words).await?;
        bystanders.are_not_in(&said)?;
    }
    // One that says that it is another's.
    let uid = scene.uid(PRODUCER).await?;
    let of_another = [
        ("csi.storage.k8s.io/pod.uid", uid.as_str()),
        ("csi.storage.k8s.io/pod.name", PRODUCER),
        ("csi.storage.k8s.io/serviceAccount.name", "default"),
        ("csi.storage.k8s.io/ephemeral", "true"),
    ];
    let change = |pod: &mut Pod| {
        add_volumes(pod, vec![volume("slot", &of_another)]);
        annotate(pod, ANNOTATION, INTRUDERS);
    };
    scene.make_changed(idle("another"), change).await?;
    scene.runs("another", TOLD).await?;
    let said = scene.exec("another", &["intruder", "knock", "/volumes/slot"]).await?;
    ensure!(said == format!("welcome {0}/another of {0}/{INTRUDERS}\n", scene.namespace), "{said}");
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}

/// Has a program of the user's own in the place of the sidecar.
fn replace_sidecar(pod: &mut Pod, command: &[&str]) {
    let init = pod.spec.iter_mut().flat_map(|spec| spec.init_containers.iter_mut().flatten());
    let replace = |container: &mut Container| {
        container.image = Some(IMAGE.to_owned());
        container.command = Some(command.iter().map(|&word| word.to_owned()).collect());
        (container.args, container.startup_probe) = (None, None);
        let shared = VolumeMount {
            name: SHARED.to_owned(),
            mount_path: SHARED_AT.to_owned(),
            ..VolumeMount::default()
        };
        container.volume_mounts.get_or_insert_default().push(shared);
    };
    init.filter(|container| container.name == SIDECAR).for_each(replace);
}

/// It hands on its own pod's connections, and nobody else's.
async fn own_sidecar(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let at = format!("{SHARED_AT}/door");
    let door = ["intruder", "door", SLOT_AT, &at];
    scene.make_changed(idle("doorkeeper").member(INTRUDERS), |pod| replace_sidecar(pod, &door)).await?;
    scene.runs("doorkeeper", TOLD).await?;
    let socket = scene.shared().join("door");
    look_until(TOLD, "the door is open", async || Ok(socket.exists().then_some(()))).await?;
    let knock = ["intruder", "hello", "--socket", &at];
    let own = scene.exec("doorkeeper", &knock).await?;
    let wanted = format!("welcome {0}/doorkeeper of {0}/{INTRUDERS}\n", scene.namespace);
    ensure!(own == wanted, "its own pod's: {own}");
    let lured = scene.exec(PRODUCER, &knock).await?;
    ensure!(lured.starts_with("refused: PEER_UNKNOWN"), "another pod's: {lured}");
    ensure!(
        !lured.contains("doorkeeper") && !lured.contains(INTRUDERS),
        "it tells whose door it is: {lured}"
    );
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}

/// A sidecar that asks for more than can be answered keeps nobody else waiting.
async fn storm(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let alone = slowest_round(&mut bystanders).await?;
    let storm = ["intruder", "storm", SLOT_AT];
    scene.make_changed(idle("storm").member(INTRUDERS), |pod| replace_sidecar(pod, &storm)).await?;
    scene.runs("storm", TOLD).await?;
    let log = LogParams { container: Some(SIDECAR.to_owned()), ..LogParams::default() };
    let pods = scene.all::<Pod>();
    look_until(TOLD, "it storms", async || {
        Ok(pods.logs("storm", &log).await?.contains("storming").then_some(()))
    })
    .await?;
    let beside = slowest_round(&mut bystanders).await?;
    eprintln!(
        "hostile: of {ROUNDS} rounds the slowest took {} ms before a storm, {} ms beside it",
        alone.as_millis(),
        beside.as_millis()
    );
    ensure!(beside < ROUND, "a round of others took {beside:?}");
    // Newcomers are let in, too.
    scene.start(agent("newcomer", gpu()).member(GROUP)).await?;
    let mut newcomer = scene.app("newcomer").await?;
    members::connect(scene, &mut newcomer, "newcomer", GROUP).await?;
    Ok(Outcome::Done)
}

async fn slowest_round(bystanders: &mut Bystanders) -> anyhow::Result<Duration> {
    let mut slowest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        bystanders.go_on().await?;
        slowest = slowest.max(begin.elapsed());
    }
    Ok(slowest)
}

/// What a member of the group gives away outside of it, its own memory's owner cannot take back; but published by another it is that
/// one's buffer, in that one's group, and ends with it.
async fn anothers_memory(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let at = format!("{SHARED_AT}/leak");
    let fence = Plan::new("fence", gpu(), &["intruder", "fence", BUFFER, &at]);
    let leak = ["intruder", "leak", BUFFER, &at];
    let (started, leaked) = tokio::join!(scene.start(fence.member(INTRUDERS)), scene.exec(CONSUMER, &leak));
    started?;
    leaked?;
    let pods = scene.all::<Pod>();
    let log = LogParams { container: Some(crate::plan::APP.to_owned()), ..LogParams::default() };
    let said = look_until(TOLD, "it has published", async || {
        Ok(pods.logs("fence", &log).await?.lines().next().map(str::to_owned))
    });
    let said = said.await?;
    let fenced = said.strip_prefix("published ").with_context(|| format!("the fence says {said}"))?;
    ensure!(fenced != bystanders.buffer, "it has the other's id");
    // Under the same name each group has its own.
    scene.start(agent("customer", gpu()).member(INTRUDERS)).await?;
    let mut customer = scene.app("customer").await?;
    members::connect(scene, &mut customer, "customer", INTRUDERS).await?;
    let bought = members::acquire(&mut customer, By::Name(BUFFER.to_owned()), "l").await?;
    ensure!(matches!(&bought, Answer::Acquired { id, .. } if id == fenced), "{bought:?}");
    members::is_not_there(&mut customer, By::Id(bystanders.buffer.clone())).await?;
    members::is_not_there(&mut bystanders.producer, By::Id(fenced.to_owned())).await?;
    let again = members::acquire(&mut bystanders.consumer, By::Name(BUFFER.to_owned()), "again").await?;
    ensure!(matches!(&again, Answer::Acquired { id, .. } if *id == bystanders.buffer), "{again:?}");
    members::release(&mut bystanders.consumer, "again").await?;
    // It ends with who published it, and the owner's does not.
    members::release(&mut customer, "l").await?;
    let uid = scene.uid("fence").await?;
    pods.delete("fence", &DeleteParams::default()).await?;
    await_in(&pods, "fence", "the fence is gone", TOLD, conditions::is_deleted(&uid)).await?;
    members::is_not_there(&mut customer, By::Name(BUFFER.to_owned())).await?;
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}

/// Annotations as large as the API server takes, ours and others', and larger ones, which it does not take.
async fn annotations(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let mut bystanders = Bystanders::start(scene).await?;
    let slot = || vec![volume("slot", &[])];
    let large = |key: &str, annotations: &BTreeMap<String, String>| {
        let others: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        "x".repeat(ANNOTATIONS_BYTES - key.len() - others)
    };
    // Ours: the pod's owner is told, in few words.
    let change = |pod: &mut Pod| {
        add_volumes(pod, slot());
        annotate(pod, ANNOTATION, &large(ANNOTATION, &BTreeMap::new()));
    };
    scene.make_changed(idle("ours"), change).await?;
    // Another's: the pod takes part.
    let change = |pod: &mut Pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        let value = large("example.com/large", annotations);
        annotations.insert("example.com/large".to_owned(), value);
    };
    for name in ["large-1", "large-2", "large-3"] {
        scene.make_changed(agent(name, gpu()).member(GROUP), change).await?;
    }
    // More than that is nobody's.
    let mut huge = idle("huge").pod_in(&scene.namespace)?;
    annotate(&mut huge, ANNOTATION, &"x".repeat(1 << 20));
    let made = scene.all::<Pod>().create(&PostParams::default(), &huge).await;
    let refused = matches!(&made, Err(kube::Error::Api(status)) if status.message.contains("annotations"));
    ensure!(refused, "1 MiB of annotations: {made:?}");
    let said = scene.reads("ours", DRIVER).await?;
    ensure!(said.len() < 2_048 && said.contains("group"), "{} bytes: {said}", said.len());
    bystanders.are_not_in(&said)?;
    for name in ["large-1", "large-2", "large-3"] {
        scene.runs(name, TOLD).await?;
        let mut app = scene.app(name).await?;
        members::connect(scene, &mut app, name, GROUP).await?;
        let acquired = members::acquire(&mut app, By::Name(BUFFER.to_owned()), "l").await?;
        ensure!(matches!(acquired, Answer::Acquired { .. }), "{name}: {acquired:?}");
    }
    bystanders.go_on().await?;
    Ok(Outcome::Done)
}
