//! How large the `/dev/shm` of groups may be, each alone and all of a node together.

use std::fmt;

use gpu_handoff_protocol::{Code, GroupKey, Namespace, Refusal};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Policy, amount};

/// What groups that share a `/dev/shm` may have of the node's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ShmTerms {
    /// Bytes of one group's, and how many it has where none of its pods says a size.
    #[serde(deserialize_with = "amount::bytes")]
    pub per_group: u64,
    /// What all of them together may have of a node's memory.
    pub node_share: Share,
}

impl Default for ShmTerms {
    fn default() -> Self {
        Self { per_group: 1 << 30, node_share: Share(25) }
    }
}

/// The same of a namespace's groups, where it is something else than otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ShmTermsChange {
    /// Bytes of one group's.
    #[serde(deserialize_with = "amount::some_bytes", skip_serializing_if = "Option::is_none")]
    pub per_group: Option<u64>,
    /// What all of the namespace's together may have of a node's memory.
    #[serde(deserialize_with = "crate::bounded::some", skip_serializing_if = "Option::is_none")]
    pub node_share: Option<Share>,
}

impl ShmTermsChange {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A part of something, in whole hundredths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u8);

impl Share {
    /// So many bytes of these.
    #[must_use]
    pub const fn of(self, bytes: u64) -> u64 {
        // In two steps: a hundred times all of it may be too large a number.
        let hundredths = self.0 as u64;
        bytes / 100 * hundredths + bytes % 100 * hundredths / 100
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = Share;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a share such as 25%, from 0% to 100%")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Share, E> {
                let digits = text.strip_suffix('%').filter(|d| d.bytes().all(|byte| byte.is_ascii_digit()));
                let share = digits.and_then(|digits| digits.parse().ok()).filter(|share| *share <= 100);
                share.map(Share).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Written)
    }
}

/// What there is on a node, and what other groups have of it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeMemory {
    /// All of the node's memory.
    pub all: u64,
    /// What other groups' `/dev/shm` may grow to together.
    pub others: u64,
    /// Of these, those of the same namespace.
    pub others_of_namespace: u64,
}

impl Policy {
    /// How large the `/dev/shm` of a group is where none of its pods says it, and the most that it may be.
    #[must_use]
    pub fn shm_of(&self, groups: &Namespace) -> u64 {
        self.shm_change(groups).per_group.unwrap_or(self.shm.per_group)
    }

    /// Whether a group's `/dev/shm` may be so large on a node.
    ///
    /// # Errors
    /// `QUOTA_SHM`.
    pub fn may_share_memory(&self, group: &GroupKey, bytes: u64, node: NodeMemory) -> Result<(), Refusal> {
        let namespace = &group.namespace;
        let per_group = self.shm_of(namespace);
        if bytes > per_group {
            return Err(refused(bytes, per_group, 0).with_remedy(format!(
                "ask for less (gpu-handoff.io/shm-size), or have the administrator raise `namespaces.{namespace}.shm.per-group` in the policy"
            )));
        }
        let own = self.shm_change(namespace).node_share.map(|share| (share, node.others_of_namespace));
        for (share, others) in own.into_iter().chain([(self.shm.node_share, node.others)]) {
            let most = share.of(node.all);
            if bytes.saturating_add(others) > most {
                return Err(refused(bytes, most, others).with_remedy(format!(
                    "ask for less (gpu-handoff.io/shm-size), wait until other groups have left the node, or have the administrator \
                     raise `shm.node-share` in the policy: {share} of the node's memory"
                )));
            }
        }
        Ok(())
    }

    fn shm_change(&self, groups: &Namespace) -> ShmTermsChange {
        self.namespaces.get(groups).map(|own| own.shm).unwrap_or_default()
    }
}

fn refused(bytes: u64, most: u64, others: u64) -> Refusal {
    let found = match others {
        0 => bytes.to_string(),
        others => format!("{bytes} beside {others} of other groups"),
    };
    Refusal::new(Code::QuotaShm).compared_with("bytes of /dev/shm", format!("at most {most}"), found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::policy;

    const GI: u64 = 1 << 30;

    fn group(namespace: &str) -> GroupKey {
        GroupKey { namespace: namespace.parse().unwrap(), name: "g".parse().unwrap() }
    }

    fn may(policy: &Policy, namespace: &str, bytes: u64, others: [u64; 2]) -> Result<(), String> {
        let node = NodeMemory { all: 64 * GI, others: others[0], others_of_namespace: others[1] };
        policy.may_share_memory(&group(namespace), bytes, node).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_group_and_all_of_a_node_have_their_bounds() {
        let policy = policy(
            "shm: {per-group: 8Gi}\nnamespaces: {ml: {shm: {per-group: 12Gi, node-share: 20%}}, off: {shm: {per-group: 0}}}\n",
        );
        assert_eq!(policy.shm_of(&group("ml").namespace), 12 * GI);
        assert_eq!(policy.shm_of(&group("web").namespace), 8 * GI);
        assert_eq!(may(&policy, "web", 8 * GI, [8 * GI, 0]), Ok(()));
        let too_large = may(&policy, "web", 8 * GI + 1, [0, 0]).unwrap_err();
        let begins = "refused: QUOTA_SHM (bytes of /dev/shm: wanted at most 8589934592, found 8589934593); remedy: ask for less";
        assert!(
            too_large.starts_with(begins) && too_large.contains("`namespaces.web.shm.per-group`"),
            "{too_large}"
        );
        let no_room = may(&policy, "web", 8 * GI, [8 * GI + 1, 0]).unwrap_err();
        assert!(
            no_room
                .contains("wanted at most 17179869184, found 8589934592 beside 8589934593 of other groups"),
            "{no_room}"
        );
        // A namespace's own share is beside the node's, not in its place.
        assert_eq!(may(&policy, "ml", 12 * GI, [4 * GI, 0]), Ok(()));
        assert!(may(&policy, "ml", 12 * GI, [4 * GI, 4 * GI]).unwrap_err().contains("20% of the node's"));
        assert!(may(&policy, "ml", 12 * GI, [5 * GI, 0]).unwrap_err().contains("25% of the node's"));
        assert!(may(&policy, "off", 1, [0, 0]).unwrap_err().contains("wanted at most 0, found 1"));
    }

    #[test]
    fn a_share_is_whole_hundredths_and_nothing_else() {
        for (text, wanted) in [("0%", Some(0)), ("100%", Some(100)), ("007%", Some(7))] {
            assert_eq!(serde_json::from_value::<Share>(text.into()).ok(), wanted.map(Share), "{text}");
        }
        for bad in ["", "%", "25", "25 %", "+5%", "-1%", "101%", "256%", "2.5%", "25%%", "\u{0662}%"] {
            assert!(serde_json::from_value::<Share>(bad.into()).is_err(), "{bad}");
        }
        assert_eq!(serde_json::to_value(Share(25)).unwrap(), "25%");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// No number is too large for a share of it, and it is never more than all of it.
        #[test]
        fn a_share_is_a_part(share in 0_u8..=100, bytes in any::<u64>()) {
            let found = u128::from(Share(share).of(bytes));
            prop_assert!(found <= u128::from(bytes));
            let exact = u128::from(bytes) * u128::from(share) / 100;
            prop_assert!(found <= exact && exact - found <= 1);
        }

        /// What is granted is within all bounds, whatever is asked for.
        #[test]
        fn nothing_is_granted_beyond_a_bound(bytes in any::<u64>(), others in any::<u64>(), own in any::<u64>()) {
            let policy = policy("shm: {per-group: 16Gi, node-share: 50%}\n");
            if may(&policy, "ml", bytes, [others, own]).is_ok() {
                prop_assert!(bytes <= 16 * GI && bytes.checked_add(others).is_some_and(|all| all <= 32 * GI));
            }
        }
    }
}
