//! What could not be done, and is tried again.

use super::*;

impl Ground {
    /// Tries again what is to be tried next, the node doing this for each change, and gives the changes that it was asked for.
    async fn try_next(&mut self, joins: bool) -> Vec<&'static str> {
        let at = self.membership.next_try().unwrap();
        let mut asked = Vec::new();
        let node = async {
            loop {
                match self.done.recv().await.unwrap() {
                    Change::Join(_, asker) => {
                        asked.push("join");
                        let outcome =
                            if joins { Ok(PathBuf::new()) } else { Err(JoinError::NoSlot { limit: 1 }) };
                        asker.send(outcome).unwrap();
                    }
                    Change::Leave(_, asker) => {
                        asked.push("leave");
                        asker.send(()).unwrap();
                    }
                    Change::Containers(..) => asked.push("containers"),
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::select! {
            biased;
            () = node => {}
            done = self.membership.try_again(at) => done.unwrap(),
        }
        asked.extend(std::iter::from_fn(|| self.done.try_recv().ok()).map(|change| match change {
            Change::Containers(..) => "containers",
            other => panic!("{other:?}"),
        }));
        asked
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_cannot_be_taken_down_stays_on_record_and_is_tried_again() {
    let mut ground = ground();
    ground.hear(added(pod(&[("group", "g")]))).await;
    ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
    // What somebody put there is in the way.
    let target = ground.folder("csi-1");
    std::fs::write(target.join("in the way"), "").unwrap();
    let gone =
        PodEvent::Deleted(PodGone { namespace: "team".into(), name: "producer".into(), uid: UID.into() });
    let left = async {
        match ground.done.recv().await.unwrap() {
            Change::Leave(_, asker) => asker.send(()).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let (done, ()) = tokio::join!(ground.membership.hear(gone), left);
    done.unwrap();
    let records = Records::open(ground.run_dir.path()).unwrap();
    let begin = crate::pace::now();
    let mut pauses = vec![ground.membership.next_try().unwrap() - begin];
    for _ in 0..12 {
        assert_eq!(records.read().unwrap().len(), 1, "the daemon's next life would know of it");
        assert!(ground.try_next(true).await.is_empty());
        pauses.push(ground.membership.next_try().unwrap() - begin);
    }
    assert!(pauses.is_sorted());
    assert_eq!((pauses[0], pauses[12]), (limits::UNDONE_PAUSE, limits::UNDONE_LONGEST_PAUSE));
    std::fs::remove_file(target.join("in the way")).unwrap();
    ground.try_next(true).await;
    assert!(!target.exists() && records.read().unwrap().is_empty());
    assert_eq!(ground.membership.next_try(), None);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_left_out_is_told_of_and_joins_when_it_can() {
    let mut ground = ground();
    let mut bad = testing::volume("csi-1");
    bad.target = ground.folder("csi-1");
    Records::open(ground.run_dir.path()).unwrap().write(&bad).unwrap();
    ground.membership = ground.membership.leaving_out(vec![(bad.clone(), "no room".into())]);
    assert_eq!(ground.told(), ["SlotRefused"]);
    assert_eq!(ground.waits(), ["no room"]);
    ground.hear(added(pod(&[("group", "g")]))).await;
    assert_eq!(ground.try_next(false).await, ["join"]);
    assert!(
        ground.membership.volumes.is_empty() && ground.waits()[0].contains("slots"),
        "{:?}",
        ground.waits()
    );
    // A slot that the pod does not see is none.
    assert_eq!(ground.try_next(true).await, ["join", "leave"]);
    assert!(ground.waits()[0].contains("cannot be mounted at "), "{:?}", ground.waits());
    std::fs::create_dir_all(&bad.target).unwrap();
    assert_eq!(ground.try_next(true).await, ["join", "containers"]);
    assert_eq!((ground.waits().len(), ground.membership.next_try()), (0, None));
    assert_eq!((served_volume(&ground).id.as_str(), ground.told().len()), (bad.id.as_str(), 0));
    // What the kubelet takes down is not tried again.
    ground.membership.volumes.clear();
    ground.membership = ground.membership.leaving_out(vec![(bad.clone(), "no room".into())]);
    let unpublish = Unpublish { volume: bad.id.clone(), pod_uid: UID.into(), target: "/nowhere".into() };
    ground.membership.unpublish(&unpublish).await.unwrap().unwrap();
    assert_eq!(ground.membership.next_try(), None);
    assert!(Records::open(ground.run_dir.path()).unwrap().read().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_another_than_is_mounted_is_mounted_anew_and_its_owner_told() {
    if !again::may_mount() {
        return;
    }
    let mut ground = ground();
    let mut bad = testing::volume("csi-1");
    bad.target = ground.run_dir.path().join("volume");
    let folder = ground.folder("csi-1");
    let [before, slots] = ["before", "slots"].map(|name| ground.run_dir.path().join(name));
    std::fs::create_dir_all(&folder).unwrap();
    mounts::mount(&folder, &bad.target).unwrap();
    // Somebody has moved the slots away, and their folder is made again.
    std::fs::rename(&slots, &before).unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    assert!(!mounts::is_same(&folder, &bad.target).unwrap());
    ground.membership = ground.membership.leaving_out(vec![(bad.clone(), "no room".into())]);
    assert_eq!(ground.try_next(true).await, ["join"]);
    let (is_same, told) = (mounts::is_same(&folder, &bad.target).unwrap(), ground.told());
    mounts::unmount(&bad.target).unwrap();
    assert!(is_same);
    assert_eq!(told, ["SlotRefused", "SlotReplaced"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_one_volume_of_which_waits_for_its_slot_gets_no_other() {
    let mut ground = ground();
    ground.membership = ground.membership.leaving_out(vec![(testing::volume("csi-1"), "no room".into())]);
    ground.hear(added(pod(&[("group", "g")]))).await;
    let answer = ground.ask(ground.publish("csi-2")).await.unwrap();
    assert!(
        matches!(&answer, Err(Refusal::Invalid(why)) if why.contains("has a slot already")),
        "{answer:?}"
    );
    // The kubelet asks for the one that waits.
    ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
    assert_eq!((ground.membership.volumes.len(), ground.membership.next_try()), (1, None));
}
