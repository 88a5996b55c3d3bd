//! What is added to pods, and to which.

use crate::common::{asking, codes, injected, injected_by, injected_under, named, pod, settings};
use gpu_handoff_inject::limits::POD_CONTAINERS;
use gpu_handoff_inject::{DenialCode, NodeRequirement, Operator, Settings, UserNamespaces, VERSION, limits};
use gpu_handoff_policy::Policy;
use serde_json::{Value, json};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Lets pods of `ml` that run as `default` acquire what the group `llama` of `data` has.
const GUESTS: &str = "version: gpu-handoff.io/v1
exchange:
  - name: guests
    publish: [{namespaces: [data], groups: [llama]}]
    acquire: [{namespaces: [ml], groups: [data/llama], service-accounts: [default]}]
";

fn hash(group: &str) -> String {
    blake3::hash(group.as_bytes()).to_hex()[..16].to_owned()
}

#[test]
fn a_pod_of_one_annotation_gets_all_of_this_and_nothing_else() {
    let term = json!({
        "labelSelector": {"matchLabels": {"gpu-handoff.io/group-hash": hash("ml/llama")}},
        "topologyKey": "kubernetes.io/hostname",
    });
    let sidecar = json!({
        "name": "gpu-handoff",
        "image": "sidecar:1",
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve", "--slot", "/run/gpu-handoff-slot/slot.sock", "--listen", "/run/gpu-handoff/app.sock"],
        "restartPolicy": "Always",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsGroup": 64533,
            "runAsNonRoot": true,
            "runAsUser": 64533,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "startupProbe": {
            "exec": {"command": ["gpu-handoff-sidecar", "ready", "--socket", "/run/gpu-handoff/app.sock"]},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 120,
        },
        "volumeMounts": [
            {"name": "gpu-handoff-slot", "mountPath": "/run/gpu-handoff-slot", "readOnly": true},
            {"name": "gpu-handoff", "mountPath": "/run/gpu-handoff"},
        ],
    });
    let wanted = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "annotations": {"gpu-handoff.io/group": "llama", "gpu-handoff.io/injected": VERSION},
            "labels": {"gpu-handoff.io/group-hash": hash("ml/llama")},
        },
        "spec": {
            "affinity": {"podAffinity": {REQUIRED: [term]}},
            "initContainers": [sidecar],
            "containers": [{
                "name": "app",
                "image": "app:1",
                "env": [{"name": "GPU_HANDOFF_SOCKET", "value": "/run/gpu-handoff/app.sock"}],
                "volumeMounts": [{"name": "gpu-handoff", "mountPath": "/run/gpu-handoff", "readOnly": true}],
            }],
            "volumes": [
                {"name": "gpu-handoff-slot", "csi": {"driver": "gpu-handoff.io", "readOnly": true}},
                {"name": "gpu-handoff", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            ],
        },
    });
    assert_eq!(injected(&pod(json!({}))), wanted);
}

#[test]
fn a_pod_that_asks_for_nothing_is_left_alone() {
    let bare = json!({"kind": "Pod", "spec": {"hostPID": true, "containers": []}, "x": [1]});
    let injected = injected_by(&bare, &settings()).unwrap();
    assert_eq!((injected.object, injected.patch.0.len(), injected.wishes), (bare, 0, None));
}

#[test]
fn a_pod_that_a_node_runs_from_a_file_is_left_alone_and_told_why() {
    let mut mirror = asking(&[]);
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("7f3a");
    let injected = injected_by(&mirror, &settings()).unwrap();
    assert_eq!(injected.object, mirror);
    assert!(injected.warnings[0].contains("static pod"));
}

#[test]
fn the_sidecar_is_the_first_init_container_and_those_that_are_named_get_the_socket() {
    let mut pod = pod(json!({
        "initContainers": [{"name": "fetch"}, {"name": "prepare"}],
        "containers": [{"name": "app"}, {"name": "log"}],
    }));
    let has_socket = |pod: &Value, list: &str, name: &str| {
        let container = named(&pod["spec"][list], name);
        let mounts = container["volumeMounts"].as_array().map_or(0, Vec::len);
        assert_eq!(mounts, container["env"].as_array().map_or(0, Vec::len));
        mounts == 1
    };
    let all = injected(&pod);
    assert_eq!(all["spec"]["initContainers"][0]["name"], "gpu-handoff");
    assert!(has_socket(&all, "containers", "app") && has_socket(&all, "containers", "log"));
    assert!(!has_socket(&all, "initContainers", "fetch") && !has_socket(&all, "initContainers", "prepare"));

    pod["metadata"]["annotations"]["gpu-handoff.io/containers"] = json!("app, prepare");
    let some = injected(&pod);
    assert!(has_socket(&some, "containers", "app") && has_socket(&some, "initContainers", "prepare"));
    assert!(!has_socket(&some, "containers", "log") && !has_socket(&some, "initContainers", "fetch"));

    pod["metadata"]["annotations"]["gpu-handoff.io/containers"] = json!("app,prepair,gpu-handoff");
    let denial = injected_by(&pod, &settings()).unwrap_err();
    assert_eq!(codes(&pod), [DenialCode::UnknownContainer; 2]);
    assert!(denial.to_string().contains("did you mean prepare?"), "{denial}");
}

#[test]
fn a_users_own_socket_variable_stays() {
    let own = json!({"name": "GPU_HANDOFF_SOCKET", "value": "/elsewhere"});
    let after = injected(&pod(json!({"containers": [{"name": "app", "env": [own]}]})));
    assert_eq!(after["spec"]["containers"][0]["env"], json!([own]));
}

#[test]
fn the_sidecar_runs_as_the_pods_user() {
    let security = |context: Value| {
        let after = injected(&pod(json!({"securityContext": context})));
        let security = after["spec"]["initContainers"][0]["securityContext"].clone();
        (security["runAsUser"].clone(), security["runAsGroup"].clone())
    };
    assert_eq!(security(json!({"runAsUser": 1000})), (Value::Null, Value::Null));
    assert_eq!(security(json!({"runAsUser": 0})), (json!(64533), json!(64533)));
    assert_eq!(security(json!({"runAsGroup": 7})), (json!(64533), Value::Null));
    assert_eq!(security(Value::Null), (json!(64533), json!(64533)));
    let left_to_the_cluster = Settings { run_as_user: None, ..settings() };
    let after = injected_by(&pod(json!({})), &left_to_the_cluster).unwrap().object;
    let security = &after["spec"]["initContainers"][0]["securityContext"];
    assert_eq!((&security["runAsUser"], &security["runAsNonRoot"]), (&Value::Null, &json!(true)));
}

#[test]
fn colocate_and_on_failure_do_what_they_say() {
    let affinity = |value| injected(&asking(&[("colocate", value)]))["spec"]["affinity"].clone();
    assert_eq!(affinity("none"), Value::Null);
    assert_eq!(affinity("required")["podAffinity"][REQUIRED].as_array().unwrap().len(), 1);
    let preferred = &affinity("preferred")["podAffinity"][PREFERRED][0];
    assert_eq!(preferred["weight"], 100);
    assert_eq!(preferred["podAffinityTerm"]["topologyKey"], "kubernetes.io/hostname");
    let probe = |value| {
        injected(&asking(&[("on-failure", value)]))["spec"]["initContainers"][0]["startupProbe"].clone()
    };
    assert!(probe("start").is_null() && probe("block").is_object());
}

#[test]
fn the_policy_says_what_a_failed_start_means_where_the_pod_does_not() {
    let probe = |rule: &str, annotations: &[(&str, &str)]| {
        let text = format!("version: gpu-handoff.io/v1\nnamespaces: {{ml: {{on-failure: {rule}}}}}\n");
        let injected = injected_under(&asking(annotations), &settings(), &Policy::read(&text).unwrap());
        injected.map(|injected| injected.object["spec"]["initContainers"][0]["startupProbe"].is_object())
    };
    let (start, block) = ([("on-failure", "start")], [("on-failure", "block")]);
    assert_eq!((probe("start", &[]), probe("start", &block)), (Ok(false), Ok(true)));
    assert_eq!((probe("block", &[]), probe("block", &start)), (Ok(true), Ok(false)));
    assert_eq!((probe("always-block", &[]), probe("always-block", &block)), (Ok(true), Ok(true)));
    let denial = probe("always-block", &start).unwrap_err().to_string();
    assert!(denial.starts_with("denied: NOT_GRANTED (on-failure: wanted block, found start)"), "{denial}");
}

#[test]
fn a_namespace_without_profiles_takes_no_part() {
    let under = |text: &str| {
        let policy = Policy::read(&format!("version: gpu-handoff.io/v1\n{text}")).unwrap();
        injected_under(&asking(&[("group", "data/llama")]), &settings(), &policy)
    };
    let denial = under("namespaces: {ml: {profiles: []}}\n").unwrap_err();
    let codes: Vec<_> = denial.reasons().iter().map(|reason| reason.code()).collect();
    assert_eq!(codes, [DenialCode::ForeignGroup, DenialCode::NotGranted], "all that is wrong");
    let text = denial.to_string();
    assert!(
        text.contains("denied: NOT_GRANTED (profile: wanted none, found client); remedy: have "),
        "{text}"
    );
    assert!(text.contains("the administrator add client to `namespaces.ml.profiles`"), "{text}");
    // A pod that asks for nothing is nobody's business.
    let policy = Policy::read("version: gpu-handoff.io/v1\nprofiles: []\n").unwrap();
    assert!(injected_under(&json!({"spec": {"containers": []}}), &settings(), &policy).is_ok());
}

#[test]
fn a_groups_name_from_a_label_is_written_down() {
    let mut pod = pod(json!({}));
    pod["metadata"]["annotations"] = json!({"gpu-handoff.io/group-from-label": "set"});
    assert_eq!(codes(&pod), [DenialCode::GroupLabelMissing]);
    pod["metadata"]["labels"] = json!({"set": "llama"});
    let after = injected(&pod);
    assert_eq!(after["metadata"]["annotations"]["gpu-handoff.io/group"], "llama");
    assert_eq!(after["metadata"]["labels"]["gpu-handoff.io/group-hash"], hash("ml/llama"));
}

#[test]
fn another_namespaces_group_needs_a_grant() {
    let foreign = asking(&[("group", "data/llama")]);
    assert_eq!(codes(&foreign), [DenialCode::ForeignGroup]);
    let policy = Policy::read(GUESTS).unwrap();
    let under = |pod: &Value| injected_under(pod, &settings(), &policy);
    let after = under(&foreign).unwrap().object;
    assert_eq!(after["metadata"]["labels"]["gpu-handoff.io/group-hash"], hash("data/llama"));
    let term = &after["spec"]["affinity"]["podAffinity"][REQUIRED][0];
    assert_eq!(term["namespaces"], json!(["ml", "data"]));
    assert!(under(&asking(&[("group", "data/other")])).is_err());
    // The rule names an account: others of the namespace are not let in.
    let mut other = foreign.clone();
    other["spec"]["serviceAccountName"] = json!("builder");
    assert!(under(&other).is_err());
    // The own namespace may be named.
    let home = injected(&asking(&[("group", "ml/llama")]));
    assert_eq!(home["metadata"]["labels"]["gpu-handoff.io/group-hash"], hash("ml/llama"));
}

#[test]
fn node_requirements_are_added_to_every_alternative() {
    let gpu = NodeRequirement { key: "gpu".to_owned(), operator: Operator::Exists, values: Vec::new() };
    let settings = Settings { node_selector: vec![gpu], ..settings() };
    let (gpu, zone) =
        (json!({"key": "gpu", "operator": "Exists"}), json!({"key": "zone", "operator": "Exists"}));
    let terms = |before: Value| {
        let pod = pod(json!({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": before}}}}));
        let after = injected_by(&pod, &settings).unwrap().object;
        after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"].clone()
    };
    assert_eq!(terms(Value::Null), json!([{"matchExpressions": [gpu]}]));
    assert_eq!(
        terms(json!([{"matchExpressions": [zone]}, {"matchFields": [1]}, {"matchExpressions": [gpu]}])),
        json!([{"matchExpressions": [zone, gpu]}, {"matchExpressions": [gpu], "matchFields": [1]}, {"matchExpressions": [gpu]}])
    );
    // A term without requirements matches no node.
    assert_eq!(terms(json!([{}, {"matchExpressions": []}])), json!([{}, {"matchExpressions": []}]));
}

#[test]
fn pods_that_cannot_take_part_are_denied() {
    let denied = [
        (json!({"hostPID": true}), DenialCode::HostPid),
        (json!({"os": {"name": "windows"}}), DenialCode::Windows),
        (json!({"nodeSelector": {"kubernetes.io/os": "windows"}}), DenialCode::Windows),
        (json!({"hostPID": "yes"}), DenialCode::PodUnreadable),
    ];
    for (spec, code) in denied {
        assert_eq!(codes(&pod(spec.clone())), [code], "{spec}");
    }
    for spec in [
        json!({"hostNetwork": true}),
        json!({"hostUsers": false}),
        json!({"os": {"name": "linux"}, "runtimeClassName": "nvidia"}),
    ] {
        assert!(injected_by(&pod(spec), &settings()).is_ok());
    }
}

#[test]
fn a_pod_of_more_containers_than_any_has_is_denied_by_their_count_alone() {
    let named = |from: usize, count: usize| {
        (from..from + count).map(|i| json!({ "name": i.to_string() })).collect::<Vec<_>>()
    };
    let of = |containers, init| {
        let spec = json!({ "containers": named(0, containers), "initContainers": named(containers, init) });
        let mut pod = pod(spec);
        pod["metadata"]["annotations"]["gpu-handoff.io/containers"] = json!("0");
        pod
    };
    assert!(injected_by(&of(POD_CONTAINERS - 1, 1), &settings()).is_ok());
    let mut over = of(POD_CONTAINERS, 1);
    over["spec"]["hostPID"] = json!(true);
    assert_eq!(codes(&over), [DenialCode::TooManyContainers]);
}

#[test]
fn a_pod_of_a_sandbox_is_denied_by_its_class_which_the_administrator_may_say_otherwise() {
    let denied = |class: &str, settings: &Settings| {
        let outcome = injected_by(&pod(json!({"runtimeClassName": class})), settings);
        outcome.err().map(|denial| denial.reasons()[0].code())
    };
    for class in
        ["kata", "kata-qemu-nvidia-gpu", "kata-clh", "gvisor", "runsc", "runsc-kvm", "urunc", "edera"]
    {
        assert_eq!(denied(class, &settings()), Some(DenialCode::SandboxedRuntime), "{class}");
    }
    for class in ["nvidia", "runc", "crun", "my-kata", "nvidia-cdi", "youki"] {
        assert_eq!(denied(class, &settings()), None, "{class}");
    }
    let own = Settings { sandboxed_runtime_classes: vec!["vm".to_owned(), "box-*".to_owned()], ..settings() };
    let found = ["vm", "vm-2", "box-1", "box", "kata"].map(|class| denied(class, &own).is_some());
    assert_eq!(found, [true, false, true, false, false]);
}

#[test]
fn a_pod_with_users_of_its_own_is_warned_or_denied_as_the_administrator_says() {
    let own = pod(json!({"hostUsers": false}));
    assert!(injected(&own)["metadata"]["labels"]["gpu-handoff.io/group-hash"].is_string());
    let warnings = injected_by(&own, &settings()).unwrap().warnings;
    assert!(matches!(&warnings[..], [one] if one.starts_with("hostUsers: false")), "{warnings:?}");
    let denying = Settings { user_namespaces: UserNamespaces::Denied, ..settings() };
    assert_eq!(injected_by(&own, &denying).unwrap_err().reasons()[0].code(), DenialCode::OwnUsers);
    for spec in [json!({"hostUsers": true}), json!({})] {
        assert_eq!(injected_by(&pod(spec), &denying).unwrap().warnings, [""; 0]);
    }
}

#[test]
fn warnings_tell_of_what_is_allowed_and_seldom_meant() {
    let warnings = |pod: &Value| injected_by(pod, &settings()).unwrap().warnings;
    assert_eq!(warnings(&asking(&[])), [""; 0]);
    let mut daemon = asking(&[]);
    daemon["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet", "name": "d"}]);
    assert!(warnings(&daemon)[0].contains("colocate to none"));
    daemon["metadata"]["annotations"]["gpu-handoff.io/colocate"] = json!("none");
    assert_eq!(warnings(&daemon), [""; 0]);
    let own = json!({"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}});
    assert!(warnings(&pod(own))[0].contains("affinity of its own"));
    let apart = |labels: Value| {
        let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}});
        let mut pod = pod(json!({"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}));
        pod["metadata"]["labels"] = json!({"app": "x", "tier": "y"});
        pod
    };
    assert!(warnings(&apart(json!({"app": "x"})))[0].contains("a second pod like it stays Pending"));
    assert_eq!(warnings(&apart(json!({"app": "x", "tier": "z"}))), [""; 0]);
    assert_eq!(warnings(&apart(json!({}))), [""; 0]);

    let misplaced = json!({"metadata": {"labels": {"gpu-handoff.io/group": "llama"}}});
    assert!(warnings(&misplaced)[0].contains("reads annotations"));
    let misspelt = json!({"metadata": {"annotations": {"gpu-handof.io/group": "llama"}}});
    assert!(warnings(&misspelt)[0].contains("begin with gpu-handoff.io/"));
    let name = |i: usize| (format!("gpu-handoff.io/{i}{}\n", "x".repeat(1 << 20)), json!("llama"));
    let many: serde_json::Map<_, _> = (0..limits::WARNINGS + 2).map(name).collect();
    let many = json!({"metadata": {"labels": many, "annotations": misspelt["metadata"]["annotations"]}});
    let told = warnings(&many);
    assert_eq!(told.len(), limits::WARNINGS + 1);
    assert_eq!(told[limits::WARNINGS], "and 3 more labels and annotations that do nothing");
    assert!(told.iter().all(|one| one.len() < 2 * limits::SHOWN_BYTES), "{}", told[0].len());
    let another = json!({"metadata": {"annotations": {"example.com/group": "llama"}}});
    assert_eq!(warnings(&another), [""; 0]);
}
