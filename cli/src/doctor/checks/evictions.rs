//! Whether the API server holds the daemon's evictions to pods of its own node.

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, Guard, Otherwise, said};

const REMEDY: &str =
    "kubectl apply -f manifests/gpu-handoff.yaml; until then let the policy say no orphans: evict";

pub(super) fn are_held(facts: &Facts) -> Option<Seen> {
    said(facts.objects().and_then(|objects| {
        let policy = facts.status()?.policy.clone().unwrap_or_default();
        if !policy.evicts {
            return Err(None);
        }
        for guard in &objects.evictions {
            if let Some(fault) = fault(guard)? {
                let why = "a node that somebody has taken over could have pods of other nodes evicted";
                return Ok(Seen::problem(format!("{fault}: {why}"), REMEDY));
            }
        }
        Ok(Seen::ok("the API server lets each node evict pods of its own alone"))
    }))
}

fn fault(guard: &Guard) -> Otherwise<Option<String>> {
    let Guard { name, policy, binding } = guard;
    let absent = |kind: &str| {
        let seen = format!("the policy evicts, and there is no {kind} {name}");
        move || Seen::problem(seen, REMEDY)
    };
    let policy = policy.or_absent(absent("ValidatingAdmissionPolicy"))?;
    let binding = binding.or_absent(absent("ValidatingAdmissionPolicyBinding"))?;
    let ignored = policy.spec.as_ref().is_some_and(|spec| spec.failure_policy.as_deref() == Some("Ignore"));
    let binding = &binding.spec;
    let denies = binding.validation_actions.iter().any(|action| action == "Deny");
    Ok(if ignored {
        Some(format!("ValidatingAdmissionPolicy {name} says failurePolicy: Ignore"))
    } else if binding.policy_name != *name || !denies {
        Some(format!("ValidatingAdmissionPolicyBinding {name} does not deny what the policy {name} refuses"))
    } else {
        None
    })
}
