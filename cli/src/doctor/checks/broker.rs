//! Whether the broker serves, and how often it died lately.

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};
use crate::output::time;

/// In which time deaths count as often, in milliseconds.
const LATELY_MS: u64 = 3_600_000;
/// How many of them are too many.
const OFTEN: usize = 3;

pub(super) fn serves(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let broker = status.broker.clone().unwrap_or_default();
        let since = time(facts.since(broker.since_ms));
        if broker.serving {
            return Seen::ok(format!("process {} for {since}", broker.pid));
        }
        if let Some(silent) = broker.silent_since_ms {
            return Seen::problem(
                format!("process {} hears no pods: it says nothing any more, for {}", broker.pid, time(facts.since(silent))),
                "look again in a minute: it is started again by itself; if that is of no use, see what takes the processors",
            );
        }
        let last = match broker.last_end.as_str() {
            "" => "it has not served yet",
            how => how,
        };
        Seen::problem(
            format!("nobody hears the pods of this node, for {since}; the last broker: {last}"),
            "look again in a moment: it is started again by itself; if not, the node daemon's log says why",
        )
    }))
}

pub(super) fn restarts(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let broker = status.broker.clone().unwrap_or_default();
        let lately = broker.ends_ms.iter().filter(|&&at| facts.since(at) < LATELY_MS).count();
        if lately == 0 {
            return Seen::ok(format!("none within {}, {} in all", time(LATELY_MS), broker.restarts));
        }
        let seen = format!("{lately} within {}; the last time: {}", time(LATELY_MS), broker.last_end);
        let remedy =
            "the node daemon's log says what was before; report it: a broker that dies is a defect, whatever pods send";
        if lately < OFTEN { Seen::note(seen, remedy) } else { Seen::problem(seen, remedy) }
    }))
}
