//! The decisions about one pod. What two pods may do together is decided in `exchange`.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use gpu_handoff_protocol::{BufferFacts, Code, GroupKey, Kind, Lifetime, Namespace, Refusal};

use crate::quota::within;
use crate::{
    Asks, Devices, FailureRule, GrantedKind, GroupQuota, GroupTerms, Held, LegacyRule, NamespaceTerms,
    OnFailure, Orphans, Party, Policy, Profile, Quota, Unadjusted,
};

impl Policy {
    /// Whether a pod may be in its group at all.
    ///
    /// # Errors
    /// `POLICY_DENIED`.
    pub fn may_be_member(&self, who: &Party<'_>) -> Result<(), Refusal> {
        if self.is_invited(who) {
            return Ok(());
        }
        let wanted = format!("one of namespace {}, or a rule for {}", who.namespace, who.group);
        Err(Refusal::new(Code::PolicyDenied)
            .compared_with("group", wanted, who.group)
            .with_remedy("name a group of the pod's own namespace, or have the administrator write a rule under `exchange` in the policy that names both namespaces"))
    }

    /// Whether a pod may publish this buffer beside what it and its group hold.
    ///
    /// # Errors
    /// `POLICY_DENIED`, `QUOTA_BUFFERS`, `QUOTA_BYTES` or `QUOTA_DESCRIPTORS`.
    pub fn may_publish(&self, who: &Party<'_>, held: &Held, facts: &BufferFacts) -> Result<(), Refusal> {
        self.may_publish_kind(who, facts.kind)?;
        if facts.lifetime == Lifetime::Pod {
            self.may_outlive(who, held, facts)?;
        }
        self.may_hold(who, held, 1)?;
        let (own, group) = (self.quota_of(who), self.group_quota_of(who.group));
        let bytes = facts.allocation_size;
        within(Code::QuotaBytes, "bytes", held.pod.bytes, bytes, own.bytes)?;
        within(Code::QuotaBytes, "bytes of the group", held.group.bytes, bytes, group.bytes)?;
        let descriptors = facts.kind.descriptors() as u64;
        within(Code::QuotaDescriptors, "descriptors", held.pod.descriptors, descriptors, own.descriptors)?;
        let (what, of_group) = ("descriptors of the group", held.group.descriptors);
        within(Code::QuotaDescriptors, what, of_group, descriptors, group.descriptors)
    }

    /// Whether a pod may publish buffers of a kind.
    ///
    /// # Errors
    /// `POLICY_DENIED`.
    pub fn may_publish_kind(&self, who: &Party<'_>, kind: Kind) -> Result<(), Refusal> {
        let granted = match kind {
            Kind::Vmm => GrantedKind::Vmm,
            Kind::Timeline => GrantedKind::Timeline,
            Kind::Legacy => return self.may_publish_legacy(who),
        };
        let kinds = self.terms_of(who.namespace).and_then(|own| own.kinds.as_ref()).unwrap_or(&self.kinds);
        if kinds.contains(&granted) {
            return Ok(());
        }
        let remedy = format!(
            "have the administrator add {granted} to `namespaces.{}.kinds` in the policy",
            who.namespace
        );
        Err(Refusal::new(Code::PolicyDenied).compared_with("kind", list(kinds), granted).with_remedy(remedy))
    }

    fn may_publish_legacy(&self, who: &Party<'_>) -> Result<(), Refusal> {
        let rule = self.legacy_of(who.namespace);
        if rule == LegacyRule::Deny {
            return Err(Refusal::new(Code::PolicyDenied)
                .compared_with("legacy", LegacyRule::WithinNamespace, rule)
                .with_remedy(
                    "publish as vmm, or have the administrator set `legacy: within-namespace` in the policy",
                ));
        }
        if !who.is_at_home() {
            let wanted = format!("one of namespace {}", who.namespace);
            return Err(Refusal::new(Code::PolicyDenied)
                .compared_with("group", wanted, who.group)
                .with_remedy("publish as vmm: legacy handles stay within a namespace"));
        }
        Ok(())
    }

    fn may_outlive(&self, who: &Party<'_>, held: &Held, facts: &BufferFacts) -> Result<(), Refusal> {
        if facts.kind != Kind::Vmm {
            return Err(Refusal::new(Code::PolicyDenied)
                .compared_with("kind of lifetime pod", Kind::Vmm.as_str(), facts.kind.as_str())
                .with_remedy("publish with lifetime process"));
        }
        if facts.order.is_some() {
            return Err(Refusal::new(Code::PolicyDenied)
                .compared_with(
                    "order of lifetime pod",
                    "none",
                    "words of a timeline, which ends with its process",
                )
                .with_remedy("publish it without a stream, or with lifetime process"));
        }
        let granted = self.pod_lifetime_bytes_of(who.namespace);
        let all = held.pod.pod_lifetime_bytes.saturating_add(facts.allocation_size);
        if all <= granted {
            return Ok(());
        }
        Err(Refusal::new(Code::PolicyDenied)
            .compared_with("bytes of lifetime pod", format!("at most {granted}"), all)
            .with_remedy(format!(
                "publish with lifetime process, or have the administrator raise `namespaces.{}.pod-lifetime-bytes` in the policy",
                who.namespace
            )))
    }

    /// Whether what a pod and its group hold is no more than they may: so long each buffer of it could be published beside the others.
    #[must_use]
    pub fn is_within(&self, who: &Party<'_>, held: &Held) -> bool {
        let (own, group) = (self.quota_of(who), self.group_quota_of(who.group));
        let (pod, all) = (&held.pod, &held.group);
        let of_pod =
            pod.buffers <= own.buffers && pod.bytes <= own.bytes && pod.descriptors <= own.descriptors;
        let of_group =
            all.buffers <= group.buffers && all.bytes <= group.bytes && all.descriptors <= group.descriptors;
        of_pod && of_group && pod.pod_lifetime_bytes <= self.pod_lifetime_bytes_of(who.namespace)
    }

    /// Whether a pod may have so many more buffers beside what it and its group hold, for a set that comes in parts: what
    /// each of them is, is asked of it when it comes.
    ///
    /// # Errors
    /// `QUOTA_BUFFERS`.
    pub fn may_hold(&self, who: &Party<'_>, held: &Held, more: u64) -> Result<(), Refusal> {
        let (own, group) = (self.quota_of(who), self.group_quota_of(who.group));
        within(Code::QuotaBuffers, "buffers", held.pod.buffers, more, own.buffers)?;
        within(Code::QuotaBuffers, "buffers of the group", held.group.buffers, more, group.buffers)
    }

    /// Whether a pod may take so many more leases beside what it and its group hold.
    ///
    /// # Errors
    /// `QUOTA_LEASES`.
    pub fn may_lease(&self, who: &Party<'_>, held: &Held, more: u64) -> Result<(), Refusal> {
        let (own, group) = (self.quota_of(who), self.group_quota_of(who.group));
        within(Code::QuotaLeases, "leases", held.pod.leases, more, own.leases)?;
        within(Code::QuotaLeases, "leases of the group", held.group.leases, more, group.leases)
    }

    /// Why a pod may not have what it asks for, all of it; nothing: it may. Whether it may be in its group is
    /// [`Self::may_be_member`]'s to say.
    #[must_use]
    pub fn denied_of(&self, who: &Party<'_>, asks: Asks) -> Vec<Refusal> {
        let Asks { profile, shares, devices, on_failure } = asks;
        let pods = who.namespace;
        let outcomes = [
            self.may_have_profile(pods, profile),
            // What a profile that is granted brings is granted with it.
            if shares && profile == Profile::Client { self.may_have_parts(pods) } else { Ok(()) },
            if shares { may_share(who) } else { Ok(()) },
            self.may_have_devices(pods, devices),
            self.may_start_anyway(pods, on_failure),
        ];
        outcomes.into_iter().filter_map(Result::err).collect()
    }

    fn may_have_profile(&self, pods: &Namespace, profile: Profile) -> Result<(), Refusal> {
        let granted = self.profiles_of(pods);
        if granted.contains(&profile) {
            return Ok(());
        }
        let remedy =
            format!("have the administrator add {profile} to `namespaces.{pods}.profiles` in the policy");
        Err(Refusal::new(Code::PolicyDenied)
            .compared_with("profile", list(granted), profile)
            .with_remedy(remedy))
    }

    /// Whether a pod may have parts of a profile without it.
    fn may_have_parts(&self, pods: &Namespace) -> Result<(), Refusal> {
        let (granted, bring) = (self.profiles_of(pods), [Profile::Torch, Profile::Nccl]);
        if bring.iter().any(|profile| granted.contains(profile)) {
            return Ok(());
        }
        let remedy = format!(
            "leave out what sets the pod apart from profile client (shm, ipc, pids), or have the administrator add {} to \
             `namespaces.{pods}.profiles` in the policy",
            Profile::Torch
        );
        let found = format!("{} with parts of {}", Profile::Client, list(bring));
        Err(Refusal::new(Code::PolicyDenied)
            .compared_with("profile", list(granted), found)
            .with_remedy(remedy))
    }

    fn profiles_of(&self, pods: &Namespace) -> &BTreeSet<Profile> {
        self.terms_of(pods).and_then(|own| own.profiles.as_ref()).unwrap_or(&self.profiles)
    }

    fn may_have_devices(&self, pods: &Namespace, devices: Devices) -> Result<(), Refusal> {
        let granted = self.terms_of(pods).and_then(|own| own.devices).unwrap_or(self.devices);
        if devices <= granted {
            return Ok(());
        }
        let remedy =
            format!("have the administrator set `namespaces.{pods}.devices: {devices}` in the policy");
        Err(Refusal::new(Code::PolicyDenied).compared_with("devices", granted, devices).with_remedy(remedy))
    }

    fn may_start_anyway(&self, pods: &Namespace, asked: Option<OnFailure>) -> Result<(), Refusal> {
        let (rule, start) = (self.failure_rule_of(pods), OnFailure::Start);
        if rule != FailureRule::AlwaysBlock || asked != Some(start) {
            return Ok(());
        }
        let remedy = format!(
            "remove the annotation, or have the administrator set `namespaces.{pods}.on-failure: {}` in the policy",
            FailureRule::Block
        );
        Err(Refusal::new(Code::PolicyDenied)
            .compared_with("on-failure", OnFailure::Block, start)
            .with_remedy(remedy))
    }

    /// What happens to the applications of a pod of a namespace that asks for this where its start fails.
    #[must_use]
    pub fn on_failure_of(&self, pods: &Namespace, asked: Option<OnFailure>) -> OnFailure {
        match self.failure_rule_of(pods) {
            FailureRule::AlwaysBlock => OnFailure::Block,
            FailureRule::Block => asked.unwrap_or(OnFailure::Block),
            FailureRule::Start => asked.unwrap_or(OnFailure::Start),
        }
    }

    fn failure_rule_of(&self, pods: &Namespace) -> FailureRule {
        self.terms_of(pods).and_then(|own| own.on_failure).unwrap_or(self.on_failure)
    }

    /// What a pod may hold.
    #[must_use]
    pub fn quota_of(&self, who: &Party<'_>) -> Quota {
        let Some(terms) = self.terms_of(who.namespace) else { return self.quota };
        let of_namespace = terms.quota.of(self.quota);
        let group = terms.groups.get(&who.group.name).filter(|_| who.is_at_home());
        group.map_or(of_namespace, |group| group.quota.of(of_namespace))
    }

    /// What the pods of a group may hold together.
    #[must_use]
    pub fn group_quota_of(&self, group: &GroupKey) -> GroupQuota {
        let Some(terms) = self.terms_of(&group.namespace) else { return self.group_quota };
        let of_namespace = terms.group_quota.of(self.group_quota);
        let own: Option<&GroupTerms> = terms.groups.get(&group.name);
        own.map_or(of_namespace, |own| own.group_quota.of(of_namespace))
    }

    /// Who of a namespace may publish legacy handles.
    #[must_use]
    pub fn legacy_of(&self, pods: &Namespace) -> LegacyRule {
        self.terms_of(pods).and_then(|own| own.legacy).unwrap_or(self.legacy)
    }

    /// Whether anybody may publish legacy handles.
    #[must_use]
    pub fn has_legacy(&self) -> bool {
        let of_namespaces = self.namespaces.values().filter_map(|own| own.legacy);
        [self.legacy].into_iter().chain(of_namespaces).any(|rule| rule != LegacyRule::Deny)
    }

    /// Bytes that one pod of a namespace may publish in buffers that live as long as the pod.
    #[must_use]
    pub fn pod_lifetime_bytes_of(&self, pods: &Namespace) -> u64 {
        self.terms_of(pods).and_then(|own| own.pod_lifetime_bytes).unwrap_or(self.pod_lifetime_bytes)
    }

    /// How long the holders of a deleted pod's buffers may keep them.
    #[must_use]
    pub fn retire_deadline_of(&self, owners: &Namespace) -> Duration {
        self.terms_of(owners).and_then(|own| own.retire_deadline).unwrap_or(self.retire_deadline)
    }

    /// Whether anybody is made to let go of a buffer whose time is over.
    #[must_use]
    pub fn ends_orphans(&self) -> bool {
        self.all_orphans().any(|orphans| orphans != Orphans::Report)
    }

    /// Whether pods are evicted for that.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.all_orphans().any(|orphans| orphans == Orphans::Evict)
    }

    fn all_orphans(&self) -> impl Iterator<Item = Orphans> {
        let of_namespaces = self.namespaces.values().filter_map(|own| own.orphans);
        [self.orphans].into_iter().chain(of_namespaces)
    }

    /// What happens to pods of a namespace that still lease a buffer whose time is over.
    #[must_use]
    pub fn orphans_of(&self, holders: &Namespace) -> Orphans {
        self.terms_of(holders).and_then(|own| own.orphans).unwrap_or(self.orphans)
    }

    /// What happens to a container of a pod of this namespace that was made without what the pod was granted.
    #[must_use]
    pub fn unadjusted_of(&self, pods: &Namespace) -> Unadjusted {
        self.terms_of(pods).and_then(|own| own.unadjusted).unwrap_or(self.unadjusted)
    }

    fn terms_of(&self, namespace: &Namespace) -> Option<&NamespaceTerms> {
        self.namespaces.get(namespace)
    }
}

/// Whether a pod may share more than buffers with its group: whoever is in a group's `/dev/shm` or IPC namespace does there what he
/// likes, which no rule about publishing and acquiring speaks of.
fn may_share(who: &Party<'_>) -> Result<(), Refusal> {
    if who.is_at_home() {
        return Ok(());
    }
    let wanted = format!("one of namespace {}", who.namespace);
    Err(Refusal::new(Code::PolicyDenied).compared_with("group", wanted, who.group).with_remedy(
        "leave out profile, shm, ipc and pids: what is shared beside buffers stays within a namespace",
    ))
}

/// Words as a list for people.
fn list<T: fmt::Display>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(" or ") }
}
