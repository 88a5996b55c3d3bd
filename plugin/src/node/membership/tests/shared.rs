//! What groups share comes and goes with their members, and stands in the members' plans.

use std::os::unix::fs::MetadataExt;

use gpu_handoff_inject::{Ipc, Shm};
use gpu_handoff_sys::namespaces;

use super::*;
use crate::node::groups::testing::{apart, unheard};
use crate::node::parts::Parts;
use crate::node::parts::plan::Plan;

const POLICY: &str = "version: gpu-handoff.io/v1\nshm: {per-group: 8Mi}\n";
const EVERYTHING: (Shm, Ipc) = (Shm::Group, Ipc::Group);

/// A volume of a pod that was granted this.
fn granted(ground: &Ground, (shm, ipc): (Shm, Ipc), shm_size: Option<u64>) -> Volume {
    let parts = Parts { shm, ipc, shm_size, ..Parts::default() };
    Volume { parts, target: ground.folder("csi-1"), ..testing::volume("csi-1") }
}

/// The daemon starts, with what is on record.
async fn start(ground: &mut Ground) {
    let policy = Policy::read(POLICY).unwrap();
    ground.policy.send_replace(Arc::new(policy.clone()));
    let volumes = Records::open(ground.run_dir.path()).unwrap().read().unwrap();
    let sharers = volumes.iter().map(Volume::sharer).collect();
    // One life after the other.
    ground.membership.groups = None;
    let groups = Groups::begin(ground.run_dir.path(), sharers, &policy, Box::new(|_| None)).unwrap();
    let Membership { changes, events, policies, .. } = &ground.membership;
    let (changes, events, policies) = (changes.clone(), events.clone(), policies.clone());
    let records = Records::open(ground.run_dir.path()).unwrap();
    let membership = Membership::new(changes, events, records, volumes, policies, Teller::new().0);
    ground.membership = membership.sharing(Some(groups)).await;
}

fn plan(ground: &Ground) -> Option<Plan> {
    let plans = ground.membership.plans();
    let plans = Arc::clone(&plans.borrow());
    plans.values().next().map(|plan| plan.as_ref().clone())
}

/// How many groups share something, when all that was asked for is done.
async fn folders(ground: &Ground) -> usize {
    ground.all_is_done().await;
    std::fs::read_dir(ground.run_dir.path().join("groups")).unwrap().count()
}

#[tokio::test]
async fn a_members_plan_has_what_its_group_shares_until_it_is_gone() {
    if !apart("node::membership::tests::shared::a_members_plan_has_what_its_group_shares_until_it_is_gone") {
        return;
    }
    let mut ground = ground();
    start(&mut ground).await;
    let volume = granted(&ground, EVERYTHING, Some(1 << 20));
    ground.membership.share(&volume).await.unwrap();
    ground.membership.records.write(&volume).unwrap();
    let first = plan(&ground).unwrap();
    let (shm, ipc) = (first.shm.clone().unwrap(), first.ipc.clone().unwrap());
    assert_eq!(first.refused, None);
    assert_eq!(std::fs::metadata(&shm.path).unwrap().dev(), shm.device);
    assert_eq!(namespaces::number(&ipc.path).unwrap(), Some(ipc.inode));
    // Another life of the daemon has the same for it, before anybody can ask.
    start(&mut ground).await;
    assert_eq!(plan(&ground), Some(first));
    let (name, uid) = ("producer".to_owned(), UID.to_owned());
    let gone = PodEvent::Deleted(PodGone { namespace: "team".to_owned(), name, uid });
    let node = async {
        match ground.done.recv().await.unwrap() {
            Change::Leave(_, asker) => asker.send(()).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    tokio::join!(async { ground.membership.hear(gone).await.unwrap() }, node);
    assert_eq!((plan(&ground), folders(&ground).await), (None, 0));
}

#[tokio::test]
async fn where_groups_can_share_nothing_who_is_to_is_refused_and_others_are_not() {
    let ground = ground();
    let refused =
        ground.membership.share(&granted(&ground, (Shm::None, Ipc::Group), None)).await.unwrap_err();
    assert!(matches!(&refused, Refusal::Internal(why) if why.contains("share nothing")), "{refused}");
    assert_eq!(plan(&ground), None);
    let nothing = granted(&ground, (Shm::None, Ipc::None), None);
    ground.membership.share(&nothing).await.unwrap();
    assert_eq!(plan(&ground), Some(nothing.plan()));
}

#[tokio::test(start_paused = true)]
async fn who_shares_nothing_does_not_wait_for_what_looks_after_that() {
    let mut ground = ground();
    let (groups, busy) = unheard();
    ground.membership.groups = Some(groups);
    let nothing = granted(&ground, (Shm::None, Ipc::None), None);
    let soon = std::time::Duration::from_secs(1);
    tokio::time::timeout(soon, ground.membership.share(&nothing)).await.expect("it is busy").unwrap();
    assert_eq!(plan(&ground), Some(nothing.plan()));
    ground.membership.forget(&nothing);
    assert_eq!((plan(&ground), busy.asked()), (None, 0));
    let something = granted(&ground, EVERYTHING, None);
    let waits = tokio::time::timeout(soon, ground.membership.share(&something)).await;
    assert!(waits.is_err() && busy.asked() == 1);
    // It breaks off, and with it the node, which starts again.
    drop(busy);
    ground.membership.share(&nothing).await.unwrap();
    let changed = super::super::shared::changed(&mut ground.membership.groups);
    tokio::time::timeout(soon, changed).await.expect("it is told").unwrap_err();
}

#[tokio::test]
async fn what_may_not_be_shared_or_cannot_be_is_said_and_leaves_nothing() {
    if !apart(
        "node::membership::tests::shared::what_may_not_be_shared_or_cannot_be_is_said_and_leaves_nothing",
    ) {
        return;
    }
    let mut ground = ground();
    start(&mut ground).await;
    let large = granted(&ground, EVERYTHING, Some(1 << 60));
    let refused = ground.membership.share(&large).await.unwrap_err();
    assert!(matches!(&refused, Refusal::NoSlot(why) if why.starts_with("refused: QUOTA_SHM")), "{refused}");
    assert_eq!((plan(&ground), folders(&ground).await), (None, 0));
    // Where its folder cannot be made.
    let volume = granted(&ground, EVERYTHING, None);
    let groups = ground.run_dir.path().join("groups");
    std::fs::remove_dir(&groups).unwrap();
    let refused = ground.membership.share(&volume).await.unwrap_err();
    assert!(matches!(&refused, Refusal::Internal(why) if why.contains("No such file")), "{refused}");
    // Who was granted nothing needs nothing.
    let nothing = granted(&ground, (Shm::None, Ipc::None), None);
    ground.membership.share(&nothing).await.unwrap();
    assert_eq!(plan(&ground), Some(nothing.plan()));
    ground.membership.forget(&nothing);
    // On record, it is made as soon as that can be; until then no container of it is created.
    std::fs::create_dir(&groups).unwrap();
    ground.membership.records.write(&volume).unwrap();
    let folder = {
        ground.membership.share(&volume).await.unwrap();
        let path = plan(&ground).unwrap().shm.unwrap().path;
        path.parent().unwrap().to_path_buf()
    };
    let alone = granted(&ground, (Shm::Group, Ipc::None), None);
    ground.membership.forget(&alone);
    ground.all_is_done().await;
    assert!(!folder.exists());
    // A file where the folder is to be.
    std::fs::write(&folder, "in the way").unwrap();
    start(&mut ground).await;
    let refused = plan(&ground).unwrap().refused.unwrap();
    assert_eq!(refused.code(), Code::NotAdjusted);
    std::fs::remove_file(&folder).unwrap();
    super::super::shared::changed(&mut ground.membership.groups).await.unwrap();
    ground.membership.plan_again().await;
    let made = plan(&ground).unwrap();
    assert!(made.refused.is_none() && made.shm.is_some() && made.ipc.is_some());
    ground.membership.forget(&volume);
    assert_eq!(folders(&ground).await, 0);
}
