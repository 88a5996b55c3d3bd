use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use gpu_handoff_kubelet::csi::PodName;
use gpu_handoff_kubelet::pods::{ContainerKind, PodEvent, PodGone};
use gpu_handoff_protocol::{Code, DeviceUuid};

use super::start::Looked;
use super::testing::{UID, pod};
use super::*;
use crate::identity::cgroup::ContainerId;
use crate::limits;
use crate::members::Holds;
use crate::node::devices::{Elsewhere, Found, Place};

mod again;
mod looks;
mod plans;
mod policy;
mod shared;
mod undone;
mod unknown;

/// A membership whose changes are done as the node does them, but that nothing is mounted: a target that is the slot's own folder is
/// there already.
pub(super) struct Ground {
    run_dir: tempfile::TempDir,
    pub(super) membership: Membership,
    done: mpsc::Receiver<Change>,
    seen: watch::Receiver<Seen>,
    told: mpsc::Receiver<Notice>,
    policy: watch::Sender<Arc<Policy>>,
}

impl Ground {
    /// The reasons of what was told since.
    fn told(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.told.try_recv().ok()).map(|notice| notice.reason().to_owned()).collect()
    }
}

pub(super) fn ground() -> Ground {
    let run_dir = tempfile::tempdir().unwrap();
    let (changes, done) = mpsc::channel(64);
    let records = Records::open(run_dir.path()).unwrap();
    let (policy, policies) = watch::channel(Arc::default());
    let (teller, seen) = Teller::new();
    let (events, told) = Events::for_test();
    let membership = Membership::new(changes, events, records, Vec::new(), policies, teller);
    Ground { run_dir, membership, done, told, seen, policy }
}

impl Ground {
    fn publish(&self, volume: &str) -> Publish {
        Publish {
            volume: volume.to_owned(),
            pod: PodName { namespace: "team".into(), name: "producer".into(), uid: UID.into() },
            service_account: "default".to_owned(),
            name: "slot".to_owned(),
            target: self.folder(volume),
        }
    }

    fn folder(&self, volume: &str) -> PathBuf {
        let slot = volume::slot_of(volume).unwrap();
        self.run_dir.path().join("slots").join(slot.as_str())
    }

    /// Asks for a volume, does what the node would, and gives the answer; `None`: not yet.
    async fn ask(&mut self, publish: Publish) -> Option<Answer> {
        let (asker, mut answer) = oneshot::channel();
        let membership = &mut self.membership;
        let node = async {
            loop {
                match self.done.recv().await.unwrap() {
                    Change::Join(member, asker) => {
                        let folder = self.run_dir.path().join("slots").join(member.slot.as_str());
                        std::fs::create_dir_all(&folder).unwrap();
                        asker.send(Ok(folder)).unwrap();
                    }
                    Change::Leave(_, asker) => asker.send(()).unwrap(),
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::select! {
            done = membership.publish(publish, asker) => done.unwrap(),
            () = node => {}
        }
        answer.try_recv().ok()
    }

    /// Waits until groups have been told all that they were to be.
    async fn all_is_done(&self) {
        if let Some(groups) = &self.membership.groups {
            let (group, _, wish) = testing::volume("csi-1").sharer();
            drop(groups.shared(group, wish).await);
        }
    }

    /// Why volumes wait, as the node's status tells it.
    fn waits(&self) -> Vec<String> {
        self.seen.borrow().waiting().map(|wait| wait.why.clone()).collect()
    }

    async fn hear(&mut self, event: PodEvent) {
        self.membership.hear(event).await.unwrap();
    }
}

fn added(pod: PodFacts) -> PodEvent {
    PodEvent::Added(Box::new(pod))
}

#[tokio::test]
async fn a_pod_takes_part_when_both_the_kubelet_and_the_pod_say_so() {
    let mut ground = ground();
    // Its volume may come before anybody has told of the pod.
    assert_eq!(ground.ask(ground.publish("csi-1")).await, None);
    assert!(
        matches!(&ground.waits()[..], [why] if why.contains("is not known of yet")),
        "{:?}",
        ground.waits()
    );
    ground.hear(added(pod(&[("group", "weights")]))).await;
    assert_eq!(ground.ask(ground.publish("csi-1")).await, Some(Ok(())));
    assert_eq!((ground.waits().len(), ground.seen.borrow().known), (0, 1));
    let [served] = &ground.membership.volumes.values().collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!(served.volume.group.to_string(), "team/weights");
    // Again, and after a restart, it is the same one.
    assert_eq!(ground.ask(ground.publish("csi-1")).await, Some(Ok(())));
    let records = Records::open(ground.run_dir.path()).unwrap();
    assert_eq!(records.read().unwrap(), vec![served_volume(&ground)]);
    let mode = std::fs::metadata(ground.run_dir.path().join("volumes")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(ground.told(), ["TakesPart"]);
    // One slot is enough.
    let second = ground.ask(ground.publish("csi-2")).await;
    assert_eq!(ground.told(), ["SlotRefused"]);
    assert!(matches!(second, Some(Err(Refusal::Invalid(_)))), "{second:?}");
    assert!(matches!(&ground.waits()[..], [why] if why.contains("one is enough")), "{:?}", ground.waits());
}

fn served_volume(ground: &Ground) -> Volume {
    ground.membership.volumes.values().next().unwrap().volume.clone()
}

#[tokio::test]
async fn what_cannot_be_a_member_is_refused_with_the_reason() {
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[], "names no group"),
        (&[("group", "a"), ("group-from-label", "job")], "GROUP_AMBIGUOUS"),
        (&[("group-from-label", "none")], "GROUP_LABEL_MISSING"),
        (&[("group", "Not A Name")], "BAD_VALUE"),
        (&[("gruop", "a")], "UNKNOWN_ANNOTATION"),
        (&[("group", "others/weights")], "group: wanted one of namespace team, or a rule"),
    ];
    for (annotations, reason) in cases {
        let mut ground = ground();
        ground.hear(added(pod(annotations))).await;
        match ground.ask(ground.publish("csi-1")).await {
            Some(Err(Refusal::Invalid(said))) => assert!(said.contains(reason), "{said}"),
            other => panic!("{annotations:?}: {other:?}"),
        }
        assert!(Records::open(ground.run_dir.path()).unwrap().read().unwrap().is_empty());
        assert_eq!(ground.told(), ["SlotRefused"]);
    }
    let mut ground = ground();
    ground.hear(added(pod(&[("group-from-label", "job")]))).await;
    let mut forged = ground.publish("csi-1");
    forged.pod.name = "another".into();
    assert!(matches!(ground.ask(forged).await, Some(Err(Refusal::Invalid(_)))));
    assert_eq!(ground.ask(ground.publish("csi-1")).await, Some(Ok(())));
    assert_eq!(served_volume(&ground).group.to_string(), "team/train");
}

#[tokio::test]
async fn a_guest_of_another_namespaces_group_comes_when_the_policy_lets_it_in() {
    let mut ground = ground();
    ground.hear(added(pod(&[("group", "others/weights")]))).await;
    assert!(matches!(ground.ask(ground.publish("csi-1")).await, Some(Err(Refusal::Invalid(_)))));
    let rule = "version: gpu-handoff.io/v1\nexchange:\n- {name: guests, publish: [{namespaces: [others], groups: [weights]}], \
                acquire: [{namespaces: [team], groups: [others/weights]}]}\n";
    ground.policy.send_replace(Arc::new(Policy::read(rule).unwrap()));
    assert_eq!(ground.ask(ground.publish("csi-1")).await, Some(Ok(())));
    assert_eq!(served_volume(&ground).group.to_string(), "others/weights");
}

#[tokio::test]
async fn what_becomes_of_the_pod_is_passed_on_once() {
    let mut ground = ground();
    ground.hear(added(pod(&[("group", "g")]))).await;
    ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
    // The same as before is no news.
    ground.hear(PodEvent::Changed(Box::new(pod(&[("group", "other")])))).await;
    assert!(ground.done.try_recv().is_err());
    let mut changed = pod(&[("group", "g")]);
    changed.containers[0].container_id = Some("b".repeat(64));
    changed.deletion = Some(SystemTime::now() + Duration::from_secs(30));
    for _ in 0..2 {
        ground.hear(PodEvent::Changed(Box::new(changed.clone()))).await;
    }
    let wanted: ContainerId = "b".repeat(64).parse().unwrap();
    match ground.done.try_recv().unwrap() {
        Change::Containers(_, found) => assert_eq!(found, BTreeSet::from([wanted])),
        other => panic!("{other:?}"),
    }
    match ground.done.try_recv().unwrap() {
        Change::Ending(_, until) => {
            let left = until.saturating_duration_since(Instant::now());
            assert!(left <= Duration::from_secs(30) && left > Duration::from_secs(20), "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(ground.done.try_recv().is_err());
    assert_eq!(ground.told(), ["TakesPart", "Retiring"]);
}

#[tokio::test]
async fn what_a_pod_that_the_kubelet_ends_has_published_is_retired_at_once() {
    let mut ground = ground();
    let mut facts = pod(&[("group", "g")]);
    ground.hear(added(facts.clone())).await;
    ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
    facts.ended_by_kubelet = true;
    ground.hear(PodEvent::Changed(Box::new(facts))).await;
    assert!(matches!(ground.done.try_recv(), Ok(Change::Ending(..))));
    assert_eq!(ground.told(), ["TakesPart", "Retiring"]);
}

#[tokio::test]
async fn the_slot_of_a_pod_that_is_gone_is_taken_back() {
    for event in [
        PodEvent::Deleted(PodGone { namespace: "team".into(), name: "producer".into(), uid: UID.into() }),
        PodEvent::Synced,
    ] {
        let mut ground = ground();
        ground.hear(added(pod(&[("group", "g")]))).await;
        ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
        if event == PodEvent::Synced {
            // As after a restart: the pods are told of anew, and this one is not among them.
            ground.membership.pods.clear();
        }
        let membership = &mut ground.membership;
        let left = async {
            match ground.done.recv().await.unwrap() {
                Change::Leave(slot, asker) => asker.send(()).map(|()| slot).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let (done, slot) = tokio::join!(membership.hear(event), left);
        done.unwrap();
        assert_eq!(slot, volume::slot_of("csi-1").unwrap());
        assert!(ground.membership.volumes.is_empty());
        assert!(Records::open(ground.run_dir.path()).unwrap().read().unwrap().is_empty());
    }
}

const OTHER: &str = "3c48913c-b29f-11e7-9350-020968147796";

/// A ground on which it is found out what pods hold, by somebody who knows nothing.
fn asking_ground() -> Ground {
    let mut ground = ground();
    let asker = Asker::new("/nowhere".into(), None, "node-1".into());
    ground.membership.asker = Some(asker);
    ground
}

impl Ground {
    /// A pod takes part, whose first container is there; it holds this GPU, and its group is where it says.
    async fn takes_part(&mut self, name: &str, uid: &str, gpu: u8, elsewhere: Elsewhere) {
        let facts = self.facts(name, uid);
        self.hear(added(facts.clone())).await;
        let mut publish = self.publish(&format!("csi-{uid}"));
        (publish.pod.name, publish.pod.uid) = (name.into(), uid.into());
        self.ask(publish).await.unwrap().unwrap();
        assert!(self.done.try_recv().is_err(), "its processes are let in before it is known what it holds");
        let holds = Some(Ok(Holds::These(vec![DeviceUuid::from_bytes([gpu; 16])])));
        let looked = Looked { uid: uid.into(), found: Found { holds, elsewhere } };
        self.membership.looked(looked).await.unwrap();
    }

    /// A pod of which only the sidecar is there.
    fn facts(&self, name: &str, uid: &str) -> PodFacts {
        let mut facts = pod(&[("group", "g")]);
        (facts.name, facts.uid) = (name.into(), uid.into());
        facts.containers[0].kind = ContainerKind::Sidecar;
        facts
    }

    /// What the broker was told since: `held back CODE`, `free`, `holds`, `containers`.
    fn changes(&mut self) -> Vec<String> {
        let told = std::iter::from_fn(|| self.done.try_recv().ok());
        let word = |change| match change {
            Change::HeldBack(_, Some(with)) => format!("held back {}", with.refusal().unwrap().code()),
            Change::HeldBack(_, None) => "free".to_owned(),
            Change::Holds(..) => "holds".to_owned(),
            Change::Containers(..) => "containers".to_owned(),
            other => panic!("{other:?}"),
        };
        told.map(word).collect()
    }
}

#[tokio::test]
async fn a_pod_is_let_in_when_it_is_known_or_cannot_be_known_what_it_holds() {
    let mut ground = asking_ground();
    ground.hear(added(pod(&[("group", "g")]))).await;
    ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
    assert!(ground.done.try_recv().is_err());
    let looked = ground.membership.looks.join_next().await.unwrap().unwrap();
    ground.membership.looked(looked).await.unwrap();
    assert_eq!(ground.changes(), ["containers"], "what it reaches is what it may use, as before");
    assert!(ground.membership.next_look().is_some(), "it is asked again");
    // An answer that comes after the pod's end is of nobody.
    let gone = PodGone { namespace: "team".into(), name: "producer".into(), uid: UID.into() };
    ground.membership.pods.remove(&gone.uid);
    let found = Found { holds: Some(Ok(Holds::These(Vec::new()))), elsewhere: Elsewhere::Pods(Vec::new()) };
    ground.membership.looked(Looked { uid: UID.into(), found }).await.unwrap();
    assert_eq!(ground.changes(), Vec::<String>::new());
}

#[tokio::test]
async fn an_answer_about_a_name_that_two_pods_have_is_of_none() {
    let mut ground = asking_ground();
    let (mut before, nobody) = (ground.facts("producer", OTHER), Elsewhere::Pods(Vec::new()));
    before.deletion = Some(SystemTime::now());
    ground.hear(added(before)).await;
    ground.takes_part("producer", UID, 1, nobody).await;
    assert_eq!(ground.changes(), ["containers"]);
}

#[tokio::test]
async fn a_pod_that_can_exchange_nothing_is_held_back_until_it_can() {
    let mut ground = asking_ground();
    let nobody = || Elsewhere::Pods(Vec::new());
    ground.takes_part("first", UID, 1, nobody()).await;
    assert_eq!(ground.changes(), ["holds", "containers"]);
    ground.told();
    ground.takes_part("second", OTHER, 2, nobody()).await;
    // Before its processes are let in.
    assert_eq!(ground.changes(), ["holds", "held back GPU_NOT_REACHABLE", "containers"]);
    assert_eq!(ground.told(), ["TakesPart", "GpuNotReachable"]);
    // One with the same GPU comes.
    ground.takes_part("third", "4c48913c-b29f-11e7-9350-020968147796", 2, nobody()).await;
    assert_eq!(ground.changes(), ["holds", "free", "containers"]);
    assert_eq!(ground.told(), ["TakesPart", "MayStart"]);
}

#[tokio::test]
async fn who_says_so_starts_all_the_same_and_who_runs_is_not_held_back() {
    let elsewhere = || Elsewhere::Pods(vec![Place { pod: "mate".into(), node: Some("node-2".into()) }]);
    type Case<'a> = (&'a [(&'a str, &'a str)], ContainerKind, bool);
    let cases: [Case<'_>; 5] = [
        (&[("group", "g")], ContainerKind::Sidecar, true),
        (&[("group", "g"), ("on-failure", "start")], ContainerKind::Sidecar, false),
        (&[("group", "g"), ("colocate", "preferred")], ContainerKind::Sidecar, false),
        (&[("group", "g"), ("colocate", "none")], ContainerKind::Sidecar, false),
        (&[("group", "g")], ContainerKind::App, false),
    ];
    for (annotations, kind, is_held_back) in cases {
        let mut ground = asking_ground();
        let mut facts = pod(annotations);
        facts.containers[0].kind = kind;
        ground.hear(added(facts)).await;
        ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
        let found = Found { holds: Some(Ok(Holds::These(Vec::new()))), elsewhere: elsewhere() };
        ground.membership.looked(Looked { uid: UID.into(), found }).await.unwrap();
        assert_eq!(ground.told(), ["TakesPart", "NoPeerOnNode"], "{annotations:?}");
        let held_back = ground.changes().contains(&format!("held back {}", Code::NoPeerOnNode));
        assert_eq!(held_back, is_held_back, "{annotations:?}");
    }
}

#[tokio::test]
async fn what_an_earlier_life_of_the_daemon_let_in_does_not_wait_and_what_it_held_back_does() {
    for (kind, is_let_in) in [(ContainerKind::App, true), (ContainerKind::Sidecar, false)] {
        let mut ground = asking_ground();
        let mut facts = pod(&[("group", "g")]);
        facts.containers[0].kind = kind;
        ground.hear(added(facts.clone())).await;
        ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
        // As its record is read by the next life.
        ground.membership.volumes.values_mut().for_each(|served| served.start = Start::of_before());
        ground.hear(PodEvent::Changed(Box::new(facts))).await;
        assert_eq!(ground.changes() == ["containers"], is_let_in, "{kind:?}");
        assert!(!ground.membership.looks.is_empty(), "it is found out in any case");
    }
}
