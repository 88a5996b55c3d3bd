//! `gpu-handoff policy`, as it is run, and as `docs/policy.md` shows it.

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const PAGE: &str = include_str!("../../docs/policy.md");
const FRAMES: &str = "version: gpu-handoff.io/v1
exchange:
  - name: frames
    publish: [{namespaces: [video], groups: [decode], service-accounts: [decoder]}, {namespaces: [ml], groups: [infer]}]
    acquire: [{namespaces: [ml], groups: [infer]}, {namespaces: [web], groups: [ml/infer]}]
";

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-handoff"));
    command.current_dir(folder).arg("policy").args(arguments).output().unwrap()
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// The exit code and what was said on standard output, or else on standard error.
fn said(files: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(folder(files).path(), arguments);
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn the_page_shows_what_is_said() {
    let block = |begin: &str| PAGE.split(begin).nth(1).unwrap().split("```").next().unwrap();
    let frames = PAGE.split("```yaml\n").find(|text| text.contains("- name: frames")).unwrap();
    let frames = frames.split("```").next().unwrap();
    let wrong = "version: gpu-handoff.io/v1\nnamespaces:\n  ml:\n    quota: {bufers: 3}\n";
    let mut shown = 0;
    for (console, policy) in
        [("policy check policy.yaml\n", wrong), ("video/decode/decoder ml/infer\n", frames)]
    {
        let _ = block(console);
        let console = PAGE.split("```console\n").find(|text| text.contains(console)).unwrap();
        let console = console.split("```").next().unwrap();
        for call in console.split("$ gpu-handoff policy ").filter(|call| !call.is_empty()) {
            let (arguments, wanted) = call.split_once('\n').unwrap();
            let arguments: Vec<&str> = arguments.split(' ').collect();
            assert_eq!(said(&[("policy.yaml", policy)], &arguments).1, wanted, "{arguments:?}");
            shown += 1;
        }
    }
    assert_eq!(shown, 3);
}

#[test]
fn a_policy_is_checked() {
    let check = |text: &str| said(&[("p", text)], &["check", "p"]);
    let well = "p: a policy; rules of exchange: 1, namespaces with terms of their own: 0\n";
    assert_eq!(check(FRAMES), (Some(0), well.to_owned()));
    let (code, text) = check("version: gpu-handoff.io/v1\nlegcy: deny\n");
    assert_eq!(code, Some(1));
    assert!(text.starts_with("p: line 2 column 1: unknown field `legcy`"), "{text}");
    let (code, text) = check("version: gpu-handoff.io/v1\nnamespaces: {ml: {profiles: [torch]}}\n");
    assert_eq!(code, Some(0));
    assert!(
        text.contains("warning: namespaces.ml.profiles: this version serves no pods of profile torch"),
        "{text}"
    );
    let (code, text) = said(&[], &["check", "nowhere"]);
    assert_eq!(code, Some(2));
    assert!(text.starts_with("error: read nowhere\n  because: "), "{text}");
    let (code, text) =
        said(&[("p", "version: gpu-handoff.io/v1\nquota: {leases: x}\n")], &["check", "p", "-o", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &json["valid"], &json["error"]["line"]),
        (Some(1), &Value::Bool(false), &Value::from(2))
    );
}

#[test]
fn two_pods_are_answered_for_with_the_reason() {
    let ask = |pods: &[&str]| said(&[("p", FRAMES)], &[&["can-share", "--file", "p"], pods].concat());
    let yes = "yes: ml/infer and ml/infer/x are of one namespace and one group\n";
    assert_eq!(ask(&["ml/infer", "ml/infer/x"]), (Some(0), yes.to_owned()));
    let (code, text) = ask(&["video/decode/other", "ml/infer"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("nearest: rule frames; it does not name the publisher's service account\n"),
        "{text}"
    );
    for (pods, wrong) in [
        (&["ml/infer"][..], "error: wanted two pods, found 1"),
        (&["ml/infer", "a/b", "c/d"], "error: wanted two pods, found 3"),
        (&["ml", "a/b"], "error: invalid value 'ml'"),
    ] {
        let (code, text) = ask(pods);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.starts_with(wrong), "{text}");
    }
    let (code, text) = ask(&["video/decode/decoder", "ml/infer", "-o", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &json["allowed"], &json["rule"]),
        (Some(0), &Value::Bool(true), &Value::from("frames"))
    );
    let (code, text) = ask(&["ml/infer", "a/b", "-o", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["missing"]["acquire"][0]["namespaces"][0]), (Some(1), &Value::from("a")));
}

#[test]
fn what_is_said_to_be_missing_is_enough() {
    let none = "version: gpu-handoff.io/v1\n";
    let pods = ["video/decode/decoder", "ml/infer"];
    let (code, text) = said(&[("p", none)], &[&["can-share", "--file", "p"][..], &pods].concat());
    assert_eq!(code, Some(1));
    let (_, written) = text.split_once("write:\n").unwrap();
    let written: String =
        written.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap())).collect();
    let with = format!("{none}{written}");
    let (code, text) = said(&[("p", &with)], &[&["can-share", "--file", "p"][..], &pods].concat());
    assert_eq!(code, Some(0), "{text}");
}

/// As `kubectl get pod ONE OTHER -o json` writes them.
#[test]
fn pods_that_run_are_named_by_what_kubectl_says_of_them() {
    let pod = |name: &str, group: &str, account: &str| {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "ml", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": { "gpu-handoff.io/group": group, "gpu-handoff.io/injected": "0.1.0" },
                "labels": { "gpu-handoff.io/group-hash": "0123456789abcdef" },
            },
            "spec": {
                "serviceAccountName": account, "nodeName": "node-1", "containers": [{ "name": "app", "image": "a" }],
                "initContainers": [{ "name": "gpu-handoff", "image": "s", "restartPolicy": "Always" }],
            },
            "status": { "phase": "Running", "podIP": "10.0.0.1" },
        })
    };
    let list = |items: [Value; 2]| {
        serde_json::json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "" }, "items": items }).to_string()
    };
    let alike = list([pod("trainer", "infer", "t"), pod("server", "infer", "s")]);
    let apart = list([pod("trainer", "train", "t"), pod("server", "infer", "s")]);
    let ask = |file: &str| said(&[("p", FRAMES), ("f", file)], &["can-share", "--file", "p", "-f", "f"]);
    let (code, text) = ask(&alike);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("Pod trainer (namespace ml, group ml/infer, service account t) and Pod server"),
        "{text}"
    );
    let (code, text) = ask(&apart);
    assert_eq!(code, Some(1));
    assert!(text.contains("are of two groups"), "{text}");
}

#[test]
fn manifests_name_pods_as_well() {
    let pod = |namespace: &str, group: &str, spec: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n{namespace}  annotations: {{gpu-handoff.io/group: {group}}}\n\
             spec: {{{spec}}}\n"
        )
    };
    let decoder = pod("  namespace: video\n", "decode", "serviceAccountName: decoder");
    let guest = pod("  namespace: web\n", "ml/infer", "");
    let stranger = pod("  namespace: web\n", "ml/train", "");
    let both =
        format!("{decoder}---\n{guest}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: bystander}}\n");
    let homeless = pod("", "infer", "");
    let wrong = pod("  namespace: 12\n", "infer", "");
    let files = [
        ("p", FRAMES),
        ("both", &both),
        ("decoder", &decoder),
        ("stranger", &stranger),
        ("homeless", &homeless),
        ("wrong", &wrong),
    ];
    let ask = |arguments: &[&str]| said(&files, &[&["can-share", "--file", "p"], arguments].concat());
    let (code, text) = ask(&["-f", "both"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Pod x (namespace web, group ml/infer, service account default)"), "{text}");
    let (code, text) = ask(&["-f", "decoder", "-f", "stranger"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("may not be in group ml/train"), "{text}");
    let (code, text) = ask(&["-f", "decoder", "-f", "homeless"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("does not say its namespace; --namespace NAME gives it"), "{text}");
    let (code, text) = ask(&["-f", "decoder", "-f", "homeless", "-n", "ml"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = ask(&["-f", "decoder", "-f", "wrong", "-n", "ml"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("metadata.namespace is 12, which is no text"), "{text}");
    let (code, text) = ask(&["-f", "decoder", "ml/infer"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn what_a_file_says_is_no_command_to_the_terminal() {
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a\u{1b}[31m\nyes: b", "namespace": "ml", "annotations": {"gpu-handoff.io/group": "infer"}},
    });
    let files = [("p", FRAMES), ("f", &pod.to_string()), ("bad", "\"\\e[31m\\n\": 1\n")];
    for (arguments, code) in
        [(vec!["can-share", "--file", "p", "-f", "f", "ml/infer"], 0), (vec!["check", "bad"], 1)]
    {
        let (found, text) = said(&files, &arguments);
        assert_eq!((found, text.trim_end().lines().count()), (Some(code), 1), "{text:?}");
        assert!(text.contains("[31m") && !text.trim_end().contains(char::is_control), "{text:?}");
    }
}
