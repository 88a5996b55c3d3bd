//! How the kernel says who connects.

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};

pub(super) fn identity(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let kernel = status.kernel.clone().unwrap_or_default();
        let release = &kernel.release;
        if kernel.peer_pidfd {
            return Seen::ok(format!("{release}: it names the very process that connected (SO_PEERPIDFD)"));
        }
        Seen::note(
            format!("{release}: it names a process by its number, and its start is compared: SO_PEERPIDFD is not there"),
            "nothing has to be done; Linux 6.5 and later name the process itself",
        )
    }))
}
