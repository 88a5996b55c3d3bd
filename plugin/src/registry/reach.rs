//! Whether a process can reach the memory of a GPU other than the one that it maps it on.
//!
//! Without these checks the driver would answer: with codes that mislead, and in the worst case by a crash of the process.

use gpu_handoff_protocol::{Code, DeviceUuid, Refusal};
use serde::{Deserialize, Serialize};

use super::publish::list;
use super::{Member, Registry, SessionFacts, SessionId};
use crate::members::Holds;

/// What the driver says of the node's GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The GPUs as the driver's part of `/proc` names them: no MIG instance is among them.
    pub gpus: Vec<DeviceUuid>,
    /// MIG instances that were seen. Others are known by not being among the GPUs.
    pub instances: Vec<DeviceUuid>,
    /// Pairs of devices each of which reads and writes the other's memory.
    pub peers: Vec<(DeviceUuid, DeviceUuid)>,
}

impl Topology {
    fn is_instance(&self, device: DeviceUuid) -> bool {
        let is_gpu = self.gpus.is_empty() || self.gpus.contains(&device);
        !is_gpu || self.instances.contains(&device)
    }

    fn are_peers(&self, one: DeviceUuid, other: DeviceUuid) -> bool {
        self.peers.contains(&(one, other)) || self.peers.contains(&(other, one))
    }

    /// Whether what is mapped on `on` can be memory of `of`.
    pub(crate) fn check(&self, on: DeviceUuid, of: DeviceUuid) -> Result<(), Refusal> {
        if on == of {
            return Ok(());
        }
        let instances: Vec<_> = [of, on].into_iter().filter(|d| self.is_instance(*d)).collect();
        if !instances.is_empty() {
            let found = format!("{on}, and {} is a MIG instance", list(&instances));
            return Err(Refusal::new(Code::MigIsolated).compared_with("device", of, found));
        }
        if !self.are_peers(on, of) {
            let wanted = format!("{on} and {of} read and write each other's memory");
            return Err(Refusal::new(Code::NoPeerAccess).compared_with("peer access", wanted, "they do not"));
        }
        Ok(())
    }
}

impl Member {
    /// Whether the pod may use this device. `reachable`: the GPUs whose device nodes the process has that wants to.
    pub(super) fn check_holds(
        &self,
        device: DeviceUuid,
        reachable: Option<&[DeviceUuid]>,
    ) -> Result<(), Refusal> {
        let pod = &self.facts.pod;
        let (held, wanted) = match &self.facts.holds {
            Holds::All => return Ok(()),
            Holds::These(held) => (held.as_slice(), format!("one that pod {pod} holds: {}", list(held))),
            Holds::WhatItReaches => {
                let has = reachable.map_or_else(|| "it could not be looked at".to_owned(), list);
                (reachable.unwrap_or_default(), format!("one whose device node the process has: {has}"))
            }
        };
        if held.contains(&device) {
            return Ok(());
        }
        let refusal = Refusal::new(Code::DeviceMismatch).compared_with("device", wanted, device);
        if held.is_empty() && self.facts.holds != Holds::WhatItReaches {
            return Err(refusal.with_remedy(HOLDS_NONE));
        }
        Err(refusal)
    }
}

/// What to do for a pod that was given no GPU, whatever it reaches.
const HOLDS_NONE: &str = "let a container of the pod request the GPU: nvidia.com/gpu, or a ResourceClaim, which several pods may share";

impl Registry {
    /// The GPUs whose device nodes a session's process has.
    pub(super) fn reachable_of(&self, session: SessionId) -> Option<&[DeviceUuid]> {
        self.sessions.get(&session)?.facts.reachable.as_deref()
    }

    /// Whether a process of `member` can map memory of the device `of`, on the device `on` if it says that, else on any
    /// that its pod holds.
    pub(super) fn check_reach(
        &self,
        member: &Member,
        session: &SessionFacts,
        on: Option<DeviceUuid>,
        of: DeviceUuid,
    ) -> Result<(), Refusal> {
        let reachable = session.reachable.as_deref();
        let candidates = match (&on, &member.facts.holds) {
            (Some(on), _) => {
                member.check_holds(*on, reachable)?;
                std::slice::from_ref(on)
            }
            (None, Holds::These(held)) => held,
            (None, Holds::WhatItReaches) => reachable.ok_or_else(|| no_node(of, None))?,
            // All of the node's, so this one too.
            (None, Holds::All) => return Ok(()),
        };
        if candidates.contains(&of) {
            return self.check_node_of_its_own(member, reachable, of);
        }
        let Some(topology) = &self.topology else {
            let found = format!(
                "pod {} holds {}, and what reaches what is not known",
                member.facts.pod,
                list(candidates)
            );
            return Err(Refusal::new(Code::NoPeerAccess).compared_with("device", of, found));
        };
        let none = Refusal::new(Code::NoPeerAccess).compared_with("device", of, "the pod holds none");
        let mut outcome = Err(none.with_remedy(HOLDS_NONE));
        for candidate in candidates {
            outcome = topology.check(*candidate, of);
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
        match reachable {
            Some(reachable) if reachable.contains(&of) => Ok(()),
            reachable => Err(no_node(of, reachable)),
        }
    }

    /// A pod's GPUs may be in another of its containers: then the driver would crash in this one. MIG instances have nodes of
    /// another kind, which are not looked at.
    fn check_node_of_its_own(
        &self,
        member: &Member,
        reachable: Option<&[DeviceUuid]>,
        of: DeviceUuid,
    ) -> Result<(), Refusal> {
        let is_gpu = self.topology.as_ref().is_some_and(|t| t.gpus.contains(&of) && !t.is_instance(of));
        match reachable {
            Some(reachable) if is_gpu && member.facts.holds != Holds::All && !reachable.contains(&of) => {
                Err(no_node(of, Some(reachable)))
            }
            _ => Ok(()),
        }
    }
}

/// A process lacks the device node of a GPU, or it is not known whether it has it.
fn no_node(of: DeviceUuid, reachable: Option<&[DeviceUuid]>) -> Refusal {
    let wanted = format!("that of {of} in the process's /dev");
    let found = reachable
        .map_or_else(|| "it could not be looked at".to_owned(), |nodes| format!("those of {}", list(nodes)));
    Refusal::new(Code::GpuNotReachable).compared_with("device node", wanted, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u8) -> DeviceUuid {
        DeviceUuid::from_bytes([number; 16])
    }

    #[test]
    fn devices_reach_themselves_and_their_peers_but_no_instance_reaches_another() {
        let topology = Topology {
            gpus: [1, 2, 3].map(device).to_vec(),
            instances: vec![device(9)],
            peers: vec![(device(1), device(2))],
        };
        let code = |on, of| topology.check(device(on), device(of)).map_err(|r| r.code());
        assert_eq!(code(1, 1), Ok(()));
        assert_eq!((code(1, 2), code(2, 1)), (Ok(()), Ok(())));
        assert_eq!(code(1, 3), Err(Code::NoPeerAccess));
        assert_eq!(code(9, 1), Err(Code::MigIsolated));
        assert_eq!(code(1, 9), Err(Code::MigIsolated));
        assert_eq!(code(7, 8), Err(Code::MigIsolated), "neither is a GPU of the node's");
        assert_eq!(code(9, 9), Ok(()));
    }
}
