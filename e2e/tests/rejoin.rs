//! The broker is killed under applications of the client library that hold leases, publish and wait: with the real
//! plugin and real sidecars, on the simulator.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_e2e::agent::order::{Outcome, Step};
use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::gpu::Gpu;
use gpu_handoff_e2e::node::{Member, Node, PATIENCE, kill};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_e2e::wait;

const BYTES: u64 = 2 << 20;

struct Scene {
    node: Node,
    owner_pod: Pod,
    holder_pod: Pod,
    owner: App,
    holder: App,
}

impl Scene {
    /// A pod that publishes `kept`, and one that leases it.
    fn start() -> Self {
        let folder = Folder::find().unwrap();
        let members = ["owner", "holder"].map(|pod| Member { pod, group: "group" });
        let gpu = Arc::new(Gpu::simulated(&folder).unwrap());
        let node = Node::start(&folder, gpu, &members).unwrap();
        let pods = ["owner", "holder"].map(|name| Pod::start(&node, name, Walls::None).unwrap());
        let apps = [&pods[0], &pods[1]].map(|pod| pod.connected(&node).unwrap());
        let ([owner_pod, holder_pod], [owner, holder]) = (pods, apps);
        let mut scene = Self { node, owner_pod, holder_pod, owner, holder };
        scene.publish("kept", 0x1111_1111);
        assert!(matches!(scene.acquire("kept", "lease"), Answer::Acquired { .. }));
        scene
    }

    fn publish(&mut self, name: &str, word: u32) {
        let memory = name.to_owned();
        let fill = Command::Fill { memory: memory.clone(), bytes: BYTES, kind: MemoryKind::Vmm, word };
        assert!(matches!(self.owner.ask(&fill).unwrap(), Answer::Done { .. }));
        let published = self.owner.ask(&Command::Publish { memory, name: name.to_owned() }).unwrap();
        assert!(matches!(published, Answer::Published { .. }), "{published:?}");
    }

    fn acquire(&mut self, name: &str, lease: &str) -> Answer {
        self.holder.ask(&acquire(name, lease, 0)).unwrap()
    }

    fn kill_broker(&self) {
        kill(self.node.broker_pid().unwrap()).unwrap();
    }

    fn verify(&mut self, lease: &str, word: u32) {
        match self.holder.ask(&Command::Verify { lease: lease.to_owned(), word }).unwrap() {
            Answer::Verified { words, wrong: 0 } => assert!(words > 0),
            other => panic!("{other:?}; the plugin's log:\n{}", self.node.log()),
        }
    }

    fn state(&mut self, lease: &str) -> String {
        match self.holder.ask(&Command::LeaseState { lease: lease.to_owned() }).unwrap() {
            Answer::LeaseState { state } => state,
            other => panic!("{other:?}"),
        }
    }

    /// The lease lives on, its buffer can be leased once more and be retired, and its owner is still its owner.
    fn check(mut self) {
        let again = self.acquire("kept", "again");
        assert!(
            matches!(again, Answer::Acquired { .. }),
            "{again:?}; the plugin's log:\n{}",
            self.node.log()
        );
        self.verify("lease", 0x1111_1111);
        self.verify("again", 0x1111_1111);
        assert_eq!(self.state("lease"), "held");
        let done = self.holder.ask(&Command::Release { lease: "again".to_owned() }).unwrap();
        assert!(matches!(done, Answer::Done { .. }), "{done:?}");
        let retired =
            self.owner.ask(&Command::Retire { name: "kept".to_owned(), deadline_ms: 60_000 }).unwrap();
        assert!(matches!(retired, Answer::Retired { leases: 1 }), "{retired:?}");
        wait::until(PATIENCE, "the holder hears of it", || Ok((self.state("lease") != "held").then_some(())))
            .unwrap();
    }
}

fn acquire(name: &str, lease: &str, wait_ms: u64) -> Command {
    let (name, lease) = (Some(name.to_owned()), lease.to_owned());
    Command::Acquire { name, id: None, newer_than: 0, wait_ms, lease, announce: false }
}

#[test]
fn leases_and_buffers_outlive_the_broker_again_and_again() {
    let mut scene = Scene::start();
    for round in 0..3 {
        let before = scene.node.broker_pid().unwrap();
        let begin = Instant::now();
        scene.kill_broker();
        // A call made at once waits for the next broker.
        let again = scene.acquire("kept", "next");
        assert!(
            matches!(again, Answer::Acquired { .. }),
            "{again:?}; the plugin's log:\n{}",
            scene.node.log()
        );
        eprintln!("round {round}: acquired {:?} after the broker was killed", begin.elapsed());
        assert_ne!(scene.node.broker_pid().unwrap(), before);
        scene.verify("next", 0x1111_1111);
        assert!(matches!(
            scene.holder.ask(&Command::Release { lease: "next".to_owned() }).unwrap(),
            Answer::Done { .. }
        ));
    }
    scene.check();
}

#[test]
fn an_acquire_that_waits_goes_on_waiting() {
    let mut scene = Scene::start();
    scene.holder.tell(&acquire("later", "later", 60_000)).unwrap();
    scene.kill_broker();
    scene.publish("later", 0x2222_2222);
    let later = scene.holder.hear().unwrap();
    assert!(matches!(later, Answer::Acquired { .. }), "{later:?}");
    scene.verify("later", 0x2222_2222);
    scene.check();
}

#[test]
fn where_the_sidecars_are_gone_too_the_owner_exports_its_memory_again() {
    let mut scene = Scene::start();
    for pod in [&scene.owner_pod, &scene.holder_pod] {
        kill(pod.sidecar_pid().unwrap()).unwrap();
    }
    scene.kill_broker();
    let Scene { node, owner_pod, holder_pod, .. } = &mut scene;
    owner_pod.revive(node, 0).unwrap();
    holder_pod.revive(node, 0).unwrap();
    scene.check();
}

#[test]
fn an_owner_with_more_buffers_than_free_descriptors_brings_them_all() {
    const COUNT: usize = 200;
    let mut scene = Scene::start();
    let model = || "model".to_owned();
    let set = Step::PublishSet { name: model(), count: COUNT, bad: None };
    let published = scene.owner.ask(&Command::Order(set)).unwrap();
    assert!(matches!(published, Answer::Order(Outcome::Number { .. })), "{published:?}");
    let before = scene.owner.leave_room(20).unwrap();
    for pod in [&scene.owner_pod, &scene.holder_pod] {
        kill(pod.sidecar_pid().unwrap()).unwrap();
    }
    scene.kill_broker();
    let Scene { node, owner_pod, holder_pod, .. } = &mut scene;
    owner_pod.revive(node, 0).unwrap();
    holder_pod.revive(node, 0).unwrap();
    scene
        .holder
        .ask(&Command::Order(Step::AcquireSet { name: model(), newer_than: 0, wait_ms: 20_000 }))
        .unwrap();
    let looked = scene.holder.ask(&Command::Order(Step::VerifySet { name: model() })).unwrap();
    let all = matches!(&looked, Answer::Order(Outcome::Looked { right, wrong: 0 }) if *right == COUNT as u64);
    assert!(all, "{looked:?}; the plugin's log:\n{}", scene.node.log());
    scene.owner.set_limit(before).unwrap();
    scene.check();
}
