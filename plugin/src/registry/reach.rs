//! Whether a process can reach the memory of a GPU other than the one that it maps it on.
//!
//! Without these checks the driver would answer: with codes that mislead, and in the worst case by a crash of the process.

use gpu_handoff_protocol::{Code, DeviceUuid, Refusal};
use serde::{Deserialize, Serialize};

use super::publish::list;
use super::{Member, Registry, SessionFacts};

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
    fn check(&self, on: DeviceUuid, of: DeviceUuid) -> Result<(), Refusal> {
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
    /// Whether the pod may use this device.
    pub(super) fn check_holds(&self, device: DeviceUuid) -> Result<(), Refusal> {
        match &self.facts.devices {
            Some(held) if !held.contains(&device) => {
                let wanted = format!("one that pod {} holds: {}", self.facts.pod, list(held));
                Err(Refusal::new(Code::DeviceMismatch).compared_with("device", wanted, device))
            }
            _ => Ok(()),
        }
    }
}

impl Registry {
    /// Whether a process of `member` can map memory of the device `of`, on the device `on` if it says that, else on any
    /// that its pod holds.
    pub(super) fn check_reach(
        &self,
        member: &Member,
        session: &SessionFacts,
        on: Option<DeviceUuid>,
        of: DeviceUuid,
    ) -> Result<(), Refusal> {
        let candidates = match (&on, member.facts.devices.as_deref()) {
            (Some(on), _) => {
                member.check_holds(*on)?;
                std::slice::from_ref(on)
            }
            (None, Some(held)) => held,
            // All of the node's, so this one too.
            (None, None) => return Ok(()),
        };
        if candidates.contains(&of) {
            return Ok(());
        }
        let Some(topology) = &self.topology else {
            let found = format!(
                "pod {} holds {}, and what reaches what is not known",
                member.facts.pod,
                list(candidates)
            );
            return Err(Refusal::new(Code::NoPeerAccess).compared_with("device", of, found));
        };
        let mut outcome =
            Err(Refusal::new(Code::NoPeerAccess).compared_with("device", of, "the pod holds none"));
        for candidate in candidates {
            outcome = topology.check(*candidate, of);
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
        match &session.reachable {
            Some(reachable) if reachable.contains(&of) => Ok(()),
            Some(reachable) => {
                let wanted = format!("that of {of} in the process's /dev");
                let found = format!("those of {}", list(reachable));
                Err(Refusal::new(Code::GpuNotReachable).compared_with("device node", wanted, found))
            }
            None => {
                let wanted = format!("that of {of} in the process's /dev");
                Err(Refusal::new(Code::GpuNotReachable).compared_with(
                    "device node",
                    wanted,
                    "it could not be looked at",
                ))
            }
        }
    }
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
