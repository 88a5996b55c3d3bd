//! The whole policy of a node, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpu_handoff_protocol::Namespace;
use serde::{Deserialize, Serialize};

use crate::exchange::{self, Rule};
use crate::words::{Devices, FailureRule, GrantedKind, LegacyRule, Orphans, Profile, Unadjusted, Version};
use crate::{GroupQuota, NamespaceTerms, Quota, ShmTerms, amount, bounded};

/// The rules of one node: what holds for all, who may exchange with whom beyond their own group, and what namespaces have
/// of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case", expecting = "the keys of a policy")]
pub struct Policy {
    /// What its keys mean. A policy that is a file of its own says it.
    #[serde(deserialize_with = "bounded::some", skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Legacy handles are forgeable bearer tokens; who may publish them.
    pub legacy: LegacyRule,
    /// What kinds of buffers may be published beside.
    #[serde(deserialize_with = "bounded::words")]
    pub kinds: BTreeSet<GrantedKind>,
    /// What profiles pods may have.
    #[serde(deserialize_with = "bounded::words")]
    pub profiles: BTreeSet<Profile>,
    /// Whose GPUs pods may have device nodes of.
    pub devices: Devices,
    /// What happens to pods' applications where their start fails.
    pub on_failure: FailureRule,
    /// Bytes that one pod may publish in buffers that live as long as the pod.
    #[serde(deserialize_with = "amount::bytes")]
    pub pod_lifetime_bytes: u64,
    /// How long the holders of a deleted pod's buffers may keep them.
    #[serde(deserialize_with = "amount::time", serialize_with = "amount::write_time")]
    pub retire_deadline: Duration,
    /// What happens to who still leases a buffer whose time is over.
    pub orphans: Orphans,
    /// What happens to a container that was made without what its pod was granted.
    pub unadjusted: Unadjusted,
    /// How large the `/dev/shm` of groups may be.
    pub shm: ShmTerms,
    /// What one pod may hold.
    pub quota: Quota,
    /// What the pods of one group may hold together.
    pub group_quota: GroupQuota,
    /// Who may exchange with whom, beside pods of one namespace and group.
    #[serde(deserialize_with = "exchange::rules", skip_serializing_if = "Vec::is_empty")]
    pub exchange: Vec<Rule>,
    /// What namespaces have of their own.
    #[serde(deserialize_with = "bounded::map", skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<Namespace, NamespaceTerms>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            version: None,
            legacy: LegacyRule::default(),
            kinds: GrantedKind::ALL.iter().copied().collect(),
            profiles: BTreeSet::from([Profile::Client]),
            devices: Devices::default(),
            on_failure: FailureRule::default(),
            pod_lifetime_bytes: 0,
            retire_deadline: Duration::from_secs(30),
            orphans: Orphans::default(),
            unadjusted: Unadjusted::default(),
            shm: ShmTerms::default(),
            quota: Quota::default(),
            group_quota: GroupQuota::default(),
            exchange: Vec::new(),
            namespaces: BTreeMap::new(),
        }
    }
}
