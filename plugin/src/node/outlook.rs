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

/// What to do where pods of one namespace hold different GPUs.
const ONE_GPU: &str = "let all pods of the group name one ResourceClaim, which gives them the same GPU: of nvidia.com/gpu, time slices too, the kubelet chooses which GPU each pod gets";

/// And where pods of several do, which no claim is for.
const SEVERAL_NAMESPACES: &str = "let pods of different namespaces take time slices (nvidia.com/gpu) on a node with one GPU, as each pod gets whichever of several the kubelet chooses: one ResourceClaim gives the same GPU to pods of its own namespace alone";

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
    pod: &PodRef,
    own: &Holds,
    mates: &[Mate<'_>],
    elsewhere: &Elsewhere,
    topology: Option<&Topology>,
) -> Option<Refusal> {
    if mates.is_empty() {
        return alone(elsewhere);
    }
    let Holds::These(own) = own else { return None };
    // Who holds none, or is not known yet to hold one, is none that a claim would have to be for.
    let holds_some = |mate: &Mate<'_>| matches!(mate.holds, Some(Holds::These(held)) if !held.is_empty());
    let is_of_another = |mate: &Mate<'_>| mate.pod.namespace != pod.namespace && holds_some(mate);
    let remedy = if mates.iter().any(is_of_another) { SEVERAL_NAMESPACES } else { ONE_GPU };
    let mut nearest: Option<(Lacks, &PodRef, DeviceUuid)> = None;
    for mate in mates {
        let Some(holds) = mate.holds else { continue };
        let Holds::These(held) = holds else { return None };
        if held.iter().any(|device| own.contains(device)) {
            return None;
        }
        let pairs = own.iter().flat_map(|one| held.iter().map(|other| (*one, *other)));
        let Some((lacks, other)) = pairs.map(|(one, other)| (lacks(one, other, topology), other)).min()
        else {
            continue;
        };
        if nearest.as_ref().is_none_or(|(least, pod, _)| (lacks, mate.pod) < (*least, *pod)) {
            nearest = Some((lacks, mate.pod, other));
        }
    }
    nearest.map(|(lacks, mate, other)| apart(lacks, other, own, mate).with_remedy(remedy))
}

/// What keeps pods that hold no GPU together from each other's memory, the least first. Said is what lacks to the nearest of
/// them, whoever else is there or comes: there the least is to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lacks {
    /// The GPUs reach each other, but the containers have the device nodes of their own alone.
    DeviceNode,
    PeerAccess,
    /// MIG instances reach nothing else.
    Isolated,
}

fn lacks(one: DeviceUuid, other: DeviceUuid, topology: Option<&Topology>) -> Lacks {
    match topology.map(|topology| topology.check(one, other)) {
        Some(Err(refusal)) if refusal.code() == Code::MigIsolated => Lacks::Isolated,
        Some(Err(_)) => Lacks::PeerAccess,
        Some(Ok(())) | None => Lacks::DeviceNode,
    }
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
fn apart(lacks: Lacks, other: DeviceUuid, own: &[DeviceUuid], mate: &PodRef) -> Refusal {
    let wanted = format!("one that pod {mate} holds: {other}");
    let code = match lacks {
        Lacks::DeviceNode => Code::GpuNotReachable,
        Lacks::PeerAccess => Code::NoPeerAccess,
        Lacks::Isolated => Code::MigIsolated,
    };
    Refusal::new(code).compared_with("device", wanted, list(own))
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

    fn pod(namespace: &str, name: &str) -> PodRef {
        PodRef { namespace: namespace.parse().unwrap(), name: name.parse().unwrap() }
    }

    fn code(own: &Holds, mates: &[Holds]) -> Option<Code> {
        let pod = pod("n", "mate");
        let mates: Vec<_> = mates.iter().map(|holds| Mate { pod: &pod, holds: Some(holds) }).collect();
        let nobody = Elsewhere::Pods(Vec::new());
        outlook(&pod, own, &mates, &nobody, Some(&topology())).map(|refusal| refusal.code())
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
    fn what_is_said_is_what_lacks_to_the_nearest_whoever_comes_first() {
        let pods = ["a", "b", "c"].map(|name| pod("n", name));
        // Of GPU 1 the first is an instance's, the second without peer access, the others are peers.
        let holds = [these(&[9]), these(&[3]), these(&[3, 2])];
        let mut mates: Vec<_> =
            pods.iter().zip(&holds).map(|(pod, holds)| Mate { pod, holds: Some(holds) }).collect();
        let said = |mates: &[Mate<'_>]| {
            let nobody = Elsewhere::Pods(Vec::new());
            outlook(&pod("n", "own"), &these(&[1]), mates, &nobody, Some(&topology())).unwrap()
        };
        for (n, code) in [(1, Code::MigIsolated), (2, Code::NoPeerAccess), (3, Code::GpuNotReachable)] {
            let mut some = mates[..n].to_vec();
            let first = said(&some);
            assert_eq!(first.code(), code);
            some.reverse();
            assert_eq!(said(&some), first);
        }
        let mut other = mates[2].clone();
        let later = pod("n", "d");
        let before = said(&mates);
        other.pod = &later;
        mates.insert(0, other);
        assert_eq!(said(&mates), before, "of several the first by name");
    }

    #[test]
    fn pods_of_two_namespaces_are_told_of_no_claim_that_could_be_of_both() {
        let (near, guest, holds, none) = (pod("n", "near"), pod("guest", "g"), these(&[2]), these(&[]));
        let remedy = |mates: &[(&PodRef, Option<&Holds>)]| {
            let mates: Vec<_> = mates.iter().map(|&(pod, holds)| Mate { pod, holds }).collect();
            let nobody = Elsewhere::Pods(Vec::new());
            let refusal =
                outlook(&pod("n", "own"), &these(&[1]), &mates, &nobody, Some(&topology())).unwrap();
            assert_eq!(refusal.code(), Code::GpuNotReachable);
            refusal.remedy().to_owned()
        };
        let near = (&near, Some(&holds));
        // A guest that holds no GPU, or that nothing is known of yet, is in no claim's way.
        for mates in [&[near][..], &[near, (&guest, Some(&none))], &[(&guest, None), near]] {
            let said = remedy(mates);
            assert!(said.starts_with("let all pods of the group name one ResourceClaim"), "{said}");
        }
        for mates in [&[(&guest, Some(&holds))][..], &[near, (&guest, Some(&holds))]] {
            let said = remedy(mates);
            assert!(said.starts_with("let pods of different namespaces take time slices"), "{said}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_refused() {
        for unknown in [Holds::All, Holds::WhatItReaches] {
            assert_eq!(code(&unknown, &[these(&[1])]), None);
            assert_eq!(code(&these(&[1]), &[these(&[2]), unknown.clone()]), None);
        }
        let pod = pod("n", "mate");
        let about_to_be_known = [Mate { pod: &pod, holds: None }];
        let elsewhere = Elsewhere::Pods(vec![Place { pod: "p".into(), node: Some("node-2".into()) }]);
        assert_eq!(outlook(&pod, &these(&[1]), &about_to_be_known, &elsewhere, None), None);
        // A pod without a GPU may watch, or be watched.
        assert_eq!(code(&these(&[]), &[these(&[1])]), None);
        assert_eq!(code(&these(&[1]), &[these(&[])]), None);
    }

    #[test]
    fn a_pod_alone_on_its_node_is_told_where_the_others_are() {
        let place = |pod: &str, node: Option<&str>| Place { pod: pod.into(), node: node.map(str::to_owned) };
        let said = |elsewhere: Elsewhere| outlook(&pod("n", "own"), &these(&[1]), &[], &elsewhere, None);
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
