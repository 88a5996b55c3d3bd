//! Volumes that are on record when the daemon starts.

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::mount_bind;

use super::*;

/// Whether this process may mount; where it may not, that is said.
pub(super) fn may_mount() -> bool {
    let may = rustix::process::geteuid().is_root();
    if !may {
        assert!(std::env::var_os("GPU_HANDOFF_TESTS").is_none_or(|t| t != "all"), "this takes root");
        eprintln!("skipped: it takes root to mount");
    }
    may
}

impl Ground {
    /// A volume as an earlier life of the daemon served it, on record, whose pod sees its slot here.
    fn on_record(&mut self, id: &str, target: PathBuf) -> Volume {
        let volume = Volume { target, ..testing::volume(id) };
        self.membership.records.write(&volume).unwrap();
        volume
    }

    /// What the node does when it starts; gives the changes that it was asked for.
    async fn start(&mut self, joined: Vec<Volume>) -> Vec<&'static str> {
        for volume in joined {
            let served = Served { volume, ending: false, start: Start::of_before() };
            self.membership.volumes.insert(served.volume.id.clone(), served);
        }
        let mut asked = Vec::new();
        let node = async {
            while let Some(change) = self.done.recv().await {
                match change {
                    Change::Leave(_, asker) => asker.send(()).unwrap(),
                    other => panic!("{other:?}"),
                }
                asked.push("leave");
            }
        };
        tokio::select! {
            done = self.membership.mount_all_again() => done.unwrap(),
            () = node => {}
        }
        asked
    }
}

#[tokio::test]
async fn of_two_volumes_of_a_pod_the_one_that_it_sees_stays_and_nothing_is_left_of_the_other() {
    let mut ground = ground();
    let (seen, elsewhere) = (ground.folder("csi-2"), ground.run_dir.path().join("elsewhere"));
    for folder in [&seen, &elsewhere] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let one = ground.on_record("csi-2", seen);
    let other = ground.on_record("csi-1", elsewhere.clone());
    let third = Volume { uid: "another".parse().unwrap(), ..testing::volume("csi-3") };
    let volumes = vec![other.clone(), third.clone(), one.clone()];
    let (mut ones, others) = one_of_each_pod(volumes, &ground.membership.records);
    ones.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!((&ones, &others), (&vec![one.clone(), third], &vec![other.clone()]));
    // Where the pod sees none of them, one is as good as the other, and always the same.
    let blind = |volume: &Volume| Volume { target: "/nowhere".into(), ..volume.clone() };
    let volumes = vec![blind(&one), blind(&other)];
    assert_eq!(one_of_each_pod(volumes, &ground.membership.records).0, [blind(&other)]);

    assert!(ground.start(vec![one.clone()]).await.is_empty());
    ground.membership = ground.membership.taking_down(others);
    assert_eq!(ground.told(), ["SlotRefused"]);
    assert!(!elsewhere.exists());
    assert_eq!(ground.membership.records.read().unwrap(), [one]);
}

#[tokio::test]
async fn a_slot_that_its_pod_cannot_be_given_at_the_start_is_left_out_as_one_that_cannot_be_made() {
    let mut ground = ground();
    let there = ground.on_record("csi-1", ground.folder("csi-1"));
    let lost = ground.on_record("csi-2", ground.run_dir.path().join("no").join("such"));
    for volume in ["csi-1", "csi-2"] {
        std::fs::create_dir_all(ground.folder(volume)).unwrap();
    }
    assert_eq!(ground.start(vec![there.clone(), lost.clone()]).await, ["leave"]);
    assert!(ground.membership.volumes.keys().eq([&there.id]));
    assert!(
        matches!(&ground.waits()[..], [why] if why.contains("cannot be mounted at ")),
        "{:?}",
        ground.waits()
    );
    assert_eq!(ground.told(), ["SlotRefused"]);
    assert!(ground.membership.next_try().is_some());
}

#[tokio::test]
async fn a_slot_that_was_made_anew_is_mounted_anew_at_the_start_and_its_owner_told() {
    if !may_mount() {
        return;
    }
    let mut ground = ground();
    let volume = ground.on_record("csi-1", ground.run_dir.path().join("volume"));
    let folder = ground.folder("csi-1");
    std::fs::create_dir_all(&folder).unwrap();
    mounts::mount(&folder, &volume.target).unwrap();
    assert!(ground.start(vec![volume.clone()]).await.is_empty());
    assert_eq!(ground.told(), [""; 0], "it is as it was");
    let slots = ground.run_dir.path().join("slots");
    std::fs::rename(&slots, ground.run_dir.path().join("before")).unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    assert!(ground.start(vec![volume.clone()]).await.is_empty());
    let is_same = mounts::is_same(&folder, &volume.target).unwrap();
    mounts::unmount(&volume.target).unwrap();
    assert!(is_same);
    assert_eq!(ground.told(), ["SlotReplaced"]);
}

#[tokio::test]
async fn a_mount_that_the_daemons_end_left_half_done_is_made_whole_at_the_start() {
    if !may_mount() {
        return;
    }
    let mut ground = ground();
    let volume = ground.on_record("csi-1", ground.run_dir.path().join("volume"));
    for folder in [&ground.folder("csi-1"), &volume.target] {
        std::fs::create_dir_all(folder).unwrap();
    }
    // It was bound, and not yet made one that is only read.
    mount_bind(ground.folder("csi-1"), &volume.target).unwrap();
    let asked = ground.start(vec![volume.clone()]).await;
    let flags = statvfs(&volume.target).unwrap().f_flag;
    mounts::unmount(&volume.target).unwrap();
    assert!(asked.is_empty());
    let wanted = StatVfsMountFlags::RDONLY
        | StatVfsMountFlags::NOSUID
        | StatVfsMountFlags::NODEV
        | StatVfsMountFlags::NOEXEC;
    assert!(flags.contains(wanted), "{flags:?}");
    assert_eq!(ground.told(), [""; 0], "it is the slot that was there");
}

#[tokio::test]
async fn a_slot_that_was_not_mounted_yet_or_any_more_is_none_that_was_replaced() {
    if !may_mount() {
        return;
    }
    let mut ground = ground();
    let volume = ground.on_record("csi-1", ground.run_dir.path().join("volume"));
    std::fs::create_dir_all(ground.folder("csi-1")).unwrap();
    assert!(ground.start(vec![volume.clone()]).await.is_empty());
    let is_same = mounts::is_same(&ground.folder("csi-1"), &volume.target).unwrap();
    mounts::unmount(&volume.target).unwrap();
    assert!(is_same);
    assert_eq!(ground.told(), [""; 0]);
}
