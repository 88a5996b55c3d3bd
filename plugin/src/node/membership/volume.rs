//! A pod's volume: its slot, and whose that is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gpu_handoff_kubelet::csi::{PodName, Publish, Refusal};
use gpu_handoff_kubelet::pods::PodFacts;
use gpu_handoff_policy::{Asks, Party};
use gpu_handoff_protocol::{GroupKey, Namespace, PodRef, PodUid, ServiceAccount, SlotId};
use serde::{Deserialize, Serialize};

use super::group;
use crate::identity::cgroup::ContainerId;
use crate::members::{Holds, Member};
use crate::node::events::About;
use crate::node::parts::{Parts, Plan};

/// Bytes of a volume's hash in the name of its slot.
const SLOT_BYTES: usize = 10;

/// A volume, as it is on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
// A later version may write more, and be taken back.
#[serde(rename_all = "kebab-case")]
pub(in crate::node) struct Volume {
    /// The kubelet's id of it.
    pub(super) id: String,
    /// What the pod calls it.
    pub(super) name: String,
    /// The slot that is mounted there.
    pub(super) slot: SlotId,
    /// Where it is mounted.
    pub(in crate::node) target: PathBuf,
    pub(super) pod: PodRef,
    pub(super) uid: PodUid,
    /// A static pod has none.
    pub(super) service_account: Option<ServiceAccount>,
    /// The pod's group when it came: nobody changes it by changing an annotation.
    pub(super) group: GroupKey,
    /// The containers whose processes were let in last: they go on where nobody tells of pods after a restart.
    #[serde(default)]
    pub(super) containers: BTreeSet<ContainerId>,
    /// What else it asked for when it came, and was granted.
    #[serde(default)]
    pub(in crate::node) parts: Parts,
    /// Which range of process numbers it has, where it asked for some that no other of its group has; `None`: what the
    /// kernel gives.
    #[serde(default)]
    pub(super) range: Option<u32>,
}

impl Volume {
    /// The volume that is asked for, for the pod that it is said to be of; and what the pod asks for that a policy grants.
    pub(super) fn of(publish: &Publish, pod: &PodFacts) -> Result<(Self, Asks), Refusal> {
        let invalid = |why: String| Refusal::Invalid(why);
        let said = [&publish.pod.namespace, &publish.pod.name, &publish.service_account];
        let found = [&pod.namespace, &pod.name, &pod.service_account];
        if said != found {
            let (said, found) = (said.map(String::as_str).join("/"), found.map(String::as_str).join("/"));
            return Err(invalid(format!(
                "the volume is said to be of {said}, and the pod of UID {} is {found}: is podInfoOnMount set in the CSIDriver object?",
                pod.uid
            )));
        }
        if pod.deletion.is_some() {
            return Err(Refusal::NotYet("the pod is being deleted".to_owned()));
        }
        let bad = |e: gpu_handoff_protocol::IdError| invalid(e.to_string());
        let namespace: Namespace = pod.namespace.parse().map_err(bad)?;
        let service_account = match pod.service_account.as_str() {
            "" => None,
            name => Some(name.parse().map_err(bad)?),
        };
        let wishes = group::of(pod, &namespace).map_err(invalid)?;
        let (asks, parts) = (wishes.asks(), Parts::from(&wishes));
        let volume = Self {
            id: publish.volume.clone(),
            name: publish.name.clone(),
            slot: slot_of(&publish.volume).map_err(bad)?,
            target: publish.target.clone(),
            pod: PodRef { namespace, name: pod.name.parse().map_err(bad)? },
            uid: pod.uid.parse().map_err(bad)?,
            service_account,
            group: wishes.group,
            containers: BTreeSet::new(),
            parts,
            range: None,
        };
        Ok((volume, asks))
    }

    /// Whether it is this one that is asked for again.
    pub(super) fn is_asked_for_by(&self, publish: &Publish) -> Result<(), Refusal> {
        if self.uid.as_str() == publish.pod.uid && self.target == publish.target {
            return Ok(());
        }
        let (pod, uid, target) = (&self.pod, &self.uid, self.target.display());
        Err(Refusal::Invalid(format!("the volume is pod {pod}'s, of UID {uid}, at {target}")))
    }

    /// Its slot.
    pub(in crate::node) const fn slot(&self) -> &SlotId {
        &self.slot
    }

    /// As the kubelet asks for it.
    pub(super) fn publish(&self) -> Publish {
        let PodRef { namespace, name } = &self.pod;
        let service_account = self.service_account.as_ref().map(ToString::to_string);
        Publish {
            volume: self.id.clone(),
            pod: PodName {
                namespace: namespace.to_string(),
                name: name.to_string(),
                uid: self.uid.to_string(),
            },
            service_account: service_account.unwrap_or_default(),
            name: self.name.clone(),
            target: self.target.clone(),
        }
    }

    /// Its pod, for events.
    pub(super) fn about(&self) -> About {
        let (namespace, name) = (self.pod.namespace.to_string(), self.pod.name.to_string());
        About { namespace, name, uid: self.uid.to_string() }
    }

    /// What its pod's containers are to get, with nothing of its group's yet.
    pub(in crate::node) fn plan(&self) -> Plan {
        Plan {
            slot: self.slot.clone(),
            pod: self.pod.clone(),
            uid: self.uid.clone(),
            group: self.group.clone(),
            parts: self.parts,
            range: self.range,
            refused: None,
            shm: None,
            ipc: None,
            devices: BTreeMap::new(),
            env: BTreeMap::new(),
        }
    }

    /// Its pod, as policies know it.
    pub(super) fn party(&self) -> Party<'_> {
        let Self { pod, group, service_account, .. } = self;
        Party { namespace: &pod.namespace, group, service_account: service_account.as_ref() }
    }

    /// Its pod as a member.
    pub(in crate::node) fn member(&self) -> Member {
        Member {
            slot: self.slot.clone(),
            pod: self.pod.clone(),
            uid: self.uid.clone(),
            group: self.group.clone(),
            service_account: self.service_account.clone(),
            user: None,
            // Until the kubelet has been asked.
            holds: Holds::WhatItReaches,
            held_back: None,
            containers: Some(self.containers.clone()),
        }
    }
}

/// The slot of a volume: no two have the same, and none is had again by another.
pub(super) fn slot_of(volume: &str) -> Result<SlotId, gpu_handoff_protocol::IdError> {
    let hash = blake3::hash(volume.as_bytes());
    let digits: String = hash.as_bytes()[..SLOT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("p-{digits}").parse()
}

#[cfg(test)]
mod tests {
    use gpu_handoff_inject::{Devices, Ipc, Pids, Profile, Shm};
    use serde_json::json;

    use super::super::testing::volume;
    use super::*;

    #[test]
    fn a_record_that_says_nothing_of_parts_is_of_a_volume_without_any() {
        let mut record = serde_json::to_value(volume("csi-1")).unwrap();
        let all = json!({ "profile": "client", "shm": "none", "shm-size": null, "ipc": "none", "pids": "own", "devices": "own", "group-size": null });
        assert_eq!(record["parts"], all);
        record.as_object_mut().unwrap().remove("parts");
        assert_eq!(serde_json::from_value::<Volume>(record).unwrap(), volume("csi-1"));
    }

    #[test]
    fn what_a_pod_was_granted_is_on_record_and_in_its_plan() {
        let mut record = serde_json::to_value(volume("csi-1")).unwrap();
        record["parts"] = json!({ "profile": "nccl", "shm": "group", "shm-size": 1 << 30, "pids": "distinct", "devices": "group",
            "group-size": 2, "of-a-later-version": true });
        let read: Volume = serde_json::from_value(record).unwrap();
        let parts = Parts {
            profile: Profile::Nccl,
            shm: Shm::Group,
            shm_size: Some(1 << 30),
            ipc: Ipc::None,
            pids: Pids::Distinct,
            devices: Devices::Group,
            group_size: Some(2),
        };
        assert_eq!((read.parts, read.plan().parts), (parts, parts));
        let again: Volume = serde_json::from_slice(&serde_json::to_vec(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }
}
