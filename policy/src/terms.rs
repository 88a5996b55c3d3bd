//! What namespaces and groups have of their own. What they do not say is as the policy says for all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpu_handoff_protocol::GroupName;
use serde::{Deserialize, Serialize};

use crate::words::{Devices, FailureRule, GrantedKind, LegacyRule, Orphans, Profile, Unadjusted};
use crate::{GroupQuotaChange, QuotaChange, ShmTermsChange, amount, bounded};

/// What one namespace has of its own: that of its pods, and of its groups, whoever is in them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NamespaceTerms {
    /// Who may publish legacy handles.
    #[serde(deserialize_with = "bounded::some", skip_serializing_if = "Option::is_none")]
    pub legacy: Option<LegacyRule>,
    /// What kinds of buffers its pods may publish beside.
    #[serde(deserialize_with = "bounded::some_words", skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeSet<GrantedKind>>,
    /// What profiles its pods may have.
    #[serde(deserialize_with = "bounded::some_words", skip_serializing_if = "Option::is_none")]
    pub profiles: Option<BTreeSet<Profile>>,
    /// Whose GPUs its pods may have device nodes of.
    #[serde(deserialize_with = "bounded::some", skip_serializing_if = "Option::is_none")]
    pub devices: Option<Devices>,
    /// What happens to its pods' applications where their start fails.
    #[serde(deserialize_with = "bounded::some", skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<FailureRule>,
    /// Bytes that one of its pods may publish in buffers that live as long as the pod.
    #[serde(deserialize_with = "amount::some_bytes", skip_serializing_if = "Option::is_none")]
    pub pod_lifetime_bytes: Option<u64>,
    /// How long the holders of a deleted pod's buffers may keep them.
    #[serde(
        deserialize_with = "amount::some_time",
        serialize_with = "amount::write_some_time",
        skip_serializing_if = "Option::is_none"
    )]
    pub retire_deadline: Option<Duration>,
    /// What happens to its pods where they lease a buffer whose time is over.
    #[serde(deserialize_with = "bounded::some", skip_serializing_if = "Option::is_none")]
    pub orphans: Option<Orphans>,
    /// What happens to containers of its pods that were made without what these were granted.
    #[serde(deserialize_with = "bounded::some", skip_serializing_if = "Option::is_none")]
    pub unadjusted: Option<Unadjusted>,
    /// How large its groups' `/dev/shm` may be.
    #[serde(skip_serializing_if = "ShmTermsChange::is_empty")]
    pub shm: ShmTermsChange,
    /// What one of its pods may hold.
    #[serde(skip_serializing_if = "QuotaChange::is_empty")]
    pub quota: QuotaChange,
    /// What the pods of one of its groups may hold together.
    #[serde(skip_serializing_if = "GroupQuotaChange::is_empty")]
    pub group_quota: GroupQuotaChange,
    /// What its groups have of their own.
    #[serde(deserialize_with = "bounded::map", skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupName, GroupTerms>,
}

/// What one group has of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GroupTerms {
    /// What one of its pods may hold, where that is of the group's namespace.
    #[serde(skip_serializing_if = "QuotaChange::is_empty")]
    pub quota: QuotaChange,
    /// What its pods may hold together.
    #[serde(skip_serializing_if = "GroupQuotaChange::is_empty")]
    pub group_quota: GroupQuotaChange,
}
