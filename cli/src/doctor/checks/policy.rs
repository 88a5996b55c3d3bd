//! Whether the policy that is meant is in force, and does all that it says.

use gpu_handoff_admin::proto::policy::Origin;

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};
use crate::output::time;

pub(super) fn file(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let policy = status.policy.clone().unwrap_or_default();
        let since = time(facts.since(policy.since_ms));
        let from = match Origin::try_from(policy.origin) {
            Ok(Origin::File) => policy.path.as_str(),
            Ok(Origin::MembersFile) => "the members' file",
            _ => "no file: pods of one namespace and one group exchange",
        };
        match &policy.refusal {
            None => Seen::ok(format!("{from}; version {} for {since}", policy.version)),
            Some(why) => Seen::problem(
                format!(
                    "what is in the file is refused for {}: {why}; version {} stays in force",
                    time(facts.since(policy.refusal_since_ms)),
                    policy.version
                ),
                "put it right; gpu-handoff policy check FILE says beforehand whether it is",
            ),
        }
    }))
}

pub(super) fn not_yet(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let policy = status.policy.clone().unwrap_or_default();
        if policy.not_yet.is_empty() {
            return Seen::ok("this version does all that the policy grants");
        }
        Seen::note(policy.not_yet.join("; "), "it does no harm; docs/policy.md says what each version does")
    }))
}
