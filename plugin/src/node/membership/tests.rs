use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use gpu_handoff_kubelet::csi::PodName;
use gpu_handoff_kubelet::pods::{ContainerFacts, ContainerKind, Phase, PodGone, Qos};

use super::*;

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

/// A membership whose changes are done as the node does them, but that nothing is mounted: a target that is the slot's own folder is
/// there already.
struct Ground {
    run_dir: tempfile::TempDir,
    membership: Membership,
    done: mpsc::Receiver<Change>,
    seen: watch::Receiver<Seen>,
}

fn ground() -> Ground {
    let run_dir = tempfile::tempdir().unwrap();
    let (changes, done) = mpsc::channel(64);
    let records = Records::open(run_dir.path()).unwrap();
    let (teller, seen) = Teller::new();
    let membership = Membership::new(changes, records, Vec::new(), teller);
    Ground { run_dir, membership, done, seen }
}

fn pod(annotations: &[(&str, &str)]) -> PodFacts {
    let container = ContainerFacts {
        name: "app".to_owned(),
        kind: ContainerKind::App,
        container_id: Some("a".repeat(64)),
        restart_count: 0,
    };
    PodFacts {
        namespace: "team".to_owned(),
        name: "producer".to_owned(),
        uid: UID.to_owned(),
        annotations: annotations
            .iter()
            .map(|(key, value)| (format!("gpu-handoff.io/{key}"), (*value).to_owned()))
            .collect(),
        labels: BTreeMap::from([("job".to_owned(), "train".to_owned())]),
        service_account: "default".to_owned(),
        host_network: false,
        host_pid: false,
        deletion: None,
        disrupted: false,
        phase: Phase::Pending,
        containers: vec![container],
        qos: Qos::BestEffort,
        truncated: false,
    }
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
    // One slot is enough.
    let second = ground.ask(ground.publish("csi-2")).await;
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
        (&[("group", "others/weights")], "of another namespace"),
    ];
    for (annotations, reason) in cases {
        let mut ground = ground();
        ground.hear(added(pod(annotations))).await;
        match ground.ask(ground.publish("csi-1")).await {
            Some(Err(Refusal::Invalid(said))) => assert!(said.contains(reason), "{said}"),
            other => panic!("{annotations:?}: {other:?}"),
        }
        assert!(Records::open(ground.run_dir.path()).unwrap().read().unwrap().is_empty());
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
