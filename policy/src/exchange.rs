//! Who may exchange with whom. Every rule names both sides, and no side can be named but by the names of its namespaces.

use std::fmt;
use std::str::FromStr;

use gpu_handoff_protocol::{GroupKey, GroupName, IdError, Kind, Namespace, ServiceAccount};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Gap, Party, Policy, bounded, limits};

/// Pods that may publish for pods that may acquire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// What it is called; no two are called the same.
    #[serde(deserialize_with = "bounded::name")]
    pub name: RuleName,
    /// Who publishes.
    #[serde(deserialize_with = "bounded::list::<_, _, { limits::SIDES }>")]
    pub publish: Vec<Side>,
    /// Who acquires.
    #[serde(deserialize_with = "bounded::list::<_, _, { limits::SIDES }>")]
    pub acquire: Vec<Side>,
    /// Whether those who acquire may publish for those who publish as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub both_ways: bool,
}

/// Pods, by what they are called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Side {
    /// The pods' namespaces.
    #[serde(deserialize_with = "bounded::names")]
    pub namespaces: Vec<Namespace>,
    /// Their groups; absent: all groups of their own namespace.
    #[serde(default, deserialize_with = "bounded::some_names", skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<GroupRef>>,
    /// Their service accounts; absent: all.
    #[serde(default, deserialize_with = "bounded::some_names", skip_serializing_if = "Option::is_none")]
    pub service_accounts: Option<Vec<ServiceAccount>>,
}

/// A group, as a pod names its own: `name`, or `namespace/name` for one of another namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct GroupRef {
    /// The group's namespace; `None`: the pod's.
    pub namespace: Option<Namespace>,
    /// The group's name.
    pub name: GroupName,
}

impl GroupRef {
    /// Whether this is what it means when a pod of that namespace says it.
    #[must_use]
    pub fn is(&self, group: &GroupKey, pods: &Namespace) -> bool {
        self.name == group.name && *self.namespace.as_ref().unwrap_or(pods) == group.namespace
    }
}

impl FromStr for GroupRef {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Ok(match text.split_once('/') {
            Some((namespace, name)) => Self { namespace: Some(namespace.parse()?), name: name.parse()? },
            None => Self { namespace: None, name: text.parse()? },
        })
    }
}

impl From<GroupRef> for String {
    fn from(group: GroupRef) -> Self {
        match group.namespace {
            Some(namespace) => format!("{namespace}/{}", group.name),
            None => group.name.into(),
        }
    }
}

/// What a rule is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct RuleName(String);

impl RuleName {
    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name for a rule about these two.
    pub(crate) fn for_pair(publisher: &Party<'_>, acquirer: &Party<'_>) -> Self {
        let pair = [publisher, acquirer].map(|party| format!("{}-{}", party.namespace, party.group.name));
        let name = pair.join("-to-").replace('.', "-");
        Self(name.chars().take(limits::RULE_NAME_BYTES).collect())
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// No rule can be called that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a rule's name {0:?}, expected 1 to {most} letters a-z, digits and '-'", most = limits::RULE_NAME_BYTES)]
pub struct RuleNameError(String);

impl FromStr for RuleName {
    type Err = RuleNameError;

    fn from_str(text: &str) -> Result<Self, RuleNameError> {
        let is_name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if (1..=limits::RULE_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_name) {
            return Ok(Self(text.to_owned()));
        }
        Err(RuleNameError(text.chars().take(limits::RULE_NAME_BYTES).collect()))
    }
}

impl From<RuleName> for String {
    fn from(name: RuleName) -> Self {
        name.0
    }
}

/// Rules, no two of one name.
pub(crate) fn rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rule>, D::Error> {
    bounded::keyed(deserializer, limits::RULES, |rule: &Rule| Some(rule.name.to_string()))
}

impl Side {
    /// Whether a pod is meant.
    #[must_use]
    pub fn has(&self, party: &Party<'_>) -> bool {
        self.has_namespace(party) && self.has_group(party) && self.has_service_account(party)
    }

    pub(crate) fn has_namespace(&self, party: &Party<'_>) -> bool {
        self.namespaces.contains(party.namespace)
    }

    pub(crate) fn has_group(&self, party: &Party<'_>) -> bool {
        match &self.groups {
            Some(groups) => groups.iter().any(|group| group.is(party.group, party.namespace)),
            None => party.is_at_home(),
        }
    }

    pub(crate) fn has_service_account(&self, party: &Party<'_>) -> bool {
        match (&self.service_accounts, party.service_account) {
            (None, _) => true,
            (Some(named), Some(own)) => named.contains(own),
            (Some(_), None) => false,
        }
    }

    /// Whether pods are meant that are in this group of their own namespace.
    fn has_home_of(&self, group: &GroupKey) -> bool {
        self.namespaces.contains(&group.namespace)
            && self.groups.as_ref().is_none_or(|groups| groups.iter().any(|g| g.is(group, &group.namespace)))
    }
}

impl Rule {
    /// Its sides as publishers and acquirers: once, or once more the other way round.
    pub(crate) fn ways(&self) -> impl Iterator<Item = (&[Side], &[Side])> {
        let there = (&*self.publish, &*self.acquire);
        let back = self.both_ways.then_some((&*self.acquire, &*self.publish));
        [there].into_iter().chain(back)
    }

    fn grants(&self, publisher: &Party<'_>, acquirer: &Party<'_>) -> bool {
        self.ways().any(|(publish, acquire)| any(publish, publisher) && any(acquire, acquirer))
    }

    /// Whether it names a pod on one side and pods that are at home in its group on the other.
    fn invites(&self, guest: &Party<'_>) -> bool {
        let hosts = |sides: &[Side]| sides.iter().any(|side| side.has_home_of(guest.group));
        any(&self.publish, guest) && hosts(&self.acquire) || any(&self.acquire, guest) && hosts(&self.publish)
    }
}

fn any(sides: &[Side], party: &Party<'_>) -> bool {
    sides.iter().any(|side| side.has(party))
}

/// Whether a pod may acquire what another publishes, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange<'a> {
    /// They are of one namespace and group.
    SameGroup,
    /// A rule grants it.
    Rule(&'a Rule),
    /// Nothing does.
    Denied(Gap<'a>),
}

impl Policy {
    /// Whether a pod may know of, and acquire, what another publishes.
    #[must_use]
    pub fn may_exchange(&self, publisher: &Party<'_>, acquirer: &Party<'_>) -> bool {
        is_same_group(publisher, acquirer) || self.granting_rule(publisher, acquirer).is_some()
    }

    /// The same of a buffer of this kind: legacy handles stay within a namespace.
    #[must_use]
    pub fn may_acquire(&self, publisher: &Party<'_>, acquirer: &Party<'_>, kind: Kind) -> bool {
        let is_carried = kind != Kind::Legacy || publisher.namespace == acquirer.namespace;
        is_carried && self.may_exchange(publisher, acquirer)
    }

    /// Whether a pod may acquire what another publishes, and why.
    #[must_use]
    pub fn exchange<'a>(&'a self, publisher: &Party<'_>, acquirer: &Party<'_>) -> Exchange<'a> {
        if is_same_group(publisher, acquirer) {
            return Exchange::SameGroup;
        }
        match self.granting_rule(publisher, acquirer) {
            Some(rule) => Exchange::Rule(rule),
            None => Exchange::Denied(Gap::between(&self.exchange, publisher, acquirer)),
        }
    }

    /// Whether a pod may be in its group: everybody in one of their own namespace, others where a rule names them together
    /// with those who are at home there.
    #[must_use]
    pub fn is_invited(&self, party: &Party<'_>) -> bool {
        party.is_at_home() || self.exchange.iter().any(|rule| rule.invites(party))
    }

    fn granting_rule(&self, publisher: &Party<'_>, acquirer: &Party<'_>) -> Option<&Rule> {
        self.exchange.iter().find(|rule| rule.grants(publisher, acquirer))
    }
}

/// One of them may be a guest there: whether it may be in the group at all is decided before.
fn is_same_group(one: &Party<'_>, other: &Party<'_>) -> bool {
    one.namespace == other.namespace && one.group == other.group
}
