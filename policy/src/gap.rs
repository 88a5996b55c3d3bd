//! Why two pods may not exchange, and what would have to be written so that they might.

use std::fmt;

use crate::exchange::{Rule, RuleName, Side};
use crate::{GroupRef, Party};

/// What is missing between two pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap<'a> {
    /// The rule that comes nearest: it names both pods' namespaces.
    pub almost: Option<Almost<'a>>,
    /// The rule that would grant it, and nothing else.
    pub rule: Rule,
}

/// A rule that names both namespaces and does not mean both pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Almost<'a> {
    /// Which one.
    pub rule: &'a RuleName,
    /// What it does not fit by.
    pub differs: Vec<Differs>,
}

/// What a rule does not fit by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Differs {
    /// It is for the other direction.
    Direction,
    /// The publisher's group is not named.
    PublisherGroup,
    /// The publisher's service account is not named.
    PublisherServiceAccount,
    /// The acquirer's group is not named.
    AcquirerGroup,
    /// The acquirer's service account is not named.
    AcquirerServiceAccount,
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direction => "it is for the other direction",
            Self::PublisherGroup => "it does not name the publisher's group",
            Self::PublisherServiceAccount => "it does not name the publisher's service account",
            Self::AcquirerGroup => "it does not name the acquirer's group",
            Self::AcquirerServiceAccount => "it does not name the acquirer's service account",
        })
    }
}

impl<'a> Gap<'a> {
    /// What is missing between two pods that no rule grants anything.
    pub(crate) fn between(rules: &'a [Rule], publisher: &Party<'_>, acquirer: &Party<'_>) -> Self {
        let near = rules.iter().filter_map(|rule| Almost::of(rule, publisher, acquirer));
        Self { almost: near.min_by_key(|almost| almost.differs.len()), rule: narrowest(publisher, acquirer) }
    }
}

impl<'a> Almost<'a> {
    fn of(rule: &'a Rule, publisher: &Party<'_>, acquirer: &Party<'_>) -> Option<Self> {
        let own = [Differs::PublisherGroup, Differs::PublisherServiceAccount];
        let others = [Differs::AcquirerGroup, Differs::AcquirerServiceAccount];
        let way = |publish: &[Side], acquire: &[Side], before: &[Differs]| {
            let (one, other) = (nearest(publish, publisher, own)?, nearest(acquire, acquirer, others)?);
            Some([before, &one, &other].concat())
        };
        let there = rule.ways().filter_map(|(publish, acquire)| way(publish, acquire, &[]));
        let back = way(&rule.acquire, &rule.publish, &[Differs::Direction]);
        let differs = there.chain(back).min_by_key(Vec::len)?;
        Some(Self { rule: &rule.name, differs })
    }
}

/// What the entry that is nearest to a pod does not fit by, of those that name its namespace.
fn nearest(
    sides: &[Side],
    party: &Party<'_>,
    [group, service_account]: [Differs; 2],
) -> Option<Vec<Differs>> {
    let of = |side: &Side| {
        let checks = [(side.has_group(party), group), (side.has_service_account(party), service_account)];
        checks.into_iter().filter_map(|(fits, differs)| (!fits).then_some(differs)).collect::<Vec<_>>()
    };
    sides.iter().filter(|side| side.has_namespace(party)).map(of).min_by_key(Vec::len)
}

/// The rule that grants these two, in this direction, and nobody else.
fn narrowest(publisher: &Party<'_>, acquirer: &Party<'_>) -> Rule {
    let side = |party: &Party<'_>| Side {
        namespaces: vec![party.namespace.clone()],
        groups: Some(vec![GroupRef {
            namespace: (!party.is_at_home()).then(|| party.group.namespace.clone()),
            name: party.group.name.clone(),
        }]),
        service_accounts: party.service_account.map(|own| vec![own.clone()]),
    };
    Rule {
        name: RuleName::for_pair(publisher, acquirer),
        publish: vec![side(publisher)],
        acquire: vec![side(acquirer)],
        both_ways: false,
    }
}
