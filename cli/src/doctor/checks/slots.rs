//! Whether there are slots left, and those that are taken are served.

use gpu_handoff_admin::proto::Member;
use gpu_handoff_protocol::Code;

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};
use crate::limits;

/// A node of which more than this part is taken is nearly full.
const FEW_LEFT: usize = 10;

pub(super) fn left(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let slots = status.slots.clone().unwrap_or_default();
        let limit = usize::try_from(slots.limit).unwrap_or(usize::MAX);
        let (taken, left) = (slots.members.len(), limit.saturating_sub(slots.members.len()));
        let seen = format!("{taken} of {limit} taken");
        let remedy = "pods that take part have to go elsewhere: spread them over more nodes";
        if left == 0 {
            Seen::problem(seen, remedy)
        } else if left < limit / FEW_LEFT {
            Seen::note(seen, remedy)
        } else {
            Seen::ok(seen)
        }
    }))
}

pub(super) fn served(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let slots = status.slots.clone().unwrap_or_default();
        let unserved: Vec<(&Member, &str)> =
            slots.members.iter().filter_map(|m| Some((m, m.unserved.as_deref()?))).collect();
        if unserved.is_empty() {
            return Seen::ok(format!("each of {} that are taken", slots.members.len()));
        }
        let line = |(m, why): &(&Member, &str)| format!("{}/{} ({why})", m.namespace, m.pod);
        let named: Vec<String> = unserved.iter().take(limits::NAMED).map(line).collect();
        let more = match unserved.len() - named.len() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let seen = format!("pods are not served: {}{more}", named.join(", "));
        let is_denied =
            |(m, _): &(&Member, &str)| m.unserved_code.as_deref() == Some(Code::PolicyDenied.as_str());
        if unserved.iter().all(is_denied) {
            Seen::note(seen, "let each name a group of its own namespace, or write a rule that names both")
        } else {
            Seen::problem(seen, "it is tried again by itself; if it stays, raise the daemon's limits of processes and descriptors")
        }
    }))
}
