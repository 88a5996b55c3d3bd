//! `gpu-handoff inject`, as it is run.

#![cfg(feature = "inject")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const POD: &str = "\
# kept by nobody
apiVersion: v1
kind: Pod
metadata:
  name: server
  namespace: ml
  annotations:
    gpu-handoff.io/group: llama
spec:
  containers:
  - name: app
    image: app:1
";

fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-handoff"));
    let command = command.arg("inject").args(arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Injects what comes on standard input.
fn inject(more: &[&str], input: &str) -> Output {
    run(&[&["-f", "-", "--image", "sidecar:1"], more].concat(), input)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What came out, as JSON.
fn injected(input: &str) -> Value {
    let output = inject(&["-o", "json"], input);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn has_sidecar(pod: &Value) -> bool {
    pod["spec"]["initContainers"][0]["name"] == "gpu-handoff"
}

fn annotated(template: &Value) -> Value {
    let mut template = template.clone();
    template["metadata"] = json!({"annotations": {"gpu-handoff.io/group": "llama"}});
    template
}

#[test]
fn a_pod_comes_out_as_yaml_that_can_be_put_in_again() {
    let once = inject(&[], POD);
    assert_eq!((once.status.code(), text(&once.stderr).as_str()), (Some(0), ""));
    let once = text(&once.stdout);
    assert!(once.starts_with("apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n"), "{once}");
    assert!(
        once.contains("    gpu-handoff.io/injected: \"0.1.0\"\n")
            && once.contains("\n  - args:\n    - serve\n")
    );
    assert_eq!(text(&inject(&[], &once).stdout), once, "a second time changes nothing");
    assert!(has_sidecar(&injected(POD)) && has_sidecar(&injected(&once)));
}

#[test]
fn templates_of_every_kind_are_found() {
    let pod = annotated(&json!({"spec": {"containers": [{"name": "app"}]}}));
    let template = |group: &str, kind: &str, spec: Value| json!({"apiVersion": group, "kind": kind, "metadata": {"name": "x", "namespace": "ml"}, "spec": spec});
    let job = json!({"spec": {"template": pod}});
    let kinds = [
        (template("apps/v1", "Deployment", json!({"template": pod})), vec!["/spec/template"]),
        (template("apps/v1", "StatefulSet", json!({"template": pod})), vec!["/spec/template"]),
        (template("apps/v1", "DaemonSet", json!({"template": pod})), vec!["/spec/template"]),
        (template("apps/v1", "ReplicaSet", json!({"template": pod})), vec!["/spec/template"]),
        (template("batch/v1", "Job", json!({"template": pod})), vec!["/spec/template"]),
        (
            template("batch/v1", "CronJob", json!({"jobTemplate": job})),
            vec!["/spec/jobTemplate/spec/template"],
        ),
        (
            template(
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                json!({"leaderWorkerTemplate": {"leaderTemplate": pod, "workerTemplate": pod}}),
            ),
            vec!["/spec/leaderWorkerTemplate/leaderTemplate", "/spec/leaderWorkerTemplate/workerTemplate"],
        ),
        (
            template(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                json!({"replicatedJobs": [{"template": job}, {"template": job}]}),
            ),
            vec![
                "/spec/replicatedJobs/0/template/spec/template",
                "/spec/replicatedJobs/1/template/spec/template",
            ],
        ),
    ];
    for (object, paths) in &kinds {
        let after = injected(&object.to_string());
        for path in paths {
            assert!(has_sidecar(after.pointer(path).unwrap()), "{} {path}", object["kind"]);
        }
    }
    let items: Vec<_> = kinds.iter().map(|(object, _)| object).collect();
    let list = injected(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    for (item, (_, paths)) in list["items"].as_array().unwrap().iter().zip(&kinds) {
        assert!(paths.iter().all(|path| has_sidecar(item.pointer(path).unwrap())));
    }
}

#[test]
fn what_nothing_is_added_to_comes_out_as_it_went_in() {
    let map = "# a map\napiVersion: v1\nkind: ConfigMap\ndata:\n  mode:   '0644' # kept\n";
    let bare = "apiVersion: v1\nkind: Pod\nspec: {hostPID: true}\n";
    let output = inject(&[], &format!("---\n{map}---\n{POD}---\n{bare}"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(
        out.starts_with(&format!("{map}---\napiVersion: v1\n")) && out.ends_with(&format!("---\n{bare}")),
        "{out}"
    );
    let list = injected(&format!("{map}---\n{POD}"));
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 2));
    let pod: Value = serde_yaml::from_str(POD).unwrap();
    let json = format!("{}{pod}", json!({"kind": "ConfigMap"}));
    assert_eq!(injected(&json)["items"][0], json!({"kind": "ConfigMap"}));
}

#[test]
fn file_modes_are_octal_and_texts_stay_texts() {
    let volumes =
        "  volumes:\n  - name: s\n    secret: {defaultMode: 0400, items: [{key: a, path: a, mode: 0644}]}\n";
    let env = "    env:\n    - name: A\n      value: 'yes'\n    - name: B\n      value: '0644'\n";
    let output = text(&inject(&[], &format!("{POD}{env}{volumes}")).stdout);
    for line in [
        "      defaultMode: 256\n",
        "        mode: 420\n",
        "      value: \"yes\"\n",
        "      value: \"0644\"\n",
    ] {
        assert!(output.contains(line), "{line}{output}");
    }
}

#[test]
fn a_denial_is_exit_code_1_and_nothing_is_written() {
    let denied = POD.replace("/group:", "/gruop:").replace("server", "other");
    let output = inject(&[], &format!("{POD}---\n{denied}"));
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    let told = text(&output.stderr);
    for part in [
        "error: Pod ml/other is denied\n",
        "  UNKNOWN_ANNOTATION\n",
        "    remedy: did you mean gpu-handoff.io/group?\n",
        "  GROUP_MISSING\n",
        "    more: gpu-handoff explain GROUP_MISSING\n",
    ] {
        assert!(told.contains(part), "{part}{told}");
    }
    assert!(!told.contains("ml/server"));
}

#[test]
fn the_place_of_a_denied_template_is_told() {
    let job = json!({"spec": {"template": annotated(&json!({"spec": {"hostPID": true}}))}});
    let set = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x", "namespace": "ml"},
        "spec": {"replicatedJobs": [{"template": job}]},
    });
    let told = text(&inject(&[], &set.to_string()).stderr);
    assert!(told.contains("JobSet ml/x, spec.replicatedJobs.0.template.spec.template is denied"), "{told}");
}

#[test]
fn the_namespace_must_be_known_where_it_matters() {
    let nowhere = POD.replace("  namespace: ml\n", "");
    let output = inject(&[], &nowhere);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--namespace NAME"), "{}", text(&output.stderr));
    let hash = |arguments: &[&str], input: &str| {
        let output = inject(&[arguments, &["-o", "json"]].concat(), input);
        let pod: Value = serde_json::from_slice(&output.stdout).unwrap();
        pod["metadata"]["labels"]["gpu-handoff.io/group-hash"].as_str().unwrap().to_owned()
    };
    assert_eq!(hash(&["-n", "ml"], &nowhere), hash(&[], POD));
    assert_eq!(hash(&["-n", "other"], POD), hash(&[], POD), "the object's own goes before");
    assert_ne!(hash(&["-n", "other"], &nowhere), hash(&[], POD));
    let asks_nothing = nowhere.replace("gpu-handoff.io", "example.com");
    assert_eq!(text(&inject(&[], &asks_nothing).stdout), asks_nothing);
}

#[test]
fn a_namespace_that_cannot_be_is_refused_and_not_replaced() {
    for (value, told) in [("12", "is 12, which is no text"), ("ML", "is \"ML\", which is no name of one")] {
        let pod = POD.replace("namespace: ml", &format!("namespace: {value}"));
        let output = inject(&["-n", "other"], &pod);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""));
        assert!(
            text(&output.stderr).contains(&format!("metadata.namespace {told}")),
            "{}",
            text(&output.stderr)
        );
        let asks_nothing = pod.replace("gpu-handoff.io", "example.com");
        assert_eq!(text(&inject(&[], &asks_nothing).stdout), asks_nothing);
    }
}

#[test]
fn what_a_file_says_is_no_command_to_the_terminal() {
    let name = |pod: &str| pod.replace("name: server", "name: \"a\\e[31m\\r\\nwarning: b\\u009b\"");
    let warned =
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: server\n  labels: {gpu-handoff.io/group: x}\n";
    let misplaced = json!({"kind": "List", "apiVersion": "v1", "\u{1b}[2J\n": {"gpu-handoff.io/group": "x"}});
    for (input, code, lines) in [
        (name(warned), 0, 1),
        (name(POD).replace("image: app:1", "image: [1]"), 1, 5),
        (name(POD).replace("namespace: ml", "namespace: 12"), 2, 2),
        (name(POD).replace("  namespace: ml\n", ""), 2, 1),
        (name(POD).replace("kind: Pod", "kind: Pad"), 0, 1),
        (misplaced.to_string(), 0, 1),
        ("a: !x%1b%5b31m y\n".to_owned(), 2, 2),
    ] {
        let output = inject(&[], &input);
        let told = text(&output.stderr);
        assert_eq!((output.status.code(), told.lines().count()), (Some(code), lines), "{told:?}");
        assert!(!told.replace('\n', "").contains(char::is_control), "{told:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.yaml");
    std::fs::write(&path, "\"\\e[31m\\n\": 1\n").unwrap();
    for option in ["--settings", "--policy"] {
        let told = text(&inject(&[option, path.to_str().unwrap()], POD).stderr);
        assert!(!told.replace('\n', "").contains(char::is_control) && told.contains("[31m"), "{told:?}");
    }
}

#[test]
fn settings_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.yaml");
    let with = |settings: &str, more: &[&str]| {
        std::fs::write(&path, settings).unwrap();
        run(&[&["-f", "-", "--settings", path.to_str().unwrap(), "-o", "json"], more].concat(), POD)
    };
    let output = with("image: sidecar:7\nimage-pull-policy: Never\nrun-as-user: 7\n", &[]);
    let pod: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sidecar = &pod["spec"]["initContainers"][0];
    assert_eq!((&sidecar["image"], &sidecar["imagePullPolicy"]), (&json!("sidecar:7"), &json!("Never")));
    assert_eq!(sidecar["securityContext"]["runAsUser"], 7);
    let output = with("image: sidecar:7\n", &["--image", "mine:1"]);
    let pod: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(pod["spec"]["initContainers"][0]["image"], "mine:1");

    for (settings, told) in [
        ("image: x\nimmage: y\n", "line 2"),
        ("image-pull-policy: Never\n", "wanted the name of an image"),
        ("image: x\nrun-as-user: 0\n", "another user than root"),
    ] {
        let output = with(settings, &[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
    }
}

#[test]
fn the_policy_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let with = |policy: &str| {
        std::fs::write(&path, format!("version: gpu-handoff.io/v1\n{policy}")).unwrap();
        inject(&["--policy", path.to_str().unwrap(), "-o", "json"], POD)
    };
    let output = with("namespaces: {ml: {profiles: []}}\n");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    let told = text(&output.stderr);
    assert!(told.contains("NOT_GRANTED\n    profile: wanted none, found client\n"), "{told}");
    let output = with("namespaces: {ml: {on-failure: start}}\n");
    let pod: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(has_sidecar(&pod) && pod["spec"]["initContainers"][0]["startupProbe"].is_null());
}

#[test]
fn what_cannot_be_read_is_exit_code_2() {
    for (arguments, input, told) in [
        (vec!["-f", "/nowhere/pod.yaml", "--image", "x"], "", "/nowhere/pod.yaml"),
        (vec!["-f", "-", "--image", "x"], "a: 1\n---\nb: [\n", "line 4"),
        (vec!["-f", "-"], POD, "--image"),
        (vec!["--image", "x"], POD, "--filename"),
        (vec!["-f", "-", "--image", "x", "-o", "table"], POD, "possible values"),
    ] {
        let output = run(&arguments, input);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{arguments:?}");
        assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
    }
    let output = inject(&[], &"#".repeat((16 << 20) + 1));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("more than 16777216 bytes"));
}

#[test]
fn what_is_seldom_meant_is_told_and_done() {
    let template = annotated(&json!({"spec": {"containers": [{"name": "app"}]}}));
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x", "namespace": "ml"},
        "spec": {"template": template},
    });
    let warnings = |object: &Value| {
        let output = inject(&[], &object.to_string());
        assert_eq!(output.status.code(), Some(0));
        text(&output.stderr)
    };
    assert!(
        warnings(&set)
            .starts_with("warning: DaemonSet ml/x, spec.template: a DaemonSet has a pod on every node")
    );
    set["kind"] = json!("Deployment");
    assert_eq!(warnings(&set), "");
    set["metadata"]["annotations"] = json!({"gpu-handoff.io/group": "llama"});
    assert!(
        warnings(&set).contains("metadata.annotations: what begins with gpu-handoff.io/ does nothing there")
    );
    set["apiVersion"] = json!("example.com/v1");
    assert!(warnings(&set).contains("passed on as it is"));
}

#[test]
fn annotations_in_a_wrong_place_are_told_with_the_right_one() {
    let misplaced = json!({"annotations": {"gpu-handoff.io/group": "g"}});
    let pod = json!({"containers": [{"name": "app"}]});
    let job = json!({"metadata": misplaced, "spec": {"template": {"spec": pod}}});
    let template = annotated(&json!({"spec": pod}));
    let replicated = json!({"a": {"template": {"spec": {"template": template}}}});
    let homes =
        ["spec.template", "spec.jobTemplate.spec.template", "spec.replicatedJobs.*.template.spec.template"];
    for (group, kind, spec, found, home) in [
        ("batch/v1", "CronJob", json!({"jobTemplate": job}), "spec.jobTemplate.metadata", homes[1]),
        (
            "jobset.x-k8s.io/v1",
            "JobSet",
            json!({"replicatedJobs": [{"template": job}]}),
            "spec.replicatedJobs.0.template.metadata",
            homes[2],
        ),
        (
            "jobset.x-k8s.io/v1",
            "JobSet",
            json!({"replicatedJobs": replicated}),
            "spec.replicatedJobs.a.template.spec.template.metadata",
            homes[2],
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"metadata": misplaced, "template": {"spec": pod}}),
            "spec.metadata",
            homes[0],
        ),
        (
            "apps/v1",
            "Deployment",
            json!({"template": {"annotations": misplaced["annotations"], "spec": pod}}),
            "spec.template",
            homes[0],
        ),
        ("apps/v1", "Deployment", json!([{"template": template}]), "spec.0.template.metadata", homes[0]),
    ] {
        let object = json!({"apiVersion": group, "kind": kind, "metadata": {"name": "x", "namespace": "ml"}, "spec": spec});
        let output = inject(&["-o", "json"], &object.to_string());
        let after: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), after), (Some(0), object));
        let wanted = format!(
            "warning: {kind} ml/x, {found}.annotations: what begins with gpu-handoff.io/ does nothing there: it belongs in \
             {home}.metadata.annotations\n"
        );
        assert_eq!(text(&output.stderr), wanted);
    }
    let list =
        json!({"apiVersion": "v1", "kind": "List", "items": {"a": {"kind": "Pod", "metadata": misplaced}}});
    let told = text(&inject(&[], &list.to_string()).stderr);
    assert!(told.contains(", items.a.metadata.annotations: what begins with"), "{told}");
    let spec =
        json!({"template": {"spec": pod}, "volumeClaimTemplates": vec![json!({"metadata": misplaced}); 10]});
    let many =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "x"}, "spec": spec});
    let told = text(&inject(&[], &many.to_string()).stderr);
    assert!(told.lines().count() == 9 && told.ends_with("StatefulSet x: and 2 more places\n"), "{told}");
}
