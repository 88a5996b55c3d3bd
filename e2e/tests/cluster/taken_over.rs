//! The broker reads what strangers send, so it is what strangers may take over: what such a broker can do, from within, on the
//! product's own manifest. Its image is e2e.local/taken-over:1, which does what files in its state folder say.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::bystanders::{Bystanders, CONSUMER};
use crate::ground::look_until;
use crate::plan::{Gpu, Plan, SLOTS_AT};
use crate::play::{Outcome, Scenario, scenario_alone};
use crate::product;
use crate::scene::{Scene, Standard};

const IMAGE: &str = "e2e.local/taken-over:1";
const SIGTERM: i32 = 15;

/// Who writes down what the broker is to do, and looks at the node's processes.
const OPERATOR: &str = "operator";

/// How long it may take until something shows, a broker's next start included.
const SHOWS: Duration = Duration::from_secs(30);

/// What the node says of any process that it does not look at, for whatever reason.
const NOT_LOOKED_AT: &str = "the process cannot be looked at";

/// How the kernel ends a process that asks for what its filter has an end for.
const BY_THE_FILTER: &str = "signal: 31";

pub(crate) fn all() -> Vec<Scenario> {
    // Alone: it is everybody's broker.
    vec![scenario_alone("a_broker_that_was_taken_over", Standard::Privileged, taken_over)]
}

async fn taken_over(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    let nodes = Api::<Node>::all(scene.client()).list(&ListParams::default()).await?;
    let images = nodes.items.iter().filter_map(|node| node.status.as_ref()?.images.as_ref()).flatten();
    if !images.filter_map(|one| one.names.as_ref()).flatten().any(|name| name == IMAGE) {
        return Ok(Outcome::NotRun(format!("no {IMAGE}: e2e/cluster/images.sh makes it")));
    }
    let bystanders = Bystanders::start(scene).await?;
    let operator = Plan::new(OPERATOR, Gpu::None, &["sleep", "86400"]);
    scene.start(operator.privileged_with_all_slots().host_pid()).await?;
    // What an earlier run had in mind.
    scene.exec(OPERATOR, &["sh", "-c", &format!("rm -f {SLOTS_AT}/state/deed-*")]).await?;
    product::install_image(scene.ground, IMAGE).await?;
    let done = attack(scene, bystanders).await;
    // In any case: the next scenario wants the product itself.
    product::install(scene.ground).await?;
    done.map(|()| Outcome::Done)
}

/// What came of a deed.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// It was refused, and the broker goes on.
    Refused,
    /// The broker has ended, and another serves.
    Ended,
}

/// A broker that is told what to do.
struct Broker<'s, 'g> {
    scene: &'s Scene<'g>,
    deeds: u32,
    deaths: usize,
}

impl Broker<'_, '_> {
    /// Has it try something, and gives what came of it.
    async fn tries(&mut self, deed: &Value) -> anyhow::Result<Came> {
        self.deeds += 1;
        let name = format!("deed-{}", self.deeds);
        let write = format!("echo '{deed}' > {SLOTS_AT}/state/{name}");
        self.scene.exec(OPERATOR, &["sh", "-c", &write]).await?;
        let about = format!("name=\"{name}\"");
        let what = format!("something came of {deed}");
        let came = look_until(SHOWS, &what, async || {
            let log = product::log(self.scene.ground).await?;
            let outcome = log.lines().find(|line| line.contains(&about) && !line.contains("tried"));
            ensure!(
                !outcome.is_some_and(|line| line.contains("DONE")),
                "a broker that was taken over can do {deed}"
            );
            let deaths = log.matches("the broker died").count();
            if deaths > self.deaths && log.matches("the broker serves").count() > deaths {
                return Ok(Some((Came::Ended, deaths)));
            }
            // Not for want of the thing.
            let denied = |line: &str| line.contains("(os error 1)") || line.contains("(os error 13)");
            ensure!(outcome.is_none_or(denied), "{deed}: {outcome:?}");
            Ok(outcome.map(|_| (Came::Refused, deaths)))
        });
        let (came, deaths) = came.await?;
        self.deaths = deaths;
        Ok(came)
    }

    /// Has it say something to the node, and gives what the log has about that: an answer, or its end.
    async fn says(&mut self, text: &str, shows: &str) -> anyhow::Result<String> {
        self.deeds += 1;
        let deed = json!({ "say": { "text": text } });
        let write = format!("echo '{deed}' > {SLOTS_AT}/state/deed-{}", self.deeds);
        self.scene.exec(OPERATOR, &["sh", "-c", &write]).await?;
        let what = format!("the node answers {text} by {shows}");
        let found = look_until(SHOWS, &what, async || {
            let log = product::log(self.scene.ground).await?;
            Ok(log.lines().rev().find(|line| line.contains(shows)).map(str::to_owned))
        });
        found.await
    }
}

async fn attack(scene: &Scene<'_>, mut bystanders: Bystanders) -> anyhow::Result<()> {
    let mut broker = Broker { scene, deeds: 0, deaths: 0 };
    let victim = process_of(scene, CONSUMER).await?;
    go_on(&mut bystanders).await?;
    let open = |path: &str, write: bool| json!({ "open": { "path": path, "write": write } });
    let connect = |path: &str| json!({ "connect": { "path": path } });
    let refused = [
        open(&format!("/proc/{victim}/root/etc/hostname"), false),
        open(&format!("/proc/{victim}/mem"), false),
        open(&format!("/proc/{victim}/mem"), true),
        open(&format!("/proc/{victim}/environ"), false),
        open("/var/run/secrets/kubernetes.io/serviceaccount/token", false),
        open("/var/lib/kubelet/pods", false),
        open("/etc/gpu-handoff/policy.yaml", false),
        open("/run/gpu-handoff/volumes", false),
        open("/dev/null", true),
        connect("/var/lib/kubelet/pod-resources/kubelet.sock"),
        connect("/var/lib/kubelet/pods-api/pods-api.sock"),
        connect("/var/lib/kubelet/device-plugins/kubelet.sock"),
        connect("/proc/1/root/run/containerd/containerd.sock"),
        connect("/proc/1/root/run/nri/nri.sock"),
        json!({ "run": { "path": "/bin/gpu-handoff-plugin" } }),
    ];
    for deed in &refused {
        let came = broker.tries(deed).await?;
        ensure!(came == Came::Refused, "{deed}: the broker has ended");
    }
    go_on(&mut bystanders).await?;
    let ending = [
        json!({ "signal": { "pid": victim, "signal": 0 } }),
        json!({ "signal": { "pid": victim, "signal": SIGTERM } }),
        json!({ "mount": { "source": "/var/lib/kubelet", "target": "/run/gpu-handoff" } }),
    ];
    for deed in &ending {
        let came = broker.tries(deed).await?;
        ensure!(came == Came::Ended, "{deed}: {came:?}");
        let log = product::log(scene.ground).await?;
        let how = log.lines().rev().find(|line| line.contains("the broker died")).unwrap_or_default();
        ensure!(how.contains(BY_THE_FILTER), "{deed}: {how}");
        go_on(&mut bystanders).await?;
    }
    ensure!(process_of(scene, CONSUMER).await? == victim, "the consumer is another process");
    says(scene, &mut broker, victim).await?;
    go_on(&mut bystanders).await
}

/// Every word that the node knows, with values that are meant to harm; and words that it does not know.
async fn says(scene: &Scene<'_>, broker: &mut Broker<'_, '_>, victim: i32) -> anyhow::Result<()> {
    let ask = |id: u32, command: Value| json!({ "ask": { "id": id, "command": command } }).to_string();
    let slot = scene.exec(OPERATOR, &["ls", &format!("{SLOTS_AT}/slots")]).await?;
    let slot = slot.split_whitespace().next().context("no slot")?;
    let nobody = "00000000-0000-0000-0000-000000000000";
    let words = [
        (json!({ "end-worker": { "worker": u64::MAX } }), "Err("),
        (json!({ "end-worker": { "worker": 0 } }), "Err("),
        (json!({ "start-worker": { "gpu": nobody } }), ""),
        (json!({ "reachable": { "slot": slot, "pid": 1, "started": 0 } }), NOT_LOOKED_AT),
        (json!({ "reachable": { "slot": slot, "pid": victim, "started": 1 } }), NOT_LOOKED_AT),
        // The policy of the cluster has it report who keeps what is over, and no more.
        (json!({ "kill": { "slot": slot, "pid": victim, "started": 1, "pidfs_inode": null } }), "Err("),
        (json!({ "kill": { "slot": slot, "pid": 1, "started": 0, "pidfs_inode": null } }), "Err("),
        (json!({ "evict": { "slot": slot } }), "Err("),
        (json!({ "evict": { "slot": "none" } }), "Err("),
        (json!({ "reachable": { "slot": "none", "pid": u32::MAX, "started": u64::MAX } }), NOT_LOOKED_AT),
    ];
    for (id, (command, wanted)) in (4_000_000_000_u32..).zip(words) {
        let told = broker.says(&ask(id, command.clone()), &format!("id={id}")).await?;
        ensure!(told.contains(wanted), "{command}: {told}");
        for secret in ["/proc/", "root", CONSUMER] {
            ensure!(!told.contains(secret), "{command}: {told}");
        }
    }
    let strange = [
        ask(7, json!({ "kill": { "slot": slot, "pid": victim, "signal": SIGTERM } })),
        ask(7, json!({ "start-program": { "path": "/bin/sh" } })),
        ask(7, json!({ "reachable": { "slot": "../..", "pid": 1, "started": 0 } })),
    ];
    for text in strange {
        let before = product::log(scene.ground).await?.matches("the broker died").count();
        broker.says(&text, "it said what a broker does not say").await?;
        look_until(SHOWS, "another broker serves", async || {
            let log = product::log(scene.ground).await?;
            let died = log.matches("the broker died").count();
            Ok((died > before && log.matches("the broker serves").count() > died).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// A process of a pod, as the node numbers it.
async fn process_of(scene: &Scene<'_>, pod: &str) -> anyhow::Result<i32> {
    let container = scene.container_number(pod).await?;
    let look = format!("grep -l {container} /proc/[0-9]*/cgroup 2>/dev/null | head -n 1");
    let found = scene.exec(OPERATOR, &["sh", "-c", &look]).await?;
    let number =
        found.trim().split('/').nth(2).with_context(|| format!("{pod} has no process: {found:?}"))?;
    Ok(number.parse()?)
}

/// The others go on, as soon as a broker is there again.
async fn go_on(bystanders: &mut Bystanders) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + SHOWS;
    loop {
        match bystanders.go_on().await {
            Err(_) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await
            }
            other => return other.context("the others, beside a broker that was taken over"),
        }
    }
}
