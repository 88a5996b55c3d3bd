//! Whether owners of pods are told.

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};
use crate::output::time;

pub(super) fn are_taken(facts: &Facts) -> Option<Seen> {
    said(facts.status().and_then(|status| {
        let events = status.events.as_ref().ok_or(None)?;
        Ok(match &events.refusal {
            None => Seen::ok("the API server has refused no event since the last that it took"),
            Some(why) => Seen::problem(
                format!(
                    "the API server takes none for {}, so owners of pods are told nothing: {why}",
                    time(facts.since(events.refusal_since_ms))
                ),
                "where it says that the account cannot create or patch events: kubectl apply -f manifests/gpu-handoff.yaml; \
                 meanwhile they are in the daemon's log",
            ),
        })
    }))
}
