//! What is in the cluster.

use k8s_openapi::api::apps::v1::DaemonSet;
use serde_json::{Value, json};

use super::*;
use crate::doctor::cluster;

#[test]
fn a_csi_driver_that_is_not_as_it_has_to_be() {
    let id = "cluster.csi-driver";
    says(&of_objects(id, |o| o.csi_driver = Looked::Absent), Verdict::Problem, "there is no CSIDriver");
    for (field, value, part) in [
        ("podInfoOnMount", json!(false), "podInfoOnMount"),
        ("volumeLifecycleModes", json!(["Persistent"]), "Ephemeral"),
        ("attachRequired", json!(true), "attachRequired"),
    ] {
        let mut driver = of_plugin("CSIDriver", "gpu-handoff.io");
        driver["spec"][field] = value;
        says(&of_objects(id, |o| o.csi_driver = Looked::Found(object(driver))), Verdict::Problem, part);
    }
}

#[test]
fn a_webhook_that_is_not_as_it_has_to_be() {
    for id in ["webhook.configuration", "webhook.namespaces"] {
        says(&of_objects(id, |o| o.webhook = Looked::Absent), Verdict::Problem, "there is no Mutating");
    }
    let with = |id: &str, change: fn(&mut Value)| {
        let mut configuration = serde_json::to_value(configuration()).unwrap();
        change(&mut configuration["webhooks"][0]);
        of_objects(id, |o| o.webhook = Looked::Found(object(configuration)))
    };
    let id = "webhook.configuration";
    says(&with(id, |hook| hook["name"] = json!("others")), Verdict::Problem, "has no webhook");
    says(&with(id, |hook| hook["failurePolicy"] = json!("Ignore")), Verdict::Problem, "failurePolicy");
    says(
        &with(id, |hook| hook["clientConfig"]["caBundle"] = Value::Null),
        Verdict::Problem,
        "caBundle is empty",
    );
    let id = "webhook.namespaces";
    says(
        &with(id, |hook| hook["namespaceSelector"] = Value::Null),
        Verdict::Note,
        "kube-system and gpu-handoff",
    );
}

#[test]
fn a_webhook_that_nobody_serves_or_of_another_version() {
    let id = "webhook.endpoints";
    says(&of_objects(id, |o| o.endpoints = Looked::Absent), Verdict::Problem, "no pod is ready");
    let of = |ready: &[Option<bool>]| {
        let slices = vec![object(slice(ready))];
        of_objects(id, |o| o.endpoints = Looked::Found(slices))
    };
    says(&of(&[Some(false)]), Verdict::Problem, "no pod is ready");
    says(&of(&[Some(true), Some(false)]), Verdict::Note, "one pod answers");
    let id = "webhook.version";
    says(
        &of_objects(id, |o| o.deployment = Looked::Absent),
        Verdict::CouldNotCheck,
        "there is no Deployment",
    );
    says(&of_objects(id, |o| o.plugin = Looked::Absent), Verdict::CouldNotCheck, "there is no DaemonSet");
    let mut plugin = of_plugin("DaemonSet", "gpu-handoff-plugin");
    plugin["spec"]["template"]["spec"]["containers"][0]["image"] = json!("gpu-handoff-plugin:0.0.9");
    let plugin: DaemonSet = object(plugin);
    says(
        &of_objects(id, |o| o.plugin = Looked::Found(plugin)),
        Verdict::Problem,
        "the plugin gpu-handoff-plugin:0.0.9",
    );
}

#[test]
fn the_manifest_lets_the_daemons_pod_ask_by_name() {
    let rule = |group: &str, resource: &str, name: &str| json!({ "apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": ["get"] });
    let has = |kind: &str, wanted: Value| {
        let role = of_plugin(kind, cluster::PLUGIN);
        assert!(role["rules"].as_array().unwrap().contains(&wanted), "{wanted} is not in {role:#}");
    };
    has("ClusterRole", rule("storage.k8s.io", "csidrivers", cluster::DRIVER));
    let webhooks = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
    has("ClusterRole", rule(webhooks.0, webhooks.1, cluster::WEBHOOK));
    has("Role", rule("apps", "deployments", cluster::SERVICE));
    has("Role", rule("apps", "daemonsets", cluster::PLUGIN));
    let slices =
        json!({ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"] });
    has("Role", slices);
}

#[test]
fn evictions_that_nothing_holds_to_their_node() {
    let id = "cluster.evictions";
    let with = |which: usize, change: fn(&mut Guard)| of_objects(id, |o| change(&mut o.evictions[which]));
    for which in [0, 1] {
        let none = with(which, |guard| guard.policy = Looked::Absent);
        says(&none, Verdict::Problem, "there is no ValidatingAdmissionPolicy gpu-handoff-");
        let none = with(which, |guard| guard.binding = Looked::Absent);
        says(&none, Verdict::Problem, "there is no ValidatingAdmissionPolicyBinding gpu-handoff-");
        let changed = |kind: &str, field: &str, value: Value| {
            let mut changed = of_plugin(kind, cluster::EVICTIONS[which]);
            changed["spec"][field] = value;
            changed
        };
        let ignored = changed("ValidatingAdmissionPolicy", "failurePolicy", json!("Ignore"));
        let seen = of_objects(id, |o| o.evictions[which].policy = Looked::Found(object(ignored)));
        says(&seen, Verdict::Problem, "failurePolicy: Ignore");
        for (field, value) in [("validationActions", json!(["Audit"])), ("policyName", json!("another"))] {
            let loose = changed("ValidatingAdmissionPolicyBinding", field, value);
            let seen = of_objects(id, |o| o.evictions[which].binding = Looked::Found(object(loose)));
            says(&seen, Verdict::Problem, "does not deny");
        }
    }
    // Where nobody is evicted it has no bearing.
    let mut status = status();
    status.policy.as_mut().unwrap().evicts = false;
    let facts = Facts { daemon: Heard::Answer(Box::new(status)), ..well() };
    assert_eq!(look(id, &facts), None);
}
