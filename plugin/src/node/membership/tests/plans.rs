//! The plans are those of the volumes on record, whatever happens and in whatever order.

use std::os::unix::fs::MetadataExt;

use gpu_handoff_inject::{Devices, Ipc, Pids, Profile, Shm};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::node::groups::OnRecord;
use crate::node::groups::testing::apart;
use crate::node::parts::{Parts, Plan};

const UIDS: [&str; 3] = [UID, "3c48913c-b29f-11e7-9350-020968147796", "4c48913c-b29f-11e7-9350-020968147796"];

#[derive(Debug, Clone)]
enum Step {
    /// A pod is told of.
    Comes(usize),
    /// The kubelet wants a volume of a pod; it can be mounted, or not.
    Publish { pod: usize, volume: usize, mountable: bool, joins: bool },
    /// Its target cannot be removed from now on.
    Obstruct { pod: usize, volume: usize },
    /// The kubelet takes it down.
    Unpublish { pod: usize, volume: usize },
    /// A pod is gone.
    Gone(usize),
    /// All pods have been told of.
    Synced,
    /// What is to be tried again is tried.
    Again { joins: bool },
    /// The daemon ends, maybe in the middle of a volume that is wanted, and starts again. What is on record was granted this; of the
    /// volumes whose slots are made again, those with a bit here are not.
    Restart { amid: Option<(usize, usize)>, parts: Parts, left_out: u8 },
}

fn parts() -> impl Strategy<Value = Parts> {
    let shm = prop_oneof![Just(Shm::None), Just(Shm::Group)];
    let ipc = prop_oneof![Just(Ipc::None), Just(Ipc::Group)];
    let pids = prop_oneof![Just(Pids::Own), Just(Pids::Distinct)];
    let profile = proptest::sample::select(Profile::ALL);
    let devices = proptest::sample::select(Devices::ALL);
    let sizes = (any::<Option<u64>>(), any::<Option<u32>>());
    (profile, shm, ipc, pids, devices, sizes).prop_map(
        |(profile, shm, ipc, pids, devices, (shm_size, group_size))| Parts {
            profile,
            shm,
            shm_size,
            ipc,
            pids,
            devices,
            group_size,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (pod, volume) = (0..UIDS.len(), 0..2_usize);
    let which = || (pod.clone(), volume.clone());
    let step = prop_oneof![
        2 => pod.clone().prop_map(Step::Comes),
        4 => (which(), prop::bool::weighted(0.8), prop::bool::weighted(0.9)).prop_map(
            |((pod, volume), mountable, joins)| Step::Publish { pod, volume, mountable, joins }
        ),
        1 => which().prop_map(|(pod, volume)| Step::Obstruct { pod, volume }),
        2 => which().prop_map(|(pod, volume)| Step::Unpublish { pod, volume }),
        2 => pod.clone().prop_map(Step::Gone),
        1 => Just(Step::Synced),
        2 => any::<bool>().prop_map(|joins| Step::Again { joins }),
        2 => (proptest::option::of(which()), parts(), any::<u8>())
            .prop_map(|(amid, parts, left_out)| Step::Restart { amid, parts, left_out }),
    ];
    proptest::collection::vec(step, 1..32)
}

/// The node, which does what it is asked while this is done.
async fn done_by<T>(
    done: &mut mpsc::Receiver<Change>,
    slots: PathBuf,
    joins: bool,
    work: impl Future<Output = T>,
) -> T {
    let node = async {
        loop {
            match done.recv().await.unwrap() {
                Change::Join(member, asker) => {
                    let folder = slots.join(member.slot.as_str());
                    std::fs::create_dir_all(&folder).unwrap();
                    drop(asker.send(if joins { Ok(folder) } else { Err(JoinError::NoSlot { limit: 1 }) }));
                }
                Change::Leave(_, asker) => drop(asker.send(())),
                _ => {}
            }
        }
    };
    tokio::select! { done = work => done, () = node => unreachable!("the node goes on") }
}

impl Ground {
    fn wanted(&self, pod: usize, volume: usize, mountable: bool) -> Publish {
        let mut publish = self.publish(&format!("csi-{pod}-{volume}"));
        (publish.pod.name, publish.pod.uid) = (format!("pod-{pod}"), UIDS[pod].into());
        if !mountable {
            publish.target = self.run_dir.path().join("nowhere/slot");
        }
        publish
    }

    async fn step(&mut self, step: Step) {
        let slots = self.run_dir.path().join("slots");
        match step {
            Step::Comes(pod) => {
                let mut facts = testing::pod(&[("group", "g")]);
                (facts.name, facts.uid) = (format!("pod-{pod}"), UIDS[pod].into());
                let work = self.membership.hear(added(facts));
                done_by(&mut self.done, slots, true, work).await.unwrap();
            }
            Step::Publish { pod, volume, mountable, joins } => {
                let (asker, _answer) = oneshot::channel();
                let publish = self.wanted(pod, volume, mountable);
                let work = self.membership.publish(publish, asker);
                done_by(&mut self.done, slots, joins, work).await.unwrap();
            }
            Step::Obstruct { pod, volume } => {
                let target = self.wanted(pod, volume, true).target;
                std::fs::create_dir_all(&target).unwrap();
                std::fs::write(target.join("in the way"), "").unwrap();
            }
            Step::Unpublish { pod, volume } => {
                let Publish { volume, pod, target, .. } = self.wanted(pod, volume, true);
                let unpublish = Unpublish { volume, pod_uid: pod.uid, target };
                let work = self.membership.unpublish(&unpublish);
                drop(done_by(&mut self.done, slots, true, work).await.unwrap());
            }
            Step::Gone(pod) => {
                let (name, uid) = (format!("pod-{pod}"), UIDS[pod].into());
                let gone = PodEvent::Deleted(PodGone { namespace: "team".into(), name, uid });
                done_by(&mut self.done, slots, true, self.membership.hear(gone)).await.unwrap();
            }
            Step::Synced => {
                done_by(&mut self.done, slots, true, self.membership.hear(PodEvent::Synced)).await.unwrap();
            }
            Step::Again { joins } => {
                if let Some(at) = self.membership.next_try() {
                    let work = self.membership.try_again(at);
                    done_by(&mut self.done, slots, joins, work).await.unwrap();
                }
            }
            Step::Restart { amid, parts, left_out } => self.restart(amid, parts, left_out).await,
        }
    }

    async fn restart(&mut self, amid: Option<(usize, usize)>, parts: Parts, left_out: u8) {
        if let Some((pod, volume)) = amid {
            let (asker, _answer) = oneshot::channel();
            let publish = self.wanted(pod, volume, true);
            // Cut off while it waits for its slot.
            drop(tokio::time::timeout(Duration::ZERO, self.membership.publish(publish, asker)).await);
        }
        let Membership { changes, events, policies, .. } = &self.membership;
        let (changes, events, policies) = (changes.clone(), events.clone(), policies.clone());
        let records = Records::open(self.run_dir.path()).unwrap();
        let (mut joined, mut others) = (Vec::new(), Vec::new());
        // More than the machine has would not be there again.
        let parts = Parts { shm_size: parts.shm_size.map(|size| size % (1 << 20)), ..parts };
        let granted = records.read().unwrap().into_iter().map(|volume| Volume { parts, ..volume });
        let granted: Vec<Volume> = granted.collect();
        granted.iter().for_each(|volume| records.write(volume).unwrap());
        let (ones, seconds) = one_of_each_pod(granted, &records);
        for (n, volume) in ones.into_iter().enumerate() {
            match left_out & (1 << n) {
                0 => joined.push(volume),
                _ => others.push((volume, "no room".to_owned())),
            }
        }
        // One life after the other.
        let shares = self.membership.groups.take().is_some();
        let sharers =
            joined.iter().chain(others.iter().map(|(volume, _)| volume)).map(Volume::sharer).collect();
        let membership = Membership::new(changes, events, records, joined, policies, Teller::new().0);
        let mut membership = membership.leaving_out(others);
        if shares {
            membership = membership.sharing(Some(groups(&self.run_dir, sharers))).await;
        }
        self.membership = membership.taking_down(seconds);
        let slots = self.run_dir.path().join("slots");
        done_by(&mut self.done, slots, true, self.membership.mount_all_again()).await.unwrap();
    }

    /// The plans by what is on record, but for volumes that are still to be taken down: their pods are gone.
    fn plans_on_record(&self) -> Plans {
        let records = Records::open(self.run_dir.path()).unwrap().read().unwrap();
        let waits_for_slot = |id: &str| self.membership.left_out().any(|volume| volume.id == id);
        let undone = self.membership.undone.iter().map(|undone| undone.volume.id.as_str());
        let gone: BTreeSet<&str> = undone.filter(|id| !waits_for_slot(id)).collect();
        let there = records.iter().filter(|volume| !gone.contains(volume.id.as_str()));
        there.map(|volume| (volume.uid.clone(), Arc::new(volume.plan()))).collect()
    }

    /// Whether each plan has what its pod was granted, and nothing is there that nobody was.
    fn all_share_what_they_were_granted(&self) -> Result<(), TestCaseError> {
        let plans = Arc::clone(&self.membership.plans().borrow());
        let granted = |plan: &Plan| (plan.parts.shm == Shm::Group, plan.parts.ipc == Ipc::Group);
        for plan in plans.values() {
            prop_assert_eq!((plan.shm.is_some(), plan.ipc.is_some()), granted(plan), "{:?}", plan);
            prop_assert!(
                plan.shm.iter().all(|shm| std::fs::metadata(&shm.path).unwrap().dev() == shm.device)
            );
        }
        let shared =
            plans.values().map(|plan| granted(plan)).fold((false, false), |a, b| (a.0 || b.0, a.1 || b.1));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let below = self.run_dir.path().join("groups");
        let there = mounts.lines().filter(|line| line.contains(below.to_str().unwrap())).count();
        prop_assert_eq!(there, usize::from(shared.0) + usize::from(shared.1), "{}", mounts);
        Ok(())
    }
}

fn groups(run_dir: &tempfile::TempDir, sharers: Vec<OnRecord>) -> Groups {
    Groups::begin(run_dir.path(), sharers, &Policy::default(), Box::new(|_| None)).unwrap()
}

/// The plans without what groups share.
fn bare(plans: &Plans) -> Plans {
    let bare = |plan: &Plan| Plan { shm: None, ipc: None, ..plan.clone() };
    plans.iter().map(|(uid, plan)| (uid.clone(), Arc::new(bare(plan)))).collect()
}

/// The same with what groups share, really mounted.
#[test]
fn what_groups_share_is_what_the_volumes_on_record_were_granted() {
    if !apart("node::membership::tests::plans::what_groups_share_is_what_the_volumes_on_record_were_granted")
    {
        return;
    }
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut ground = ground();
            ground.membership.groups = Some(groups(&ground.run_dir, vec![]));
            for step in steps {
                ground.step(step.clone()).await;
                let plans = Arc::clone(&ground.membership.plans().borrow());
                prop_assert_eq!(&bare(&plans), &ground.plans_on_record(), "after {:?}", step);
                ground.all_is_done().await;
                ground.all_share_what_they_were_granted()?;
            }
            Ok(())
        })?;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_those_of_the_volumes_on_record(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut ground = ground();
            for step in steps {
                ground.step(step.clone()).await;
                let plans = Arc::clone(&ground.membership.plans().borrow());
                prop_assert_eq!(&*plans, &ground.plans_on_record(), "after {:?}", step);
            }
            Ok(())
        })?;
    }
}
