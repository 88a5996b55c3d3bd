//! Whether the node has GPUs, and their driver is there.

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};

pub(super) fn found(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let gpus = status.gpus.clone().unwrap_or_default();
        let driver = if gpus.driver.is_empty() { "no driver" } else { &gpus.driver };
        let seen = format!("{} below {}; {driver}", gpus.gpus.len(), gpus.proc_root);
        if !gpus.gpus.is_empty() {
            return Seen::ok(seen);
        }
        let members = status.slots.as_ref().map_or(0, |slots| slots.members.len());
        let remedy = "load the NVIDIA driver and restart the daemon, or say where the driver's part of /proc is (--nvidia-proc-root); \
            on a node without GPUs nothing has to be done";
        if members == 0 {
            Seen::note(seen, remedy)
        } else {
            Seen::problem(format!("{seen}; pods that take part here can publish nothing: {members}"), remedy)
        }
    }))
}
