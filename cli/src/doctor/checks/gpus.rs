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

pub(super) fn driver(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let gpus = status.gpus.clone().unwrap_or_default();
        let Some(driver) = gpus.loaded else {
            return Seen::unknown("the daemon does not say it", "use the command of the daemon's version");
        };
        let remedy = "give the daemon's container the driver's libcuda.so.1, of the version that the kernel's part has, and restart it: \
            docs/kubernetes.md says how";
        match driver.failure {
            _ if gpus.gpus.is_empty() => Seen::ok("there is no GPU to load it for"),
            Some(why) => Seen::problem(format!("each publication is refused, GPU_WORKER_FAILED: {why}"), remedy),
            None if !driver.asked => Seen::note("it was not asked yet", "look again in a moment"),
            None => Seen::ok("a child of the daemon has loaded it and asked it"),
        }
    }))
}
