use std::collections::BTreeMap;

use gpu_handoff_nri::view::{Device, Namespace};
use proptest::prelude::*;

use super::*;
use crate::node::membership::testing::{UID, volume};
use crate::node::parts::plan::{Pin, Place};
use crate::node::parts::{Parts, Planner};

const SANDBOX: &str = "d4f7ee74c38b5a2adc7da0dc2f718e79214f07c1ba64c7337ab63f0c0e5a8867";

fn plan() -> Plan {
    volume("csi-1").plan()
}

/// With all that a plan can have.
fn whole_plan() -> Plan {
    Plan {
        shm: Some(Place { path: "/run/gpu-handoff/groups/g/shm".into(), device: 87 }),
        ipc: Some(Pin { path: "/run/gpu-handoff/groups/g/ipc".into(), inode: 4_026_532_651 }),
        env: BTreeMap::from([
            ("NCCL_HOSTID".into(), "gh-1".into()),
            ("NCCL_CUMEM_ENABLE".into(), "0".into()),
        ]),
        devices: BTreeMap::from([(
            "app".into(),
            Grant {
                nodes: vec!["/dev/nvidia1".into(), "/dev/simulated1".into()],
                env: BTreeMap::from([("CUDA_VISIBLE_DEVICES".into(), "1".into())]),
            },
        )]),
        ..plan()
    }
}

fn pod() -> Pod {
    Pod { id: SANDBOX.into(), uid: UID.into(), namespace: "team".into(), name: "producer".into() }
}

fn mount(destination: &str, kind: &str, source: &str) -> Mount {
    Mount { destination: destination.into(), kind: kind.into(), source: source.into(), options: vec![] }
}

/// As containerd makes it.
fn runtimes() -> Mount {
    mount("/dev/shm", "bind", &format!("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{SANDBOX}/shm"))
}

fn container(mounts: &[Mount], env: &[(&str, &str)]) -> Container {
    Container {
        id: "a".repeat(64),
        pod_id: SANDBOX.into(),
        name: "app".into(),
        mounts: mounts.to_vec(),
        env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..Container::default()
    }
}

/// `/dev/nvidiaN` are devices, `/dev/simulatedN` files.
fn nodes(path: &Path) -> std::io::Result<Node> {
    let name = path.display().to_string();
    if let Some(minor) = name.strip_prefix("/dev/nvidia") {
        let minor = minor.parse().unwrap();
        return Ok(Node::Character(Device {
            path: name,
            kind: "c".into(),
            major: 195,
            minor,
            mode: Some(0o666),
        }));
    }
    if name.starts_with("/dev/simulated") { Ok(Node::File) } else { Err(std::io::ErrorKind::NotFound.into()) }
}

fn adjusted(plan: &Plan, container: &Container) -> Adjustment {
    adjustment(plan, &pod(), container, true, nodes).unwrap()
}

#[test]
fn a_member_gets_what_its_plan_says() {
    let made = adjusted(&whole_plan(), &container(&[runtimes()], &[("PATH", "/bin")]));
    let sources: Vec<_> = made.mounts().iter().map(|m| (m.destination.as_str(), m.source.as_str())).collect();
    assert_eq!(
        sources,
        [("/dev/shm", "/run/gpu-handoff/groups/g/shm"), ("/dev/simulated1", "/dev/simulated1")]
    );
    assert_eq!(made.mounts()[0].options, ["rbind", "rw", "nosuid", "nodev", "noexec", "rprivate"]);
    let ipc = Namespace { kind: "ipc".into(), path: "/run/gpu-handoff/groups/g/ipc".into() };
    assert_eq!(made.namespaces(), [ipc]);
    assert_eq!(made.devices().iter().map(|device| device.minor).collect::<Vec<_>>(), [1]);
    let names: Vec<_> = made.variables().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["NCCL_CUMEM_ENABLE", "NCCL_HOSTID", "CUDA_VISIBLE_DEVICES"]);

    let sidecar = Container { name: "gpu-handoff".into(), ..container(&[runtimes()], &[]) };
    let made = adjusted(&whole_plan(), &sidecar);
    assert_eq!((made.mounts().len(), made.devices().len(), made.namespaces().len()), (1, 0, 1));
    assert!(adjusted(&plan(), &sidecar).is_nothing(), "a plan without anything changes nothing");
}

#[test]
fn variables_of_the_users_stay_and_granted_ones_are_set() {
    let own = [("NCCL_HOSTID", ""), ("CUDA_VISIBLE_DEVICES", "0")];
    let made = adjusted(&whole_plan(), &container(&[], &own));
    let expected: Vec<(String, String)> =
        vec![("NCCL_CUMEM_ENABLE".into(), "0".into()), ("CUDA_VISIBLE_DEVICES".into(), "1".into())];
    assert_eq!(made.variables(), expected);
}

#[test]
fn what_a_container_has_is_not_given_again_and_what_is_not_there_refuses_it() {
    let mut has = container(&[], &[]);
    has.devices = vec![Device { path: "/dev/nvidia1".into(), ..Device::default() }];
    assert_eq!(adjusted(&whole_plan(), &has).devices(), []);

    let mut plan = whole_plan();
    plan.devices.insert("app".into(), Grant { nodes: vec!["/dev/gone".into()], env: BTreeMap::new() });
    let refusal = adjustment(&plan, &pod(), &has, true, nodes).unwrap_err().to_string();
    assert!(refusal.starts_with("refused: NOT_ADJUSTED (device node: wanted /dev/gone, found "), "{refusal}");
}

#[test]
fn a_volume_of_the_pods_own_at_dev_shm_stays() {
    let id_elsewhere = format!("/var/lib/kubelet/{SANDBOX}/data");
    for own in [
        mount("/dev/shm", "bind", "/var/lib/kubelet/pods/x/volumes/kubernetes.io~empty-dir/shm"),
        mount("/dev/shm/", "bind", "/run/nvidia/mps/shm"),
        mount("/dev/shm", "tmpfs", "tmpfs"),
        mount("/dev/shm", "bind", &id_elsewhere),
        mount("//dev/./shm", "bind", "/dev/shm"),
    ] {
        let container = container(&[runtimes(), own.clone()], &[]);
        let made = adjusted(&whole_plan(), &container);
        assert!(made.mounts().iter().all(|mount| mount.destination != "/dev/shm"), "{own:?}");
        let expected = expected(&whole_plan(), &pod(), &container, true);
        assert_eq!(expected, Expected { shm: None, ipc: Some(4_026_532_651) }, "{own:?}");
    }
    let crio = mount(
        "/dev/shm",
        "bind",
        &format!("/run/containers/storage/overlay-containers/{SANDBOX}/userdata/shm"),
    );
    assert_eq!(shm_of(&whole_plan(), &pod(), &container(&[crio], &[])), AtShm::Runtimes);
    // Without a sandbox's id nobody can tell whose it is.
    let nameless = Pod { id: String::new(), ..pod() };
    assert_eq!(shm_of(&whole_plan(), &nameless, &container(&[runtimes()], &[])), AtShm::Pods);
}

struct Asked {
    answers: Answers,
    planner: Planner,
    policies: watch::Sender<Arc<Policy>>,
    told: mpsc::Receiver<Notice>,
    found: mpsc::Receiver<Vec<Found>>,
}

fn asked(plans: impl IntoIterator<Item = Plan>, nri: &str) -> Asked {
    let planner = Planner::new(plans);
    let (events, told) = Events::for_test();
    let (tell, found) = mpsc::channel(1);
    let policies = watch::Sender::<Arc<Policy>>::default();
    let mut answers =
        Answers::new(planner.subscribe(), events, tell, policies.subscribe(), watch::Sender::default());
    answers.configured(&Runtime { name: "containerd".into(), version: "v2".into(), nri: nri.into() });
    Asked { answers, planner, policies, told, found }
}

#[test]
fn who_is_no_member_is_left_alone_whatever_it_is_called() {
    let mut asked = asked([whole_plan()], "v0.12.3");
    for uid in ["", "2c48913c-b29f-11e7-9350-020968147797", "../x", &"a".repeat(500)] {
        let other = Pod { uid: uid.to_owned(), ..pod() };
        let made = container(&[runtimes()], &[]);
        assert_eq!(asked.answers.create(&other, &made), Ok(Adjustment::default()));
        let started = Container { pid: Some(std::process::id()), ..made };
        assert_eq!(asked.answers.start(&other, &started), Ok(()));
        let whole = Validation { pod: other, container: started, ..Validation::default() };
        assert_eq!(asked.answers.validate(&whole), Ok(()));
    }
    assert!(asked.told.try_recv().is_err());
}

#[test]
fn a_plan_counts_as_it_is_when_it_is_asked_for() {
    let mut asked = asked([], "v0.12.3");
    let container = container(&[runtimes()], &[]);
    assert_eq!(asked.answers.create(&pod(), &container), Ok(Adjustment::default()));
    let refusal = Refusal::new(Code::QuotaShm).compared_with("bytes", 1, 2);
    let plan = Plan { devices: BTreeMap::new(), ..whole_plan() };
    asked.planner.put(Plan { refused: Some(refusal.clone()), ..plan.clone() });
    assert_eq!(asked.answers.create(&pod(), &container), Err(refusal.to_string()));
    asked.planner.put(plan.clone());
    assert!(!asked.answers.create(&pod(), &container).unwrap().is_nothing());
    asked.planner.remove(&plan.uid, &plan.slot);
    assert!(asked.answers.create(&pod(), &container).unwrap().is_nothing());
}

#[test]
fn nothing_is_made_before_what_the_pod_was_granted_is_there() {
    let container = container(&[runtimes()], &[]);
    let create = |plan: Plan, nri| asked([plan], nri).answers.create(&pod(), &container);
    let granted = |shm, ipc| Plan {
        parts: Parts { shm, ipc, ..Parts::default() },
        devices: BTreeMap::new(),
        ..whole_plan()
    };
    assert!(create(granted(Shm::Group, Ipc::Group), "v0.12.3").is_ok());
    let without_shm = Plan { shm: None, ..granted(Shm::Group, Ipc::None) };
    let refused = create(without_shm, "v0.12.3").unwrap_err();
    assert!(
        refused.starts_with("refused: NOT_ADJUSTED (/dev/shm of the group: wanted made, found not there"),
        "{refused}"
    );
    let without_ipc = Plan { ipc: None, ..granted(Shm::Group, Ipc::Group) };
    assert!(create(without_ipc.clone(), "v0.12.3").unwrap_err().contains("IPC namespace of the group"));
    // A runtime that cannot do it anyway.
    assert!(create(without_ipc, "v0.8.0").is_ok());
    assert!(create(Plan { shm: None, ipc: None, ..granted(Shm::None, Ipc::None) }, "v0.12.3").is_ok());
}

#[test]
fn what_a_pod_was_granted_and_does_not_get_is_told() {
    let plan = Plan { devices: BTreeMap::new(), ..whole_plan() };
    let mut asked = asked([plan], "v0.8.0");
    let own = container(&[mount("/dev/shm", "tmpfs", "tmpfs")], &[]);
    let made = asked.answers.create(&pod(), &own).unwrap();
    assert!(made.namespaces().is_empty() && made.mounts().is_empty());
    let reasons: Vec<_> =
        std::iter::from_fn(|| asked.told.try_recv().ok()).map(|n| n.reason().to_owned()).collect();
    assert_eq!(reasons, ["OwnSharedMemory", "RuntimeCannot"]);
}

#[test]
fn a_container_that_lacks_something_does_not_start() {
    let own = look::got(std::process::id()).unwrap();
    let plan = |device, inode| Plan {
        shm: Some(Place { path: "/x".into(), device }),
        ipc: Some(Pin { path: "/y".into(), inode }),
        ..plan()
    };
    let mut started = container(&[runtimes()], &[]);
    started.pid = Some(std::process::id());
    let start = |plan, started: &Container| asked([plan], "v0.12.3").answers.start(&pod(), started);
    assert_eq!(start(plan(own.shm, own.ipc), &started), Ok(()));
    let refused = start(plan(own.shm + 1, own.ipc), &started).unwrap_err();
    assert!(refused.starts_with("refused: NOT_ADJUSTED (file system of /dev/shm"), "{refused}");
    let refused = start(plan(own.shm, own.ipc + 1), &started).unwrap_err();
    assert!(refused.starts_with("refused: NOT_ADJUSTED (IPC namespace"), "{refused}");
    // Where the policy says so, it is only told of.
    let mut lenient = asked([plan(own.shm + 1, own.ipc)], "v0.12.3");
    let text = format!(r#"{{"namespaces": {{"{}": {{"unadjusted": "report"}}}}}}"#, pod().namespace);
    lenient.policies.send_replace(Arc::new(serde_json::from_str(&text).unwrap()));
    assert_eq!(lenient.answers.start(&pod(), &started), Ok(()));
    assert_eq!(lenient.told.try_recv().unwrap().reason(), "NotAdjusted");
    // With an own volume there, the file system does not matter.
    started.mounts = vec![mount("/dev/shm", "tmpfs", "tmpfs")];
    assert_eq!(start(plan(own.shm + 1, own.ipc), &started), Ok(()));
    // Nothing to look at, and nobody.
    started.pid = Some(u32::MAX >> 1);
    assert_eq!(start(plan(own.shm, own.ipc), &started), Ok(()));
    started.pid = None;
    assert_eq!(start(plan(own.shm, own.ipc), &started), Ok(()));
}

#[test]
fn of_what_is_there_already_the_members_running_containers_are_looked_at() {
    let mut asked = asked([whole_plan()], "v0.12.3");
    let with = |stage, pid| Container { stage, pid, ..container(&[runtimes()], &[]) };
    let other = Pod { uid: "0".repeat(32), ..pod() };
    let of_member = vec![
        with(Stage::Running, Some(7)),
        with(Stage::Created, Some(8)),
        with(Stage::Running, None),
        with(Stage::Unknown, Some(9)),
    ];
    asked.answers.synchronized(vec![(pod(), of_member), (other, vec![with(Stage::Running, Some(10))])]);
    assert_eq!(asked.found.try_recv().unwrap().len(), 1);
    // Nobody takes the lists: it goes on.
    (0..3).for_each(|_| asked.answers.synchronized(vec![]));
}

/// What the runtime makes of a container and an adjustment.
fn applied(container: &Container, made: &Adjustment) -> Container {
    let mut whole = container.clone();
    for mount in made.mounts() {
        whole.mounts.retain(|own| own.destination != mount.destination);
        whole.mounts.push(mount.clone());
    }
    for (name, value) in made.variables() {
        whole.env.retain(|(own, _)| own != name);
        whole.env.push((name.clone(), value.clone()));
    }
    whole
}

prop_compose! {
    fn any_plan()(
        shm in any::<bool>(),
        ipc in any::<bool>(),
        devices in any::<bool>(),
        env in prop::collection::btree_map("[AB]", "[01]", 0..3),
    ) -> Plan {
        let all = whole_plan();
        Plan {
            shm: all.shm.filter(|_| shm),
            ipc: all.ipc.filter(|_| ipc),
            devices: if devices { all.devices } else { BTreeMap::new() },
            env,
            ..plan()
        }
    }
}

fn any_mount() -> impl Strategy<Value = Mount> {
    let sources =
        vec![runtimes().source, "tmpfs".into(), "/data/shm".into(), "/run/gpu-handoff/groups/g/shm".into()];
    (prop::sample::select(vec!["/dev/shm", "/dev/shm/x", "/data", "/dev"]), prop::sample::select(sources))
        .prop_map(|(destination, source)| mount(destination, "bind", &source))
}

proptest! {
    #[test]
    fn what_is_made_has_what_was_planned_and_all_that_was_the_users(
        plan in any_plan(),
        mounts in prop::collection::vec(any_mount(), 0..4),
        env in prop::collection::vec(("[A-D]", "[0-9]"), 0..4),
        namespaces in any::<bool>(),
    ) {
        let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let container = container(&mounts, &env);
        let made = adjustment(&plan, &pod(), &container, namespaces, nodes).unwrap();
        let whole = Validation {
            pod: pod(),
            container: container.clone(),
            mounts: made.mounts().to_vec(),
            namespaces: made.namespaces().to_vec(),
            ..Validation::default()
        };
        prop_assert_eq!(has_all(&plan, &whole, namespaces), Ok(()));
        let after = applied(&container, &made);
        let had = shm_of(&plan, &pod(), &container);
        let has = shm_of(&plan, &pod(), &after);
        prop_assert_eq!(has, if had == AtShm::Runtimes && plan.shm.is_some() { AtShm::Groups } else { had });
        prop_assert_eq!(expected(&plan, &pod(), &after, namespaces).shm.is_some(), plan.shm.is_some() && has != AtShm::Pods);
        for variable in &container.env {
            prop_assert!(after.env.contains(variable), "{:?} is gone", variable);
        }
        for mount in container.mounts.iter().filter(|mount| mount.destination != "/dev/shm") {
            prop_assert!(after.mounts.contains(mount), "{:?} is gone", mount);
        }
        // Who made it without us is found out.
        if made.mounts().iter().any(|mount| mount.destination == "/dev/shm") || !made.namespaces().is_empty() {
            let without = Validation { mounts: vec![], namespaces: vec![], ..whole };
            let refused = has_all(&plan, &without, namespaces);
            // What already lies at the group's place is what is wanted there.
            prop_assert!(refused.is_err() || (had == AtShm::Groups && plan.ipc.is_none()) || !namespaces, "{:?}", without);
        }
    }
}
