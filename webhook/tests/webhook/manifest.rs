//! `manifests/webhook.yaml` and the code mean the same objects.

use std::fs;

use gpu_handoff_inject::Settings;
use gpu_handoff_webhook::{Args, limits, names};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Probe, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn documents() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/webhook.yaml");
    let text = fs::read_to_string(path).unwrap();
    serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The one object of a kind; every field of it is one that Kubernetes knows.
fn the<T: DeserializeOwned + serde::Serialize>(kind: &str) -> T {
    let mut found = documents();
    found.retain(|document| document["kind"] == kind);
    assert_eq!(found.len(), 1, "{kind}");
    let object: T = serde_json::from_value(found[0].clone()).unwrap();
    assert_eq!(serde_json::to_value(&object).unwrap(), found[0], "a field is unknown");
    object
}

#[test]
fn the_api_server_is_led_to_the_webhook() {
    let configuration: MutatingWebhookConfiguration = the("MutatingWebhookConfiguration");
    assert_eq!(configuration.metadata.name.as_deref(), Some(names::CONFIGURATION));
    assert!(names::CONFIGURATION > "lws-mutating-webhook-configuration", "webhooks are asked in this order");
    let [webhook] = configuration.webhooks.unwrap().try_into().unwrap();
    assert_eq!(webhook.name, names::CONFIGURATION);
    assert_eq!(webhook.client_config.ca_bundle, None, "whoever applies this must not own it");
    let target = webhook.client_config.service.unwrap();
    let service: Service = the("Service");
    assert_eq!(
        (Some(target.name.as_str()), Some(&target.namespace)),
        (service.metadata.name.as_deref(), service.metadata.namespace.as_ref())
    );
    assert_eq!(target.name, names::SERVICE);
    assert_eq!(target.path.as_deref(), Some(names::INJECT_PATH));
    let spec = service.spec.unwrap();
    assert_eq!(target.port, Some(spec.ports.unwrap()[0].port));
    let deployment: Deployment = the("Deployment");
    let spec_of = deployment.spec;
    let labels = spec_of.template.metadata.unwrap().labels;
    assert_eq!(spec.selector, labels);
    assert_eq!(spec_of.selector.match_labels, labels);
    let budget: PodDisruptionBudget = the("PodDisruptionBudget");
    assert_eq!(budget.spec.unwrap().selector.unwrap().match_labels, labels);
    assert!(webhook.timeout_seconds.unwrap() <= i32::try_from(limits::REQUEST_TIME.as_secs()).unwrap());
    assert_eq!(webhook.failure_policy.as_deref(), Some("Fail"));
    assert_eq!(webhook.reinvocation_policy.as_deref(), Some("IfNeeded"));
}

#[test]
fn its_pods_are_called_as_the_program_expects() {
    let deployment: Deployment = the("Deployment");
    let account: ServiceAccount = the("ServiceAccount");
    let spec = deployment.spec;
    assert_eq!(spec.replicas, Some(2));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.service_account_name, account.metadata.name);
    let leaving = limits::LEAVE_TIME + limits::DRAIN_TIME;
    assert!(pod.termination_grace_period_seconds.unwrap() > i64::try_from(leaving.as_secs()).unwrap());
    let container = &pod.containers[0];
    let args = parsed(container.args.as_ref().unwrap());
    assert_eq!(i32::from(args.listen.port()), container.ports.as_ref().unwrap()[0].container_port);
    let mount = &container.volume_mounts.as_ref().unwrap()[0].mount_path;
    assert_eq!(args.settings.parent().unwrap().to_str(), Some(mount.as_str()));
    let paths = [&container.startup_probe, &container.readiness_probe, &container.liveness_probe].map(
        |probe: &Option<Probe>| probe.as_ref().unwrap().http_get.as_ref().unwrap().path.clone().unwrap(),
    );
    assert_eq!(paths, [names::HEALTH_PATH, names::READY_PATH, names::HEALTH_PATH]);
    let settings: Value = the("ConfigMap");
    let file = args.settings.file_name().unwrap().to_str().unwrap();
    let settings: Settings = serde_yaml::from_str(settings["data"][file].as_str().unwrap()).unwrap();
    settings.check().unwrap();
    // The nodes' policy is mounted there, too.
    let policy = args.policy.unwrap();
    assert_eq!(policy.parent(), args.settings.parent());
    let volume = pod.volumes.unwrap().into_iter().find(|volume| volume.projected.is_some()).unwrap();
    let maps = volume.projected.unwrap().sources.unwrap().into_iter().filter_map(|one| one.config_map);
    let names: Vec<_> = maps.map(|map| map.name).collect();
    let policies: Value = serde_yaml::from_str(include_str!("../../../manifests/policy.yaml")).unwrap();
    let file = policy.file_name().unwrap().to_str().unwrap();
    gpu_handoff_policy::Policy::read(policies["data"][file].as_str().unwrap()).unwrap();
    assert!(names.iter().any(|name| policies["metadata"]["name"] == *name), "{names:?}");
}

#[derive(clap::Parser)]
struct Program {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(clap::Subcommand)]
enum Mode {
    Webhook(Args),
}

fn parsed(args: &[String]) -> Args {
    let all = std::iter::once("gpu-handoff-plugin").chain(args.iter().map(String::as_str));
    let Mode::Webhook(args) = <Program as clap::Parser>::parse_from(all).mode;
    args
}

#[test]
fn it_may_do_what_it_does_and_nothing_else() {
    let role: Role = the("Role");
    let secret: Secret = the("Secret");
    assert_eq!(secret.metadata.name.as_deref(), Some(names::SECRET));
    assert_eq!((secret.data, secret.string_data), (None, None));
    let rules = |rules| serde_json::to_value(rules).unwrap();
    assert_eq!(
        rules(role.rules.unwrap()),
        json!([{
            "apiGroups": [""], "resources": ["secrets"], "resourceNames": [names::SECRET],
            "verbs": ["get", "list", "watch", "update"],
        }])
    );
    let role: ClusterRole = the("ClusterRole");
    assert_eq!(
        rules(role.rules.unwrap()),
        json!([{
            "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"],
            "resourceNames": [names::CONFIGURATION], "verbs": ["list", "watch", "patch"],
        }])
    );
}

#[test]
fn its_pods_pass_the_restricted_standard() {
    let deployment: Deployment = the("Deployment");
    let pod = deployment.spec.template.spec.unwrap();
    assert_eq!((pod.host_network, pod.host_pid, pod.host_ipc), (None, None, None));
    let of_pod = pod.security_context.unwrap();
    assert_eq!(of_pod.run_as_non_root, Some(true));
    assert_eq!(of_pod.seccomp_profile.unwrap().type_, "RuntimeDefault");
    let own = pod.containers[0].security_context.clone().unwrap();
    assert_eq!((own.allow_privilege_escalation, own.read_only_root_filesystem), (Some(false), Some(true)));
    assert_eq!(own.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    assert!(pod.volumes.unwrap().iter().all(|volume| volume.projected.is_some()));
}
