//! Whether there are slots left.

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};

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
