//! Who may publish and acquire what: the policy of gpu-handoff as plain data and pure decisions.
//!
//! Default deny: two pods may exchange buffers when they are members of the same group, which implies the same
//! namespace; everything beyond that has to be granted here.

use gpu_handoff_protocol::{BufferFacts, Code, GroupKey, Kind, Lifetime, Refusal};
use serde::{Deserialize, Serialize};

/// The rules of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Legacy handles are forgeable bearer tokens; who may publish them.
    pub legacy: LegacyRule,
    /// What one member may hold.
    pub quota: Quota,
}

/// Who may publish legacy handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegacyRule {
    /// Nobody.
    #[default]
    Deny,
    /// Members of a group whose members are all of one namespace.
    WithinNamespace,
}

/// What one member (a pod) may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Quota {
    /// Published buffers.
    pub buffers: u64,
    /// Bytes of GPU memory in published buffers.
    pub bytes: u64,
    /// Leases.
    pub leases: u64,
    /// Connections of its applications.
    pub connections: u64,
    /// Items that one connection waits for, each of its watches counted as one.
    pub requests: u64,
    /// Watches of one connection.
    pub watches: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { buffers: 16_384, bytes: 4 << 40, leases: 65_536, connections: 64, requests: 1_024, watches: 4 }
    }
}

/// What a member holds at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Published buffers.
    pub buffers: u64,
    /// Bytes of GPU memory in published buffers.
    pub bytes: u64,
    /// Leases.
    pub leases: u64,
}

impl Policy {
    /// Whether a member that holds `usage` may publish this buffer too.
    ///
    /// # Errors
    /// `POLICY_DENIED`, `QUOTA_BUFFERS` or `QUOTA_BYTES`.
    pub fn may_publish(&self, usage: &Usage, facts: &BufferFacts) -> Result<(), Refusal> {
        match (facts.kind, self.legacy) {
            (Kind::Vmm | Kind::Timeline, _) | (Kind::Legacy, LegacyRule::WithinNamespace) => {}
            (Kind::Legacy, LegacyRule::Deny) => {
                return Err(Refusal::new(Code::PolicyDenied)
                    .compared_with("legacy", "within-namespace", "deny")
                    .with_remedy("publish as vmm, or have the administrator set `legacy: within-namespace` in the policy"));
            }
        }
        if facts.lifetime == Lifetime::Pod {
            return Err(Refusal::new(Code::PolicyDenied)
                .compared_with("bytes granted for lifetime pod", facts.allocation_size, 0)
                .with_remedy("publish with lifetime process"));
        }
        within(Code::QuotaBuffers, "buffers", usage.buffers, 1, self.quota.buffers)?;
        within(Code::QuotaBytes, "bytes", usage.bytes, facts.allocation_size, self.quota.bytes)
    }

    /// Whether a member that holds `usage` may have so many more buffers, for a set that comes in parts: what each of
    /// them is, is asked of it when it comes.
    ///
    /// # Errors
    /// `QUOTA_BUFFERS`.
    pub fn may_hold(&self, usage: &Usage, more: u64) -> Result<(), Refusal> {
        within(Code::QuotaBuffers, "buffers", usage.buffers, more, self.quota.buffers)
    }

    /// Whether a member that holds `usage` may take so many more leases.
    ///
    /// # Errors
    /// `QUOTA_LEASES`.
    pub fn may_lease(&self, usage: &Usage, more: u64) -> Result<(), Refusal> {
        within(Code::QuotaLeases, "leases", usage.leases, more, self.quota.leases)
    }

    /// Whether members of these two groups may know of each other's buffers.
    #[must_use]
    pub fn may_exchange(&self, one: &GroupKey, other: &GroupKey) -> bool {
        one == other
    }
}

/// Refuses what would pass the limit.
fn within(code: Code, what: &str, held: u64, more: u64, limit: u64) -> Result<(), Refusal> {
    if held.saturating_add(more) <= limit {
        return Ok(());
    }
    Err(Refusal::new(code).compared_with(
        what,
        format!("at most {limit}"),
        format!("{held} held, {more} more"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_handoff_protocol::{Access, BufferName, DeviceUuid, Metadata};

    fn facts(kind: Kind) -> BufferFacts {
        BufferFacts {
            name: BufferName::new("w").unwrap(),
            kind,
            device: DeviceUuid::from_bytes([1; 16]),
            offset: 0,
            size: 10,
            allocation_size: 10,
            access: Access::ReadWrite,
            lifetime: Lifetime::Process,
            metadata: Metadata::default(),
            order: None,
        }
    }

    #[test]
    fn legacy_is_denied_until_one_line_allows_it() {
        let mut policy = Policy::default();
        let refusal = policy.may_publish(&Usage::default(), &facts(Kind::Legacy)).unwrap_err();
        assert_eq!(refusal.code(), Code::PolicyDenied);
        policy.legacy = LegacyRule::WithinNamespace;
        assert_eq!(policy.may_publish(&Usage::default(), &facts(Kind::Legacy)), Ok(()));
    }

    #[test]
    fn quotas_are_inclusive() {
        let quota = Quota { buffers: 2, bytes: 25, leases: 1, ..Quota::default() };
        let policy = Policy { quota, ..Policy::default() };
        let held = |buffers, bytes, leases| Usage { buffers, bytes, leases };
        assert_eq!(policy.may_publish(&held(1, 15, 0), &facts(Kind::Vmm)), Ok(()));
        let code = |usage| policy.may_publish(&usage, &facts(Kind::Vmm)).unwrap_err().code();
        assert_eq!(code(held(2, 0, 0)), Code::QuotaBuffers);
        assert_eq!(policy.may_hold(&held(1, 0, 0), 1), Ok(()));
        assert_eq!(policy.may_hold(&held(1, 0, 0), 2).unwrap_err().code(), Code::QuotaBuffers);
        assert_eq!(policy.may_publish(&held(1, 15, 0), &facts(Kind::Timeline)), Ok(()));
        assert_eq!(code(held(0, 16, 0)), Code::QuotaBytes);
        assert_eq!(policy.may_lease(&held(0, 0, 0), 1), Ok(()));
        assert_eq!(policy.may_lease(&held(0, 0, 0), 2).unwrap_err().code(), Code::QuotaLeases);
        assert_eq!(policy.may_lease(&held(0, 0, 1), 1).unwrap_err().code(), Code::QuotaLeases);
    }

    #[test]
    fn the_page_of_refusals_shows_the_quotas_that_hold_where_nothing_is_said() {
        let (policy, quota) = (Policy::default(), Quota::default());
        let full = Usage { buffers: quota.buffers, bytes: 0, leases: quota.leases };
        let nearly = Usage { bytes: quota.bytes - (1 << 30), ..Usage::default() };
        let large = BufferFacts { allocation_size: 2 << 30, ..facts(Kind::Vmm) };
        let refusals = [
            policy.may_publish(&full, &facts(Kind::Vmm)),
            policy.may_publish(&nearly, &large),
            policy.may_lease(&full, 1),
            policy.may_publish(&Usage::default(), &facts(Kind::Legacy)),
        ];
        let page = include_str!("../../docs/refusals.md");
        for refusal in refusals.map(|outcome| outcome.unwrap_err().to_string()) {
            let (example, _) = refusal.split_once("; remedy").unwrap();
            assert!(page.contains(&format!("    {example}\n")), "{example}");
        }
        // What the node counts by itself.
        for (code, limit) in
            [(Code::TooManyRequests, quota.requests), (Code::TooManyConnections, quota.connections)]
        {
            let mut examples =
                page.lines().filter(|line| line.starts_with(&format!("    refused: {code} (")));
            let example = examples.next().unwrap();
            assert!(example.contains(&format!("wanted at most {limit}")), "{example}");
        }
    }

    #[test]
    fn pod_lifetime_needs_a_grant() {
        let wanted = BufferFacts { lifetime: Lifetime::Pod, ..facts(Kind::Vmm) };
        let refusal = Policy::default().may_publish(&Usage::default(), &wanted).unwrap_err();
        assert_eq!(refusal.code(), Code::PolicyDenied);
    }

    #[test]
    fn a_policy_refuses_keys_it_does_not_know() {
        assert!(serde_json::from_str::<Policy>(r#"{"legacy":"within-namespace"}"#).is_ok());
        assert!(serde_json::from_str::<Policy>(r#"{"legcy":"deny"}"#).is_err());
    }
}
