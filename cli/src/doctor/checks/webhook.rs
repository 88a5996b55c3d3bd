//! Whether pods that ask to take part get what they need when they are created.

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::doctor::Seen;
use crate::doctor::cluster::{PLUGIN, SERVICE, WEBHOOK};
use crate::doctor::facts::{Facts, Objects, Otherwise, said};

const APPLY: &str = "kubectl apply -f manifests/webhook.yaml";
const OFFLINE: &str = "kubectl apply -f manifests/webhook.yaml; without it, gpu-handoff inject -f FILE adds to pods what they need";

/// The label that every namespace has.
const NAME: &str = "kubernetes.io/metadata.name";

fn webhook(objects: &Objects) -> Otherwise<&MutatingWebhook> {
    let absent = |what: String| Seen::problem(format!("{what}: annotated pods get nothing added"), OFFLINE);
    let found: &MutatingWebhookConfiguration = objects
        .webhook
        .or_absent(|| absent(format!("there is no MutatingWebhookConfiguration {WEBHOOK}")))?;
    let hooks = found.webhooks.as_deref().unwrap_or_default();
    let own = hooks.iter().find(|hook| hook.name == WEBHOOK);
    own.ok_or_else(|| {
        Some(absent(format!("MutatingWebhookConfiguration {WEBHOOK} has no webhook {WEBHOOK}")))
    })
}

pub(super) fn configuration(facts: &Facts) -> Option<Seen> {
    said(facts.objects().and_then(|objects| {
        let hook = webhook(objects)?;
        let bundle = hook.client_config.ca_bundle.as_ref().map_or(0, |bundle| bundle.0.len());
        Ok(if bundle == 0 {
            Seen::problem(
                "its caBundle is empty: the API server trusts nobody there, so annotated pods are not created",
                format!("a webhook that runs fills it in: see webhook.endpoints, and the log of Deployment {SERVICE}"),
            )
        } else if hook.failure_policy.as_deref() != Some("Fail") {
            Seen::problem(
                "its failurePolicy is not Fail: while the webhook is away, annotated pods are created without what they need",
                APPLY,
            )
        } else {
            Seen::ok("it is asked for annotated pods, and they are not created without it")
        })
    }))
}

pub(super) fn namespaces(facts: &Facts) -> Option<Seen> {
    said(facts.objects().and_then(|objects| {
        let hook = webhook(objects)?;
        let selector = hook.namespace_selector.clone().unwrap_or_default();
        let excluded: Vec<String> = selector
            .match_expressions
            .into_iter()
            .flatten()
            .filter(|term| term.key == NAME && term.operator == "NotIn")
            .flat_map(|term| term.values.unwrap_or_default())
            .collect();
        let wanted = ["kube-system", objects.namespace.as_str()];
        let missing: Vec<&str> =
            wanted.into_iter().filter(|name| !excluded.iter().any(|found| found == name)).collect();
        Ok(if missing.is_empty() {
            Seen::ok(format!("pods of {} are created without it", wanted.join(" and ")))
        } else {
            Seen::note(
                format!("it is asked for annotated pods of {}, too", missing.join(" and ")),
                format!("exclude them in its namespaceSelector, so that none of them waits for the webhook: {APPLY}"),
            )
        })
    }))
}

pub(super) fn endpoints(facts: &Facts) -> Option<Seen> {
    said(facts.objects().and_then(|objects| {
        let absent = || no_endpoints(&objects.namespace);
        let slices: &Vec<EndpointSlice> = objects.endpoints.or_absent(absent)?;
        let all = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let is_ready = |conditions: &k8s_openapi::api::discovery::v1::EndpointConditions| {
            // Unknown counts as ready, says the API.
            conditions.ready.unwrap_or(true)
        };
        let ready = all.filter(|one| one.conditions.as_ref().is_none_or(is_ready)).count();
        Ok(match ready {
            0 => absent(),
            1 => Seen::note(
                "one pod answers: while it is away, annotated pods are not created",
                format!("two replicas on different nodes: kubectl -n {} get pods", objects.namespace),
            ),
            ready => Seen::ok(format!("{ready} pods answer")),
        })
    }))
}

fn no_endpoints(namespace: &str) -> Seen {
    Seen::problem(
        format!("no pod is ready behind Service {namespace}/{SERVICE}: annotated pods are not created"),
        format!("kubectl -n {namespace} describe deployment {SERVICE}; where it is not there: {APPLY}"),
    )
}

pub(super) fn version(facts: &Facts) -> Option<Seen> {
    said(facts.objects().and_then(|objects| {
        let namespace = &objects.namespace;
        let absent =
            |what: String| Seen::unknown(format!("there is no {what} to compare"), "see webhook.endpoints");
        let webhook = objects.deployment.or_absent(|| absent(format!("Deployment {namespace}/{SERVICE}")))?;
        let plugin = objects.plugin.or_absent(|| absent(format!("DaemonSet {namespace}/{PLUGIN}")))?;
        let webhook = image(&webhook.spec.template);
        let plugin = image(&plugin.spec.template);
        Ok(if webhook == plugin {
            Seen::ok(format!("both are {webhook}"))
        } else {
            Seen::problem(
                format!(
                    "the webhook is {webhook}, the plugin {plugin}: what one adds the other may not know"
                ),
                "give both the same image: they are one program",
            )
        })
    }))
}

/// The image of a template's first container.
fn image(template: &PodTemplateSpec) -> String {
    let containers = template.spec.as_ref().map(|spec| &spec.containers[..]).unwrap_or_default();
    containers.first().and_then(|one| one.image.clone()).unwrap_or_else(|| "of no image".to_owned())
}
