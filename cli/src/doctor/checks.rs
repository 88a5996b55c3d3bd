//! The checks, in the order in which a person would look.

use super::Check;

mod broker;
mod cluster;
mod csi_driver;
mod daemon;
mod events;
mod evictions;
mod gpus;
mod kernel;
mod kubelet;
mod nri;
mod policy;
mod slots;
mod webhook;

#[cfg(test)]
mod tests;

/// All of them. `docs/doctor.md` has a section on each.
pub(super) const ALL: [Check; 28] = [
    Check { id: "daemon.answers", look: daemon::answers },
    Check { id: "daemon.folders", look: daemon::folders },
    Check { id: "broker.serves", look: broker::serves },
    Check { id: "broker.restarts", look: broker::restarts },
    Check { id: "kubelet.registration", look: kubelet::registration },
    Check { id: "kubelet.pods", look: kubelet::pods },
    Check { id: "kubelet.volumes", look: kubelet::volumes },
    Check { id: "kubelet.devices", look: kubelet::devices },
    Check { id: "nri.connected", look: nri::connected },
    Check { id: "nri.runtime", look: nri::able },
    Check { id: "nri.validator", look: nri::validator },
    Check { id: "nri.answers", look: nri::answers },
    Check { id: "slots.left", look: slots::left },
    Check { id: "slots.served", look: slots::served },
    Check { id: "policy.file", look: policy::file },
    Check { id: "policy.not-yet", look: policy::not_yet },
    Check { id: "kernel.identity", look: kernel::identity },
    Check { id: "kernel.holds", look: kernel::holds },
    Check { id: "gpus.found", look: gpus::found },
    Check { id: "gpus.driver", look: gpus::driver },
    Check { id: "cluster.answers", look: cluster::answers },
    Check { id: "cluster.csi-driver", look: csi_driver::is_right },
    Check { id: "cluster.events", look: events::are_taken },
    Check { id: "cluster.evictions", look: evictions::are_held },
    Check { id: "webhook.configuration", look: webhook::configuration },
    Check { id: "webhook.namespaces", look: webhook::namespaces },
    Check { id: "webhook.endpoints", look: webhook::endpoints },
    Check { id: "webhook.version", look: webhook::version },
];
