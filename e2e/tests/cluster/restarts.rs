//! Live buffers through restarts of the daemon and of the kubelet, and pods that are made meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use gpu_handoff_e2e::agent::Answer;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::runtime::wait::conditions::is_deleted;

use crate::ground::look_until;
use crate::members::{self, By};
use crate::plan::{Gpu, Plan};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product;
use crate::program::{App, agent};
use crate::scene::{Scene, Standard, await_in};

/// How many members there are, if not as few as these.
const MEMBERS: &str = "GPU_HANDOFF_E2E_MEMBERS";
const FEW: usize = 6;

/// Pods that are made while nobody serves them.
const NEWCOMERS: usize = 2;

/// How long they may take to run, from then on.
const COME: Duration = Duration::from_secs(120);

/// How long all members may take until they run.
const GATHERED: Duration = Duration::from_secs(300);

const NEW_WORD: u32 = 0x00AE_3A1D;
const GROUP: &str = "crowd";
const HELD: &str = "held";

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario_alone("live_buffers_outlive_restarts", Standard::Restricted, outlive),
        scenario_alone("members_that_go_while_the_daemon_is_away", Standard::Restricted, go_meanwhile),
        scenario_alone("members_recover_after_a_reboot", Standard::Restricted, reboot),
    ]
}

/// What was in the GPUs' memory is gone; who takes part does so again, without anybody's doing.
async fn reboot(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    let mut crowd = Crowd::gather(scene, crate::number(MEMBERS, FEW)?).await?;
    let before = crowd.incarnations().await?;
    let begin = Instant::now();
    scene.ground.reboot().await?;
    eprintln!("restarts: the node is ready {:.1} s after its reboot began", begin.elapsed().as_secs_f64());
    for (member, (uid, started)) in crowd.members.iter().zip(&before) {
        scene.has_started_again(&member.pod, uid, started, COME).await?;
    }
    let (uid, started) = before.last().context("no stranger")?;
    scene.has_started_again("stranger", uid, started, COME).await?;
    let after = begin.elapsed().as_secs_f64();
    eprintln!("restarts: {} members run {after:.1} s after the reboot began", crowd.members.len());
    crowd.attach().await?;
    let stale = crowd.members.iter().map(|member| member.buffer.clone()).collect();
    crowd.begin().await?;
    crowd.is_whole().await.context("after a reboot")?;
    crowd.know_none_of(stale).await
}

/// Who is deleted while the daemon is away, in order or by force, leaves no slot and no buffer to who comes afterwards.
async fn go_meanwhile(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    let mut crowd = Crowd::gather(scene, 3).await?;
    let slots = slots(scene).await?;
    product::be_away(scene.ground, true).await?;
    let left = go(scene, "member-1", None).await;
    let forced = go(scene, "member-2", Some(0)).await;
    let come = async {
        await_in(&scene.all::<Pod>(), "member-2", "its object is gone", COME, is_deleted(&forced?)).await?;
        // Of the same name, and nobody serves it yet.
        scene.make(plan("member-2", GROUP)).await
    };
    let come = come.await;
    let begin = Instant::now();
    product::be_away(scene.ground, false).await?;
    come?;
    await_in(&scene.all::<Pod>(), "member-1", "it is gone", COME, is_deleted(&left?)).await?;
    scene.runs("member-2", COME).await?;
    eprintln!("restarts: who went meanwhile was gone {:.1} s after", begin.elapsed().as_secs_f64());
    look_until(COME, "the slots of those that went are gone", async || {
        let now = self::slots(scene).await?;
        // Of who stayed, the stranger, and who came; at first those of earlier scenarios may be among them.
        Ok((now.len() == 3 && now.intersection(&slots).count() == 2).then_some(()))
    })
    .await?;
    let [stays, _, went] = &mut crowd.members[..] else { bail!("there were three members") };
    stays.app = scene.app("member-0").await?;
    went.app = scene.app("member-2").await?;
    members::connect(scene, &mut went.app, "member-2", GROUP).await?;
    for app in [&mut stays.app, &mut went.app] {
        for gone in ["member-1", "member-2"] {
            members::is_not_there(app, By::Name(gone.to_owned())).await?;
        }
    }
    members::publish(&mut went.app, "member-2", NEW_WORD).await?;
    let acquired = members::acquire(&mut stays.app, By::Name("member-2".to_owned()), "new").await?;
    ensure!(matches!(acquired, Answer::Acquired { .. }), "{acquired:?}");
    members::holds(&mut stays.app, "new", NEW_WORD).await?;
    Ok(Outcome::Done)
}

/// Deletes a pod; gives its UID.
async fn go(scene: &Scene<'_>, pod: &str, grace_period_seconds: Option<u32>) -> anyhow::Result<String> {
    let how = DeleteParams { grace_period_seconds, ..DeleteParams::default() };
    let uid = scene.uid(pod).await?;
    scene.all::<Pod>().delete(pod, &how).await?;
    Ok(uid)
}

/// The slots of the node.
async fn slots(scene: &Scene<'_>) -> anyhow::Result<BTreeSet<String>> {
    let listed = scene.ground.inside(&["ls", "/run/gpu-handoff/slots"]).await?;
    Ok(listed.lines().map(str::to_owned).collect())
}

async fn outlive(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    let mut crowd = Crowd::gather(scene, crate::number(MEMBERS, FEW)?).await?;
    crowd.is_whole().await.context("before any restart")?;

    let begin = Instant::now();
    product::delete_pod(scene.ground).await?;
    crowd.newcomers("deleted", begin).await?;
    product::serves(scene.ground).await?;
    crowd.has_come_through("the plugin's pod was deleted", begin).await?;

    let begin = Instant::now();
    let rolled = product::roll(scene.ground).await?;
    crowd.newcomers("rolled", begin).await?;
    product::has_rolled(scene.ground, rolled).await?;
    crowd.has_come_through("the plugin was updated", begin).await?;

    let begin = Instant::now();
    scene.ground.daemon(&["stop", "kubelet"]).await?;
    let made = crowd.make_newcomers("kubelet").await;
    scene.ground.daemon(&["start", "kubelet"]).await?;
    crowd.newcomers_run(&made?, begin).await?;
    crowd.has_come_through("the kubelet was restarted", begin).await?;
    Ok(Outcome::Done)
}

/// Members of one group, each of which has published a buffer and holds the next one's; and a member of another group.
struct Crowd<'s, 'g> {
    scene: &'s Scene<'g>,
    members: Vec<Member>,
    stranger: App,
}

struct Member {
    pod: String,
    app: App,
    buffer: String,
    word: u32,
}

impl<'s, 'g> Crowd<'s, 'g> {
    async fn gather(scene: &'s Scene<'g>, count: usize) -> anyhow::Result<Self> {
        scene.reserve(1).await?;
        scene.claim("gpu", 1).await?;
        let pods: Vec<String> = (0..count).map(|number| format!("member-{number}")).collect();
        let begin = Instant::now();
        for pod in &pods {
            scene.make(plan(pod, GROUP)).await?;
        }
        scene.make(plan("stranger", "others")).await?;
        for pod in &pods {
            scene.runs(pod, GATHERED).await?;
        }
        scene.runs("stranger", GATHERED).await?;
        eprintln!("restarts: {count} members run after {:.1} s", begin.elapsed().as_secs_f64());
        let mut members = Vec::with_capacity(count);
        for (pod, word) in pods.into_iter().zip(1..) {
            let app = scene.app(&pod).await?;
            members.push(Member { pod, app, buffer: String::new(), word });
        }
        let mut crowd = Self { scene, members, stranger: scene.app("stranger").await? };
        crowd.begin().await?;
        Ok(crowd)
    }

    /// Everybody connects, publishes, and acquires.
    async fn begin(&mut self) -> anyhow::Result<()> {
        for Member { pod, app, buffer, word } in &mut self.members {
            members::connect(self.scene, app, pod, GROUP).await?;
            *buffer = members::publish(app, pod, *word).await?;
        }
        for number in 0..self.members.len() {
            let (buffer, _) = neighbour(&self.members, number, 1);
            members::acquire(&mut self.members[number].app, By::Id(buffer), HELD).await?;
        }
        members::connect(self.scene, &mut self.stranger, "stranger", "others").await
    }

    /// Of each pod, the stranger's last: its UID, and its application's container.
    async fn incarnations(&self) -> anyhow::Result<Vec<(String, String)>> {
        let pods = self.members.iter().map(|member| member.pod.as_str()).chain(["stranger"]);
        let mut all = Vec::new();
        for pod in pods {
            all.push(self.scene.incarnation(pod).await?);
        }
        Ok(all)
    }

    /// What was before a reboot is not there, whoever asks. It would be `STALE_HANDLE`, but this node's kernel goes on, and its
    /// boot id with it.
    async fn know_none_of(&mut self, stale: Vec<String>) -> anyhow::Result<Outcome> {
        let member = self.members.first_mut().context("no members")?;
        for buffer in stale {
            for app in [&mut member.app, &mut self.stranger] {
                let refused = members::acquire(app, By::Id(buffer.clone()), "nothing").await?;
                ensure!(
                    matches!(&refused, Answer::Refused { code, .. } if code == "NOT_FOUND"),
                    "a buffer of before the reboot: {refused:?}"
                );
            }
        }
        Ok(Outcome::Done)
    }

    /// Everybody holds what it held, can acquire what there is, and nobody else can.
    async fn is_whole(&mut self) -> anyhow::Result<()> {
        for number in 0..self.members.len() {
            let ((_, held), (buffer, word)) =
                (neighbour(&self.members, number, 1), neighbour(&self.members, number, 2));
            let Member { pod, app, .. } = &mut self.members[number];
            members::holds(app, HELD, held).await.with_context(|| format!("{pod}: what it held"))?;
            members::acquire(app, By::Id(buffer), "again").await.with_context(|| format!("{pod}: anew"))?;
            members::holds(app, "again", word).await.with_context(|| format!("{pod}: what it got anew"))?;
            members::release(app, "again").await?;
        }
        for member in &self.members {
            members::is_not_there(&mut self.stranger, By::Id(member.buffer.clone())).await?;
            members::is_not_there(&mut self.stranger, By::Name(member.pod.clone())).await?;
        }
        Ok(())
    }

    async fn has_come_through(&mut self, what: &str, begin: Instant) -> anyhow::Result<()> {
        self.attach().await?;
        self.is_whole().await.with_context(|| format!("after {what}"))?;
        let (count, after) = (self.members.len(), begin.elapsed().as_secs_f64());
        eprintln!("restarts: {what}: all {count} buffers are held and had anew after {after:.1} s");
        Ok(())
    }

    /// Who speaks to applications through the kubelet loses them with it.
    async fn attach(&mut self) -> anyhow::Result<()> {
        for member in &mut self.members {
            member.app = self.scene.app(&member.pod).await?;
        }
        self.stranger = self.scene.app("stranger").await?;
        Ok(())
    }

    async fn newcomers(&self, label: &str, begin: Instant) -> anyhow::Result<()> {
        let made = self.make_newcomers(label).await?;
        self.newcomers_run(&made, begin).await
    }

    async fn make_newcomers(&self, label: &str) -> anyhow::Result<Vec<String>> {
        let pods: Vec<String> = (0..NEWCOMERS).map(|number| format!("{label}-{number}")).collect();
        for pod in &pods {
            self.scene.make(plan(pod, GROUP)).await?;
        }
        Ok(pods)
    }

    /// They run, and have what the others have.
    async fn newcomers_run(&self, pods: &[String], begin: Instant) -> anyhow::Result<()> {
        for pod in pods {
            self.scene.runs(pod, COME).await?;
            eprintln!("restarts: {pod}, made meanwhile, runs after {:.1} s", begin.elapsed().as_secs_f64());
        }
        for pod in pods {
            let mut app = self.scene.app(pod).await?;
            members::connect(self.scene, &mut app, pod, GROUP).await?;
            let first = self.members.first().context("no members")?;
            let acquired = members::acquire(&mut app, By::Name(first.pod.clone()), HELD).await?;
            ensure!(matches!(acquired, Answer::Acquired { .. }), "{pod}: {acquired:?}");
            members::holds(&mut app, HELD, first.word).await?;
        }
        Ok(())
    }
}

fn plan(pod: &str, group: &str) -> Plan {
    agent(pod, Gpu::Claim("gpu".to_owned())).restricted().member(group)
}

/// The buffer of the member that comes so many after this one, and what it is filled with.
fn neighbour(members: &[Member], number: usize, after: usize) -> (String, u32) {
    let other = &members[(number + after) % members.len()];
    (other.buffer.clone(), other.word)
}
