//! What is found out of a pod again, and what is not.

use super::*;
use crate::node::devices::Unknown;
use crate::node::pids::Settled;

#[tokio::test(start_paused = true)]
async fn what_may_change_is_asked_ever_more_rarely_and_what_cannot_is_not_asked_again() {
    let yet = || Some(Err(Unknown::Yet("no answer".into())));
    let for_good = || Some(Err(Unknown::ForGood("no UUID".into())));
    let known = || Some(Ok(Holds::These(vec![DeviceUuid::from_bytes([1; 16])])));
    let nobody = || Elsewhere::Pods(Vec::new());
    let alone = || Elsewhere::Pods(vec![Place { pod: "mate".into(), node: Some("node-2".into()) }]);
    // What is not known is asked for again; what is held back for being alone, too; nothing else.
    type Case = (Option<Result<Holds, Unknown>>, Elsewhere, bool);
    let cases: [Case; 5] = [
        (yet(), nobody(), true),
        (known(), alone(), true),
        (for_good(), nobody(), false),
        (for_good(), Elsewhere::Unknown("no answer".into()), false),
        (known(), nobody(), false),
    ];
    for (holds, elsewhere, may_change) in cases {
        let mut ground = asking_ground();
        ground.hear(added(ground.facts("producer", UID))).await;
        ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
        let (mut pauses, begin) = (Vec::new(), crate::pace::now());
        for _ in 0..12 {
            let found = Found { holds: holds.clone(), elsewhere: elsewhere.clone() };
            ground.membership.looked(Looked { uid: UID.into(), found }).await.unwrap();
            pauses.extend(ground.membership.next_look().map(|at| at - begin));
            ground.changes();
        }
        let wanted = if may_change { 12 } else { 0 };
        assert_eq!(pauses.len(), wanted, "{holds:?} {elsewhere:?}");
        assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= limits::DEVICES_LONGEST_PAUSE));
        if may_change {
            assert_eq!((pauses[0], pauses[11]), (limits::DEVICES_PAUSE, limits::DEVICES_LONGEST_PAUSE));
            // When the time comes, once.
            ground.membership.looks = JoinSet::new();
            ground.membership.look_again(begin + limits::DEVICES_LONGEST_PAUSE);
            ground.membership.look_again(begin + limits::DEVICES_LONGEST_PAUSE);
            assert_eq!((ground.membership.looks.len(), ground.membership.next_look()), (1, None));
        }
    }
}

#[tokio::test]
async fn who_is_held_back_by_those_that_are_here_is_not_asked_about_and_hears_of_another_survey() {
    let mut ground = asking_ground();
    let nobody = || Elsewhere::Pods(Vec::new());
    ground.takes_part("first", UID, 1, nobody()).await;
    ground.changes();
    ground.takes_part("second", OTHER, 2, nobody()).await;
    assert!(ground.changes().contains(&"held back GPU_NOT_REACHABLE".to_owned()));
    assert_eq!(ground.membership.next_look(), None);
    // The driver says more of the GPUs.
    let topology =
        Topology { gpus: [1, 2].map(|n| DeviceUuid::from_bytes([n; 16])).to_vec(), ..Topology::default() };
    ground.membership.topology = watch::channel(Some(topology)).1;
    ground.membership.weigh_all().await.unwrap();
    assert!(ground.changes().contains(&"held back NO_PEER_ACCESS".to_owned()));
}

/// Not a test of time, which a busy machine takes: it says what members of one full group cost that all hold other GPUs, the last of
/// which comes, and all of which are weighed again.
#[tokio::test]
#[ignore = "a measurement: with --ignored --nocapture"]
async fn what_a_full_group_costs() {
    for members in [limits::MEMBERS / 4, limits::MEMBERS / 2, limits::MEMBERS] {
        let mut ground = asking_ground();
        for n in 0..members {
            let uid = format!("{n:08x}-b29f-11e7-9350-020968147796");
            let mut volume = testing::volume(&format!("csi-{n}"));
            (volume.uid, volume.pod.name) = (uid.parse().unwrap(), format!("pod-{n}").parse().unwrap());
            ground.membership.pods.insert(uid.clone(), ground.facts(&format!("pod-{n}"), &uid));
            let mut gpu = [7; 16];
            gpu[..8].copy_from_slice(&n.to_be_bytes());
            let start = Start::of_holder(Holds::These(vec![DeviceUuid::from_bytes(gpu)]));
            ground.membership.volumes.insert(volume.id.clone(), Served { volume, ending: false, start });
        }
        let Ground { membership, done, .. } = &mut ground;
        let drained = async { while done.recv().await.is_some() {} };
        let measured = async {
            let begin = Instant::now();
            membership.weigh_all().await.unwrap();
            let first = begin.elapsed();
            membership.weigh_all().await.unwrap();
            let group = membership.volumes.values().next().unwrap().volume.group.clone();
            let all = begin.elapsed() - first;
            membership.weigh_held_back(&group).await.unwrap();
            (first, all, begin.elapsed() - first - all)
        };
        tokio::select! {
            (first, all, held_back) = measured => println!(
                "{members} members: {first:?} first, {all:?} again, {held_back:?} when one comes or goes"
            ),
            () = drained => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_has_numbers_of_its_own_is_let_in_when_they_are_set() {
    let mut ground = asking_ground();
    ground.hear(added(ground.facts("producer", UID))).await;
    ground.ask(ground.publish("csi-1")).await.unwrap().unwrap();
    for range in [None, Some(3)] {
        let (settled, waits) = Settled::for_test();
        ground.membership.settled = Some(waits);
        ground.membership.looks = JoinSet::new();
        ground.membership.volumes.get_mut("csi-1").unwrap().volume.range = range;
        let pod = ground.membership.pods[UID].clone();
        let begin = crate::pace::now();
        ground.membership.look_into(&pod);
        if range.is_some() {
            let early =
                tokio::time::timeout(limits::PID_PATIENCE / 2, ground.membership.looks.join_next()).await;
            assert!(early.is_err(), "they are not set");
            settled.send_if_modified(|settled| settled.insert(UID.parse().unwrap()));
        }
        ground.membership.looks.join_next().await.unwrap().unwrap();
        assert!(crate::pace::now() - begin < limits::PID_PATIENCE);
    }
    // Nobody sets them: it is not waited for ever.
    let (_never, waits) = Settled::for_test();
    ground.membership.settled = Some(waits);
    let pod = ground.membership.pods[UID].clone();
    ground.membership.look_into(&pod);
    ground.membership.looks.join_next().await.unwrap().unwrap();
}
