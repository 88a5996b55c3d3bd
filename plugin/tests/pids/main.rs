//! Process numbers of members, in real PID namespaces, set by the real program.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

mod pods;
mod seeding;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpu_handoff_plugin::limits;
use gpu_handoff_plugin::node::pids::watch::Told;
use gpu_handoff_plugin::node::pids::{Members, Pids, Settled};
use gpu_handoff_protocol::Code;
use tokio::time::timeout;

use pods::{Pod, Registry, available};

/// The program whose mode sets the numbers.
const PROGRAM: &str = env!("CARGO_BIN_EXE_gpu-handoff-plugin");
/// Within which something comes about, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Members of a node.
const PODS: usize = 50;

/// A node's members, and who sees to their numbers.
struct Ground<W> {
    pids: Pids<W>,
    settled: Settled,
    members: Members,
    told: Vec<Told>,
}

impl<W: Fn(u32) -> Option<gpu_handoff_plugin::identity::cgroup::InPod> + Send + 'static> Ground<W> {
    fn new(whose: W) -> Self {
        let (pids, settled) = Pids::new(PROGRAM, whose).unwrap();
        Self { pids, settled, members: Members::new(), told: Vec::new() }
    }

    /// Goes on until it is so.
    async fn until(&mut self, what: &str, mut is_so: impl AsyncFnMut(&Settled, &[Told]) -> bool) {
        let begin = Instant::now();
        loop {
            self.told.extend(self.pids.turn(&self.members).await.unwrap());
            if is_so(&self.settled, &self.told).await {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {:?}", self.told);
            // As the node does it.
            let _ = timeout(limits::PIDS_PAUSE, self.pids.next()).await;
        }
    }

    /// Goes on until all that there are have their numbers.
    async fn until_settled(&mut self) {
        let all: BTreeSet<_> = self.members.keys().cloned().collect();
        self.until("all have their numbers", async move |settled, _| settled.now().is_superset(&all)).await;
    }
}

#[tokio::test]
async fn fifty_members_have_different_numbers_through_a_loop_of_processes_and_restarts() {
    if !available("fifty_members_have_different_numbers_through_a_loop_of_processes_and_restarts") {
        return;
    }
    let registry = Registry::default();
    let mut ground = Ground::new(registry.whose());
    let mut pods: Vec<Pod> = (0..PODS).map(|index| Pod::new(&registry, index)).collect();
    ground.members = pods.iter().map(Pod::member).collect();
    ground.until_settled().await;
    let start = |pods: &mut [Pod]| -> Vec<u32> { pods.iter_mut().map(Pod::start_gpu_process).collect() };
    let mut numbers = start(&mut pods);
    // Each in its own range, of which each lies after the one before.
    let differ = |numbers: &[u32]| assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    differ(&numbers);
    // A loop in one of them, that uses more numbers than the widest range has, and each second a process in another.
    let mut looping = pods[0].begin("i=0; while [ $i -lt 20000 ]; do (:); i=$((i+1)); done");
    let mut probed = Instant::now();
    let probe = &mut pods[1];
    ground
        .until("the loop ends", async |_, _| {
            if probed.elapsed() > Duration::from_secs(1) {
                probed = Instant::now();
                probe.run("(:)");
            }
            looping.has_ended()
        })
        .await;
    drop(looping);
    // Each container is started again: those that go, and those that come.
    for round in 0..3 {
        for pod in &mut pods {
            pod.end_gpu_process();
        }
        numbers = start(&mut pods);
        differ(&numbers);
        ground.until(&format!("round {round}"), async |_, _| true).await;
    }
    // And a whole pod: another namespace.
    let before = pods[7].namespace();
    pods[7] = Pod::new(&registry, 7);
    assert_ne!(pods[7].namespace(), before);
    let seventh = pods[7].namespace();
    ground
        .until("the new namespace goes on with its numbers", async |_, _| pods[7].next_number() > 1_000)
        .await;
    assert_eq!(pods[7].namespace(), seventh);
    numbers[7] = pods[7].start_gpu_process();
    differ(&numbers);
    ground.until("a further look", async |_, _| true).await;
    let is_equal = |told: &&Told| told.refusal.compared()[0].what == "process number";
    let equal: Vec<_> = ground.told.iter().filter(is_equal).collect();
    assert!(equal.is_empty(), "{equal:?}");
}

#[tokio::test]
async fn who_has_the_number_of_another_is_told_and_so_is_the_other() {
    if !available("who_has_the_number_of_another_is_told_and_so_is_the_other") {
        return;
    }
    let registry = Registry::default();
    let mut ground = Ground::new(registry.whose());
    let mut pods: Vec<Pod> = (0..2).map(|index| Pod::new(&registry, index)).collect();
    ground.members = pods.iter().map(Pod::member).collect();
    // As the main process of a container with a PID namespace of its own.
    pods.iter_mut().for_each(Pod::use_gpu_itself);
    ground.until("both are told", async |_, told| told.len() >= 2).await;
    assert!(ground.told.iter().all(|told| told.refusal.code() == Code::PidCollision), "{:?}", ground.told);
    let whom: BTreeSet<_> = ground.told.iter().map(|told| told.uid.clone()).collect();
    assert_eq!(whom, ground.members.keys().cloned().collect());
    let said = ground.told[0].refusal.to_string();
    assert!(said.contains("1 of a process in container") && said.contains("of pod n/pod-"), "{said}");
}

#[tokio::test]
async fn who_makes_a_namespace_within_the_pods_own_has_the_number_that_it_has_there() {
    if !available("who_makes_a_namespace_within_the_pods_own_has_the_number_that_it_has_there") {
        return;
    }
    let registry = Registry::default();
    let mut pods: Vec<Pod> = (0..2).map(|index| Pod::new(&registry, index)).collect();
    let whose = registry.whose();
    let nested: Vec<u32> = pods.iter_mut().map(Pod::start_nested_gpu_process).collect();
    let places = [0, 1].map(Registry::place);
    // What is nested is in its pod's groups as well.
    let mut ground = Ground::new(move |pid| {
        let of_nested = nested.iter().position(|one| *one == pid).map(|index| places[index].clone());
        of_nested.or_else(|| whose(pid))
    });
    ground.members = pods.iter().map(Pod::member).collect();
    ground.until("both are told", async |_, told| told.len() >= 2).await;
    let said = ground.told[0].refusal.to_string();
    assert!(said.contains("found 1 of a process in container"), "{said}");
    // The pods' own namespaces have their numbers, and those within are left as they are.
    ground.until_settled().await;
    assert!(pods.iter_mut().all(|pod| pod.next_number() > 500));
}

#[tokio::test]
async fn a_namespace_that_is_not_a_pods_alone_is_left_as_it_is() {
    if !available("a_namespace_that_is_not_a_pods_alone_is_left_as_it_is") {
        return;
    }
    let registry = Registry::default();
    let mut pod = Pod::new(&registry, 0);
    let (uid, member) = pod.member();
    let (guest, place) = (Registry::uid(1), Registry::place(1));
    pod.start_gpu_process();
    let (whose, first) = (registry.whose(), pod.pid());
    // One of its processes is another pod's.
    let mut ground =
        Ground::new(move |pid| whose(pid).map(|own| if pid == first { own } else { place.clone() }));
    ground.members = [(uid.clone(), member.clone()), (guest.clone(), member)].into();
    ground.until("both are told", async |_, told| told.len() >= 2).await;
    let said = ground.told[0].refusal.to_string();
    assert!(said.contains("processes of another pod are in the same PID namespace"), "{said}");
    assert!(pod.next_number() < 1_000);
}
