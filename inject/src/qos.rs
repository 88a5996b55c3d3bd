//! The quality-of-service class of a pod, as Kubernetes computes it.

use std::collections::BTreeMap;

use crate::pod::{Resources, Spec};
use crate::quantity::Quantity;

/// Who is evicted first when a node runs out of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Qos {
    /// Last: every container's requests are its limits.
    Guaranteed,
    /// In between.
    Burstable,
    /// First: no container asks for anything.
    BestEffort,
}

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

type Amounts = BTreeMap<&'static str, Quantity>;

impl Qos {
    /// The class of a pod without one of its init containers (`ComputePodQOS` of Kubernetes, after its defaults: a limit
    /// alone is a request as well).
    pub(crate) fn of(spec: &Spec, without: Option<usize>) -> Self {
        let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
        let mut all_limited = true;
        let mut count = |resources: &Resources| {
            let (requested, limited) = counted(resources);
            add(&mut requests, &requested);
            add(&mut limits, &limited);
            limited.len() == COUNTED.len()
        };
        if let Some(whole) = &spec.resources {
            let limited = count(whole);
            all_limited = whole.limits.is_empty() || limited;
        } else {
            let init = spec.init_containers.iter().enumerate().filter(|(index, _)| Some(*index) != without);
            for container in spec.containers.iter().chain(init.map(|(_, container)| container)) {
                all_limited &= count(&container.resources);
            }
        }
        if requests.is_empty() && limits.is_empty() {
            Self::BestEffort
        } else if all_limited && requests == limits {
            Self::Guaranteed
        } else {
            Self::Burstable
        }
    }
}

/// What of these resources counts: requests and limits.
fn counted(resources: &Resources) -> (Amounts, Amounts) {
    let some = |amounts: &BTreeMap<String, Quantity>, name: &str| amounts.get(name).copied();
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    for name in COUNTED {
        let limit = some(&resources.limits, name);
        let request = some(&resources.requests, name).or(limit);
        requests.extend(request.filter(|amount| amount.is_some()).map(|amount| (name, amount)));
        limits.extend(limit.filter(|amount| amount.is_some()).map(|amount| (name, amount)));
    }
    (requests, limits)
}

fn add(to: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let sum = to.entry(name).or_default();
        *sum = sum.plus(*amount);
    }
}
