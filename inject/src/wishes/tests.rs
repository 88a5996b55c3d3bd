use super::*;
use crate::denial::DenialCode;
use crate::limits;

fn read(annotations: &[(&str, &str)]) -> Result<Option<Wishes>, Denial> {
    read_with(annotations, &[])
}

fn read_with(annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> Result<Option<Wishes>, Denial> {
    let map =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let ours = |pairs: &[(&str, &str)]| {
        let named: Vec<_> = pairs.iter().map(|(k, v)| (format!("{PREFIX}{k}"), *v)).collect();
        named.into_iter().map(|(k, v)| (k, v.to_owned())).collect::<BTreeMap<_, _>>()
    };
    Wishes::read(&ours(annotations), &map(labels), &"ml".parse().unwrap())
}

/// The code, what it is about, and what to do, of the only reason.
fn reason(read: Result<Option<Wishes>, Denial>) -> (DenialCode, String, String) {
    let denial = read.unwrap_err();
    let [reason] = denial.reasons() else { panic!("{denial}") };
    (reason.code(), reason.compared().what.clone(), reason.remedy().to_owned())
}

#[test]
fn a_pod_without_annotations_of_ours_asks_for_nothing() {
    let foreign = BTreeMap::from([("example.com/group".to_owned(), "x".to_owned())]);
    assert_eq!(Wishes::read(&foreign, &BTreeMap::new(), &"ml".parse().unwrap()), Ok(None));
}

#[test]
fn one_annotation_is_enough() {
    let wishes = read(&[("group", "llama")]).unwrap().unwrap();
    assert_eq!(wishes.group.to_string(), "ml/llama");
    assert_eq!((wishes.profile, wishes.shm, wishes.ipc), (Profile::Client, Shm::None, Ipc::None));
    assert_eq!((wishes.pids, wishes.devices), (Pids::Own, Devices::Own));
    assert_eq!((wishes.colocate, wishes.on_failure), (Colocate::Required, None));
    assert_eq!((wishes.containers, wishes.group_size, wishes.shm_size), (None, None, None));
}

#[test]
fn every_value_that_works_today_is_read() {
    let wishes = read(&[
        ("group", "other/llama"),
        ("profile", "client"),
        ("access", "read-write"),
        ("colocate", "preferred"),
        ("containers", "b, a,b"),
        ("on-failure", "start"),
        ("shm", "none"),
        ("ipc", "none"),
        ("pids", "own"),
        ("devices", "own"),
        ("injected", "0.1.0"),
    ]);
    let wishes = wishes.unwrap().unwrap();
    assert_eq!(wishes.group.to_string(), "other/llama");
    assert_eq!(wishes.colocate, Colocate::Preferred);
    assert_eq!(wishes.on_failure, Some(OnFailure::Start));
    assert_eq!(wishes.containers, Some(vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn a_misspelt_name_is_denied_with_the_nearest() {
    let told = [
        ("gruop", "did you mean gpu-handoff.io/group?"),
        ("Profile", "did you mean gpu-handoff.io/profile?"),
        ("co-locate", "did you mean gpu-handoff.io/colocate?"),
        ("onfailure", "did you mean gpu-handoff.io/on-failure?"),
        ("banana", "use a name of docs/annotations.md, or remove it"),
        ("", "use a name of docs/annotations.md, or remove it"),
    ];
    for (name, remedy) in told {
        let (code, _, told) = reason(read(&[("group", "g"), (name, "x")]));
        assert_eq!((code, told.as_str()), (DenialCode::UnknownAnnotation, remedy), "{name}");
    }
}

#[test]
fn a_value_that_is_none_is_denied() {
    let long = "g".repeat(64);
    let many = vec!["c"; limits::CONTAINERS + 1].join(",");
    let bad = [
        ("group", ""),
        ("group", "a b"),
        ("group", "A"),
        ("group", "/g"),
        ("group", "ns/"),
        ("group", "a/b/c"),
        ("group", &long),
        ("containers", ""),
        ("containers", "a,,b"),
        ("containers", &many),
        ("colocate", "yes"),
        ("on-failure", "BLOCK"),
        ("access", ""),
        ("profile", "pytorch"),
    ];
    for (key, value) in bad {
        let mut annotations = vec![("group", "g")];
        annotations.retain(|(k, _)| *k != key);
        annotations.push((key, value));
        let (code, what, _) = reason(read(&annotations));
        assert_eq!((code, what), (DenialCode::BadValue, format!("{PREFIX}{key}")), "{key}: {value}");
    }
}

#[test]
fn sizes_are_checked_before_they_are_of_use() {
    for (key, value) in [("shm-size", "much"), ("shm-size", "0"), ("group-size", "0"), ("group-size", "1e3")]
    {
        let denial = read(&[("group", "g"), (key, value)]).unwrap_err();
        assert_eq!(denial.reasons()[0].code(), DenialCode::BadValue, "{key}: {value}");
    }
}

#[test]
fn a_misspelt_value_is_denied_with_the_nearest() {
    let (_, _, remedy) = reason(read(&[("group", "g"), ("colocate", "requierd")]));
    assert_eq!(remedy, "did you mean required?");
}

#[test]
fn a_megabyte_is_denied_in_few_words() {
    let megabyte = "x".repeat(1 << 20);
    let page = "x".repeat(limits::VALUE_BYTES);
    for key in ["group", "colocate", "containers", "group-from-label", &megabyte] {
        for value in [&megabyte, &page] {
            let denial = read(&[("profile", "client"), (key, value)]).unwrap_err();
            assert!(denial.to_string().len() < 2_048, "{}", denial.to_string().len());
        }
    }
}

#[test]
fn a_group_must_be_named() {
    assert_eq!(reason(read(&[("profile", "client")])).0, DenialCode::GroupMissing);
}

#[test]
fn a_label_may_name_the_group() {
    let key = "leaderworkerset.sigs.k8s.io/group-key";
    let from_label = |labels: &[(&str, &str)]| read_with(&[("group-from-label", key)], labels);
    assert_eq!(from_label(&[(key, "7f3a")]).unwrap().unwrap().group.to_string(), "ml/7f3a");
    assert_eq!(reason(from_label(&[("app", "x")])).0, DenialCode::GroupLabelMissing);
    assert_eq!(reason(from_label(&[(key, "Upper_Case")])).0, DenialCode::BadValue);
}

#[test]
fn two_names_of_a_group_must_agree() {
    let both = |name| read_with(&[("group-from-label", "app"), ("group", name)], &[("app", "x")]);
    assert_eq!(both("x").unwrap().unwrap().group.to_string(), "ml/x");
    assert_eq!(reason(both("y")).0, DenialCode::GroupAmbiguous);
}

#[test]
fn what_a_later_version_brings_is_denied_and_says_so() {
    for (key, value) in [
        ("profile", "torch"),
        ("profile", "nccl"),
        ("shm", "group"),
        ("pids", "distinct"),
        ("devices", "group"),
        ("devices", "node"),
        ("access", "read-only"),
    ] {
        let denial = read(&[("group", "g"), (key, value)]).unwrap_err();
        let [reason] = denial.reasons() else { panic!("{denial}") };
        assert_eq!(
            (reason.code(), &*reason.compared().what),
            (DenialCode::NotYet, &*format!("{PREFIX}{key}"))
        );
        assert!(reason.compared().wanted.contains("comes with gpu-handoff 0.2"), "{reason}");
    }
    // The namespace brings /dev/shm, and each is named.
    let denial = read(&[("group", "g"), ("ipc", "group")]).unwrap_err();
    assert_eq!(denial.reasons().len(), 2);
}

#[test]
fn what_would_change_nothing_is_denied() {
    for annotation in [("shm-size", "1Gi"), ("group-size", "2")] {
        assert_eq!(reason(read(&[("group", "g"), annotation])).0, DenialCode::WithoutEffect);
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let denial = read(&[("gruop", "g"), ("colocate", "x"), ("shm", "x")]).unwrap_err();
    let codes: Vec<_> = denial.reasons().iter().map(|reason| reason.code()).collect();
    assert_eq!(
        codes,
        [DenialCode::UnknownAnnotation, DenialCode::GroupMissing, DenialCode::BadValue, DenialCode::BadValue]
    );
}

#[test]
fn each_part_that_is_shared_is_asked_of_the_policy() {
    let shares = |annotations: &[(&str, &str)]| {
        let named = annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned()));
        let annotations: BTreeMap<_, _> = named.collect();
        let mut reader = Reader::new(&annotations);
        // What this version refuses yet is read all the same.
        let group = GroupKey { namespace: "ml".parse().unwrap(), name: "g".parse().unwrap() };
        Wishes::parts(&mut reader, Some(group)).unwrap().asks().shares
    };
    for part in
        [("shm", "group"), ("ipc", "group"), ("pids", "distinct"), ("profile", "torch"), ("profile", "nccl")]
    {
        assert!(shares(&[part]), "{part:?}");
    }
    assert!(!shares(&[]) && !shares(&[("devices", "node")]));
    assert!(shares(&[("profile", "torch"), ("shm", "none")]), "its process numbers");
    assert!(!shares(&[("profile", "torch"), ("shm", "none"), ("pids", "own")]));
}
