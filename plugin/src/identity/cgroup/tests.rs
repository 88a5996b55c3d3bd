use super::*;

const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";
const FLAT: &str = "2c48913c_b29f_11e7_9350_020968147796";
const OTHER: &str = "3c48913c-b29f-11e7-9350-020968147796";
const STATIC: &str = "2732ca68f6358eba7703fb6f82a25c94";

fn number(digit: char) -> String {
    String::from(digit).repeat(CONTAINER_DIGITS)
}

fn at(text: &str) -> Result<InPod, CgroupError> {
    locate(text, &Root::default())
}

/// Every form that runtimes and drivers are known to write, and that names the container `aaa…` of the pod [`UID`].
fn good_forms() -> Vec<(&'static str, String)> {
    let id = number('a');
    vec![
        ("cgroupfs, v2, guaranteed", format!("0::/kubepods/pod{UID}/{id}\n")),
        ("cgroupfs, v2, burstable", format!("0::/kubepods/burstable/pod{UID}/{id}\n")),
        ("cgroupfs, v2, best effort", format!("0::/kubepods/besteffort/pod{UID}/{id}\n")),
        ("a group of the container's own below", format!("0::/kubepods/pod{UID}/{id}/init\n")),
        (
            "cgroupfs, v1, all hierarchies",
            format!(
                "12:pids:/kubepods/pod{UID}/{id}\n11:memory:/kubepods/pod{UID}/{id}\n1:name=systemd:/kubepods/pod{UID}/{id}\n"
            ),
        ),
        (
            "hybrid, where some know nothing",
            format!(
                "9:rdma:/\n8:cpu,cpuacct:/kubepods/besteffort/pod{UID}/{id}\n1:name=systemd:/system.slice/containerd.service\n0::/system.slice/containerd.service\n"
            ),
        ),
        (
            "hybrid, where one knows the pod alone",
            format!("3:devices:/kubepods/pod{UID}\n2:memory:/kubepods/pod{UID}/{id}\n"),
        ),
        (
            "systemd, containerd",
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{id}.scope\n"
            ),
        ),
        (
            "systemd, guaranteed",
            format!("0::/kubepods.slice/kubepods-pod{FLAT}.slice/cri-containerd-{id}.scope\n"),
        ),
        (
            "systemd, CRI-O",
            format!(
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/crio-{id}.scope\n"
            ),
        ),
        (
            "systemd, CRI-O, a group below",
            format!(
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/crio-{id}.scope/container\n"
            ),
        ),
        (
            "systemd, Docker",
            format!(
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/docker-{id}.scope\n"
            ),
        ),
        (
            "the kubelet's driver is systemd, containerd's is not",
            format!("0::/kubepods-besteffort-pod{FLAT}.slice:cri-containerd:{id}\n"),
        ),
    ]
}

#[test]
fn every_known_form_names_pod_and_container() {
    let wanted = InPod { pod: UID.parse().unwrap(), container: number('a').parse().unwrap() };
    for (what, text) in good_forms() {
        assert_eq!(at(&text), Ok(wanted.clone()), "{what}");
    }
}

/// All hierarchies of cgroup v1 as Linux names them, at one path.
fn hierarchies(path: &str) -> String {
    let named = [
        "hugetlb",
        "net_cls,net_prio",
        "pids",
        "cpuset",
        "devices",
        "memory",
        "perf_event",
        "cpu,cpuacct",
        "name=systemd",
    ];
    named.iter().enumerate().map(|(n, name)| format!("{}:{name}:{path}\n", named.len() - n)).collect()
}

/// The forms that SPIRE's attestor is tested with (github.com/spiffe/spire, `pkg/agent/plugin/workloadattestor/k8s/testdata`:
/// the files named here, with our digits) and has had issues about: what has not run here is held to these.
#[test]
fn what_others_have_recorded_is_read_as_they_read_it_or_refused() {
    let (id, docker) = (number('a'), number('d'));
    let found = InPod { pod: UID.parse().unwrap(), container: id.parse().unwrap() };
    let inside = format!("/docker/{docker}");
    let of_kind = format!("0::{inside}/kubepods/pod{OTHER}/{}\n", number('e'));
    let (node, kind) = (Root::default(), Root::of_pod_process(&of_kind).unwrap());
    let slices = "/kubepods.slice/kubepods-besteffort.slice";
    let crio = hierarchies(&format!("{slices}/kubepods-besteffort-pod{FLAT}.slice/crio-{id}.scope"));
    let in_kind = hierarchies(&format!("{inside}/kubepods/besteffort/pod{UID}/{id}"));
    let docker_scope =
        hierarchies(&format!("{slices}/kubepods-besteffort-pod{FLAT}.slice/docker-{id}.scope"));
    for (file, root, text) in [
        (
            "systemd_crio_cgroups_pid_in_pod.txt",
            &node,
            format!("{crio}3:rdma:/\n0::/system.slice/crio.service\n"),
        ),
        (
            "cgroups_pid_in_kind_pod.txt",
            &kind,
            format!("{in_kind}0::{inside}/system.slice/containerd.service\n"),
        ),
        ("systemd_cgroups_pid_in_pod.txt", &node, docker_scope),
        ("cgroups_init_pid_in_pod.txt", &node, hierarchies(&format!("/kubepods/burstable/pod{UID}/{id}"))),
    ] {
        assert_eq!(locate(&text, root), Ok(found.clone()), "{file}: {text}");
    }
    let conmon = format!("{slices}/kubepods-besteffort-pod{FLAT}.slice/crio-conmon-{id}.scope");
    for (what, text) in [
        ("cgroups_pid_in_crio_pod.txt", format!("0::/../crio-{id}.scope")),
        ("from inside of a cgroup namespace, #2578, #4004", format!("0::/../../pod{UID}/{id}\n")),
        ("from inside of the container's own", "0::/\n".to_owned()),
        ("the monitor of a container, #4088", hierarchies(&conmon)),
        ("kind, for who does not know that it is inside", in_kind),
    ] {
        assert!(at(&text).is_err(), "{what}: {text}");
    }
}

#[test]
fn a_static_pod_has_a_uid_without_dashes() {
    let found = at(&format!("0::/kubepods/burstable/pod{STATIC}/{}\n", number('b'))).unwrap();
    assert_eq!(found.pod.as_str(), STATIC);
    let slice =
        format!("0::/kubepods.slice/kubepods-pod{STATIC}.slice/cri-containerd-{}.scope\n", number('b'));
    assert_eq!(at(&slice).unwrap(), found);
}

#[test]
fn a_group_below_the_containers_own_is_nobody_elses() {
    let (mine, forged) = (number('a'), number('f'));
    let text = format!("0::/kubepods/pod{UID}/{mine}/kubepods/pod{OTHER}/{forged}\n");
    let found = at(&text).unwrap();
    assert_eq!((found.pod.as_str(), found.container.to_string()), (UID, mine));
}

#[test]
fn what_leads_to_the_pods_must_be_what_it_is_on_this_node() {
    let id = number('a');
    let inner = format!("0::/docker/{}/kubepods/burstable/pod{UID}/{id}\n", number('d'));
    assert!(
        matches!(at(&inner), Err(CgroupError::NoPod(_))),
        "somebody else's group, made by another runtime"
    );
    let plugin = format!("0::/docker/{}/kubepods/besteffort/pod{OTHER}/{}\n", number('d'), number('e'));
    let root = Root::of_pod_process(&plugin).unwrap();
    assert_eq!(locate(&inner, &root).unwrap().pod.as_str(), UID);
    assert!(matches!(locate(&format!("0::/kubepods/pod{UID}/{id}\n"), &root), Err(CgroupError::NoPod(_))));
    let longer = format!("0::/docker/{}0/kubepods/pod{UID}/{id}\n", number('d'));
    assert!(
        matches!(locate(&longer, &root), Err(CgroupError::NoPod(_))),
        "a name that only begins like the root"
    );
    assert_eq!(Root::of_pod_process(&format!("0::/kubepods/pod{UID}/{id}\n")), Some(Root::default()));
    assert_eq!(Root::of_pod_process("0::/user.slice/session-1.scope\n"), None);
}

#[test]
fn what_is_ambiguous_is_refused_with_what_was_seen() {
    let (one, two) = (number('a'), number('b'));
    let disagree = [
        format!("2:memory:/kubepods/pod{UID}/{one}\n1:cpu:/kubepods/pod{OTHER}/{one}\n"),
        format!("2:memory:/kubepods/pod{UID}/{one}\n1:cpu:/kubepods/pod{UID}/{two}\n"),
        format!("2:memory:/kubepods/pod{UID}\n1:cpu:/kubepods/pod{OTHER}/{one}\n"),
    ];
    for text in disagree {
        assert!(matches!(at(&text), Err(CgroupError::Disagree(..))), "{text}");
    }
    for text in [format!("0::/../../pod{UID}/{one}\n"), format!("0::/../crio-{one}.scope\n")] {
        assert!(matches!(at(&text), Err(CgroupError::Relative(_))), "{text}");
    }
    let said = at("0::/user.slice/x\n").unwrap_err().to_string();
    assert!(said.contains("0::/user.slice/x"), "{said}");
}

#[test]
fn what_is_no_container_is_refused() {
    let id = number('a');
    for text in [
        format!("0::/kubepods/pod{UID}\n"),
        format!("0::/kubepods/pod{UID}/{}\n", &id[1..]),
        format!("0::/kubepods/pod{UID}/{}\n", id.to_uppercase()),
        format!("0::/kubepods/pod{UID}/sidecar/{id}\n"),
        format!("0::/kubepods.slice/kubepods-pod{FLAT}.slice/crio-conmon-{id}.scope\n"),
    ] {
        assert!(matches!(at(&text), Err(CgroupError::NoContainer { .. })), "{text}");
    }
    for text in [
        String::new(),
        "0::/\n".to_owned(),
        format!("0::/kubepods/pod{}/{id}\n", &UID[1..]),
        format!("0::/kubepods/pod{}/{id}\n", UID.to_uppercase()),
        format!("0::/kubepods/other/pod{UID}/{id}\n"),
        format!("0::/kubepodsx/pod{UID}/{id}\n"),
        format!("0::/kubepods/burstable/burstable/pod{UID}/{id}\n"),
    ] {
        assert!(matches!(at(&text), Err(CgroupError::NoPod(_))), "{text}");
    }
    assert!(matches!(at("nonsense\n"), Err(CgroupError::Malformed(_))));
}

#[test]
fn a_status_names_a_container_with_its_runtime() {
    let id = number('c');
    assert_eq!(ContainerId::of_status(&format!("containerd://{id}")).unwrap().to_string(), id);
    for strange in ["", "containerd://", &id, &format!("containerd://{}", &id[1..])] {
        assert_eq!(ContainerId::of_status(strange), None, "{strange}");
    }
}

proptest::proptest! {
    /// Whatever a container calls the groups below its own, it stays where it is.
    #[test]
    fn nothing_below_changes_who_it_is(below in "(/[a-z0-9:._-]{0,40}){0,4}") {
        let id = number('a');
        proptest::prop_assume!(!below.split('/').any(|part| part == ".."));
        let found = at(&format!("0::/kubepods/pod{UID}/{id}{below}\n")).unwrap();
        proptest::prop_assert_eq!(found.pod.as_str(), UID);
        proptest::prop_assert_eq!(found.container.to_string(), id);
    }

    /// No text makes it panic.
    #[test]
    fn any_text_has_an_answer(text in "[ -~\n]{0,200}") {
        let _ = at(&text);
    }
}
