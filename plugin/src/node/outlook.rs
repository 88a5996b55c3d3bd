//! What can be known when a pod starts of what it will be able to exchange: facts in, a refusal out. Pure.
//!
//! Only what is sure is refused: that no other member of the group is on this node while others are elsewhere, and that all
//! that are on it hold other GPUs, of which this pod's containers have no device node.

use gpu_handoff_protocol::{Code, DeviceUuid, PodRef, Refusal};

use super::devices::{Elsewhere, Place};
use crate::members::Holds;
use crate::registry::{Topology, list};

/// Pods elsewhere that are named.
const NAMED: usize = 4;

/// What to do where pods hold different GPUs.
const ONE_GPU: &str = "let all pods of the group name one ResourceClaim, which gives them the same GPU: of nvidia.com/gpu, time slices too, the kubelet chooses which GPU each pod gets";

/// Another member of the group on this node.
#[derive(Debug, Clone)]
pub(super) struct Mate<'a> {
    /// Its pod.
    pub(super) pod: &'a PodRef,
    /// What it holds; `None`: that is being found out, and what comes of it will be weighed then.
    pub(super) holds: Option<&'a Holds>,
}

/// Why the pod will not be able to exchange anything with anybody; `None`: it will, or that is not known.
pub(super) fn outlook(
    own: &Holds,
    mates: &[Mate<'_>],
    elsewhere: &Elsewhere,
    topology: Option<&Topology>,
) -> Option<Refusal> {
    if mates.is_empty() {
        return alone(elsewhere);
    }
    let Holds::These(own) = own else { return None };
    let mut refusal = None;
    for mate in mates {
        let Some(holds) = mate.holds else { continue };
        let Holds::These(held) = holds else { return None };
        if held.iter().any(|device| own.contains(device)) {
            return None;
        }
        if let (Some(one), Some(other)) = (own.first(), held.first()) {
            refusal = refusal.or_else(|| Some(apart(*one, *other, own, mate, topology)));
        }
    }
    refusal
}

fn alone(elsewhere: &Elsewhere) -> Option<Refusal> {
    let Elsewhere::Pods(places) = elsewhere else { return None };
    // One that may still come here is company enough.
    if places.is_empty() || places.iter().any(|place| place.node.is_none()) {
        return None;
    }
    let named = |place: &Place| format!("{} on {}", place.pod, place.node.as_deref().unwrap_or_default());
    let mut found = places.iter().take(NAMED).map(named).collect::<Vec<_>>().join(", ");
    if places.len() > NAMED {
        found = format!("{found}, and {} more", places.len() - NAMED);
    }
    Some(Refusal::new(Code::NoPeerOnNode).compared_with("group", "another member on this node", found))
}

/// Why two pods that hold no GPU together do not reach each other's memory: as it would be said when one acquires.
fn apart(
    one: DeviceUuid,
    other: DeviceUuid,
    own: &[DeviceUuid],
    mate: &Mate<'_>,
    topology: Option<&Topology>,
) -> Refusal {
    let wanted = format!("one that pod {} holds: {other}", mate.pod);
    let code = match topology.map(|topology| topology.check(one, other)) {
        Some(Err(refusal)) => refusal.code(),
        // They reach each other, but the containers have the device nodes of their own alone.
        Some(Ok(())) | None => Code::GpuNotReachable,
    };
    Refusal::new(code).compared_with("device", wanted, list(own)).with_remedy(ONE_GPU)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u8) -> DeviceUuid {
        DeviceUuid::from_bytes([number; 16])
    }

    fn these(numbers: &[u8]) -> Holds {
        Holds::These(numbers.iter().map(|number| device(*number)).collect())
    }

    fn topology() -> Topology {
        Topology {
            gpus: [1, 2, 3].map(device).to_vec(),
            instances: vec![device(9)],
            peers: vec![(device(1), device(2))],
        }
    }

    fn code(own: &Holds, mates: &[Holds]) -> Option<Code> {
        let pod: PodRef = serde_json::from_str(r#"{"namespace":"n","name":"mate"}"#).unwrap();
        let mates: Vec<_> = mates.iter().map(|holds| Mate { pod: &pod, holds: Some(holds) }).collect();
        let nobody = Elsewhere::Pods(Vec::new());
        outlook(own, &mates, &nobody, Some(&topology())).map(|refusal| refusal.code())
    }

    #[test]
    fn pods_that_hold_a_gpu_together_exchange_and_others_are_told_why_not() {
        assert_eq!(code(&these(&[1]), &[these(&[1])]), None, "a claim of both, or slices of one");
        assert_eq!(code(&these(&[1, 2]), &[these(&[2])]), None);
        assert_eq!(code(&these(&[1]), &[these(&[2])]), Some(Code::GpuNotReachable));
        assert_eq!(code(&these(&[1]), &[these(&[3])]), Some(Code::NoPeerAccess));
        assert_eq!(code(&these(&[9]), &[these(&[1])]), Some(Code::MigIsolated));
        assert_eq!(code(&these(&[1]), &[these(&[2]), these(&[1])]), None, "one of them will do");
        assert_eq!(code(&these(&[1]), &[these(&[2]), these(&[3])]), Some(Code::GpuNotReachable));
    }

    #[test]
    fn what_is_not_known_is_not_refused() {
        for unknown in [Holds::All, Holds::WhatItReaches] {
            assert_eq!(code(&unknown, &[these(&[1])]), None);
            assert_eq!(code(&these(&[1]), &[these(&[2]), unknown.clone()]), None);
        }
        let pod: PodRef = serde_json::from_str(r#"{"namespace":"n","name":"mate"}"#).unwrap();
        let about_to_be_known = [Mate { pod: &pod, holds: None }];
        let elsewhere = Elsewhere::Pods(vec![Place { pod: "p".into(), node: Some("node-2".into()) }]);
        assert_eq!(outlook(&these(&[1]), &about_to_be_known, &elsewhere, None), None);
        // A pod without a GPU may watch, or be watched.
        assert_eq!(code(&these(&[]), &[these(&[1])]), None);
        assert_eq!(code(&these(&[1]), &[these(&[])]), None);
    }

    #[test]
    fn a_pod_alone_on_its_node_is_told_where_the_others_are() {
        let place = |pod: &str, node: Option<&str>| Place { pod: pod.into(), node: node.map(str::to_owned) };
        let said = |elsewhere: Elsewhere| outlook(&these(&[1]), &[], &elsewhere, None);
        let many = (0..6).map(|i| place(&format!("p{i}"), Some("node-2"))).collect();
        let refusal = said(Elsewhere::Pods(many)).unwrap();
        assert_eq!(refusal.code(), Code::NoPeerOnNode);
        assert!(refusal.to_string().contains("p0 on node-2, p1 on node-2"), "{refusal}");
        assert!(refusal.to_string().contains("and 2 more"), "{refusal}");
        assert_eq!(said(Elsewhere::Pods(Vec::new())), None, "the first of its group");
        assert_eq!(said(Elsewhere::Pods(vec![place("a", Some("node-2")), place("b", None)])), None);
        assert_eq!(said(Elsewhere::Unknown("no API server".into())), None);
    }
}
