//! Where the scheduler puts the pod: beside its group, and on nodes that the administrator named.

use gpu_handoff_protocol::Namespace;
use serde_json::{Value, json};

use crate::denial::Denial;
use crate::edit::{Edit, at};
use crate::group::group_hash;
use crate::keys::{GROUP_HASH_LABEL, HOSTNAME};
use crate::pod::Pod;
use crate::settings::Settings;
use crate::warnings::selects_group;
use crate::wishes::Wishes;
use crate::words::Colocate;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// The largest that a preference may have.
const WEIGHT: u32 = 100;

pub(super) fn add(
    pod: &Pod,
    wishes: &Wishes,
    namespace: &Namespace,
    settings: &Settings,
    edit: &mut Edit,
) -> Result<(), Denial> {
    beside_the_group(pod, wishes, namespace, edit)?;
    on_named_nodes(pod, settings, edit)
}

/// The first pod of a group goes anywhere: Kubernetes lets a pod that matches its own affinity, and that no pod matches
/// yet, be the first.
fn beside_the_group(
    pod: &Pod,
    wishes: &Wishes,
    namespace: &Namespace,
    edit: &mut Edit,
) -> Result<(), Denial> {
    let hash = group_hash(&wishes.group);
    let affinity = &pod.spec.affinity.pod_affinity;
    let list = |which| at(["spec", "affinity", "podAffinity", which]);
    match wishes.colocate {
        Colocate::Required if !affinity.required.iter().any(|term| selects_group(term, &hash)) => {
            edit.append(&list(REQUIRED), term(wishes, &hash, namespace))
        }
        Colocate::Preferred
            if !affinity.preferred.iter().any(|term| selects_group(&term["podAffinityTerm"], &hash)) =>
        {
            let term = json!({ "weight": WEIGHT, "podAffinityTerm": term(wishes, &hash, namespace) });
            edit.append(&list(PREFERRED), term)
        }
        _ => Ok(()),
    }
}

/// "On the node of a pod of this group." Within the pod's own namespace, unless the group is another's: a stranger who
/// sets our label must not draw pods to himself.
fn term(wishes: &Wishes, hash: &str, namespace: &Namespace) -> Value {
    let mut term =
        json!({ "labelSelector": { "matchLabels": { GROUP_HASH_LABEL: hash } }, "topologyKey": HOSTNAME });
    let home = &wishes.group.namespace;
    if home != namespace {
        term["namespaces"] = json!([namespace.as_str(), home.as_str()]);
    }
    term
}

/// Terms are alternatives, so each gets all the requirements. One without any matches no node, and must not begin to.
fn on_named_nodes(pod: &Pod, settings: &Settings, edit: &mut Edit) -> Result<(), Denial> {
    let requirements: Vec<Value> =
        settings.node_selector.iter().map(|requirement| json!(requirement)).collect();
    if requirements.is_empty() {
        return Ok(());
    }
    let list = at(["spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"]);
    let terms = &pod.spec.affinity.node_affinity.required.node_selector_terms;
    if terms.is_empty() {
        return edit.append(&list, json!({ "matchExpressions": requirements }));
    }
    for (index, term) in terms.iter().enumerate() {
        if term.match_expressions.is_empty() && term.match_fields.is_empty() {
            continue;
        }
        let expressions = list.with_trailing_token(index).with_trailing_token("matchExpressions");
        for requirement in requirements.iter().filter(|wanted| !term.match_expressions.contains(wanted)) {
            edit.append(&expressions, requirement.clone())?;
        }
    }
    Ok(())
}
