//! Whether the API server can be asked.

use crate::doctor::Seen;
use crate::doctor::facts::{Cluster, Facts};

pub(super) fn answers(facts: &Facts) -> Option<Seen> {
    match &facts.cluster {
        Cluster::NoBearing => None,
        Cluster::Objects(_) => Some(Seen::ok("the API server answers")),
        Cluster::Unreachable(why) => Some(Seen::unknown(
            why,
            "ask in a pod of the plugin (kubectl -n gpu-handoff exec ds/gpu-handoff-plugin -- gpu-handoff doctor), or with a kubeconfig",
        )),
    }
}
