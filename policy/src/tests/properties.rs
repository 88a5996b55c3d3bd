//! What holds of every policy.

use std::collections::BTreeSet;

use gpu_handoff_protocol::Kind;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Pod, facts};
use crate::{Held, Policy, Usage};

const NAMESPACES: [&str; 4] = ["a", "b", "c", "d"];
const GROUPS: [&str; 5] = ["g", "h", "a/g", "b/g", "c/h"];
const ACCOUNTS: [&str; 2] = ["x", "y"];

fn some_of(names: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(names.to_vec(), 1..=names.len())
}

fn side() -> impl Strategy<Value = Value> {
    let groups = proptest::option::of(some_of(&GROUPS));
    let accounts = proptest::option::of(some_of(&ACCOUNTS));
    (some_of(&NAMESPACES[..3]), groups, accounts).prop_map(|(namespaces, groups, accounts)| {
        let mut side = json!({ "namespaces": namespaces });
        let mut add = |key: &str, names: Option<Vec<&str>>| {
            if let Some(names) = names {
                side[key] = json!(names);
            }
        };
        add("groups", groups);
        add("service-accounts", accounts);
        side
    })
}

fn rules() -> impl Strategy<Value = Vec<Value>> {
    let sides = || proptest::collection::vec(side(), 1..3);
    let rules = proptest::collection::vec((sides(), sides(), any::<bool>()), 0..4);
    rules.prop_map(|rules| {
        let rules = rules.into_iter().enumerate();
        rules
            .map(|(n, (publish, acquire, both))| {
                json!({"name": format!("r{n}"), "publish": publish, "acquire": acquire, "both-ways": both})
            })
            .collect()
    })
}

fn pod() -> impl Strategy<Value = Pod> {
    let account = proptest::option::of(proptest::sample::select(&ACCOUNTS[..]));
    let names = (proptest::sample::select(&NAMESPACES[..]), proptest::sample::select(&GROUPS[..]), account);
    names.prop_map(|(namespace, group, account)| {
        Pod::new(&format!("{namespace} {group} {}", account.unwrap_or_default()))
    })
}

fn read(rules: &[Value]) -> Policy {
    let text =
        json!({"version": "gpu-handoff.io/v1", "exchange": rules, "legacy": "within-namespace"}).to_string();
    Policy::read(&text).unwrap()
}

/// What stands in a list of sides under `namespaces`, however it is matched.
fn named(sides: &Value) -> BTreeSet<&str> {
    let sides = sides.as_array().unwrap().iter();
    sides.flat_map(|side| side["namespaces"].as_array().unwrap()).map(|name| name.as_str().unwrap()).collect()
}

fn usage() -> impl Strategy<Value = Usage> {
    (0_u64..40, 0_u64..40, 0_u64..40, 0_u64..40).prop_map(|(buffers, bytes, leases, descriptors)| Usage {
        buffers,
        bytes,
        leases,
        descriptors,
        pod_lifetime_bytes: 0,
    })
}

fn plus(one: Usage, other: Usage) -> Usage {
    Usage {
        buffers: one.buffers + other.buffers,
        bytes: one.bytes + other.bytes,
        leases: one.leases + other.leases,
        descriptors: one.descriptors + other.descriptors,
        pod_lifetime_bytes: 0,
    }
}

/// Limits of a pod, of its namespace and of its group, each of which may be left to the one before.
fn limits(key: &str, [all, namespace, group]: [Usage; 3], has: [bool; 3]) -> Policy {
    let limits = |usage: Usage| json!({"buffers": usage.buffers, "bytes": usage.bytes, "leases": usage.leases, "descriptors": usage.descriptors});
    let of = |has: bool, usage| if has { json!({ key: limits(usage) }) } else { json!({}) };
    let mut text = of(has[0], all);
    text["version"] = json!("gpu-handoff.io/v1");
    text["namespaces"] = json!({ "a": of(has[1], namespace) });
    text["namespaces"]["a"]["groups"] = json!({ "g": of(has[2], group) });
    Policy::read(&text.to_string()).unwrap()
}

fn outcomes(policy: &Policy, pod: &Pod, held: &Held) -> [bool; 3] {
    let party = pod.party();
    [
        policy.may_publish(&party, held, &facts(Kind::Vmm)).is_ok(),
        policy.may_hold(&party, held, 3).is_ok(),
        policy.may_lease(&party, held, 2).is_ok(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What grants two pods something is that they are of one namespace and group, or a rule whose text has both of their
    /// namespaces, each on its side.
    #[test]
    fn nothing_is_granted_to_namespaces_that_are_not_named_on_both_sides(rules in rules(), one in pod(), other in pod()) {
        let granted = read(&rules).may_exchange(&one.party(), &other.party());
        let is_named = rules.iter().any(|rule| {
            let (publish, acquire) = (named(&rule["publish"]), named(&rule["acquire"]));
            let has = |publish: &BTreeSet<&str>, acquire: &BTreeSet<&str>| {
                publish.contains(one.namespace.as_str()) && acquire.contains(other.namespace.as_str())
            };
            has(&publish, &acquire) || rule["both-ways"] == true && has(&acquire, &publish)
        });
        let same = one.namespace == other.namespace && one.group == other.group;
        prop_assert!(!granted || same || is_named);
        prop_assert!(granted || !same);
        if rules.is_empty() {
            prop_assert_eq!(granted, same);
        }
    }

    /// A rule that is written the other way round grants the other way round, and the order in which anything stands is of
    /// no matter.
    #[test]
    fn sides_are_named_alike(rules in rules(), one in pod(), other in pod()) {
        let mut turned = rules.clone();
        for rule in &mut turned {
            let (publish, acquire) = (rule["publish"].take(), rule["acquire"].take());
            let reversed = |sides: Value| Value::Array(sides.as_array().unwrap().iter().rev().cloned().collect());
            (rule["publish"], rule["acquire"]) = (reversed(acquire), reversed(publish));
        }
        turned.reverse();
        let (there, back) = (read(&rules), read(&turned));
        let (one, other) = (one.party(), other.party());
        prop_assert_eq!(there.may_exchange(&one, &other), back.may_exchange(&other, &one));
        prop_assert_eq!(there.is_invited(&one), back.is_invited(&one));
        for rule in turned.iter_mut() {
            rule["both-ways"] = json!(true);
        }
        let both = read(&turned);
        prop_assert_eq!(both.may_exchange(&one, &other), both.may_exchange(&other, &one));
    }

    /// More rules never take anything away, and what is said to be missing is enough.
    #[test]
    fn a_rule_only_grants(rules in rules(), one in pod(), other in pod()) {
        let policy = read(&rules);
        let (one, other) = (one.party(), other.party());
        for few in 0..rules.len() {
            prop_assert!(!read(&rules[..few]).may_exchange(&one, &other) || policy.may_exchange(&one, &other));
        }
        match policy.exchange(&one, &other) {
            crate::Exchange::Denied(gap) => {
                prop_assert!(!policy.may_exchange(&one, &other));
                let rule = serde_json::to_value(&gap.rule).unwrap();
                prop_assert!(read(&[rule]).may_exchange(&one, &other));
            }
            crate::Exchange::SameGroup | crate::Exchange::Rule(_) => prop_assert!(policy.may_exchange(&one, &other)),
        }
    }

    /// A larger quota, or less that is held, never refuses what was granted.
    #[test]
    fn quotas_are_monotone(
        key in proptest::sample::select(&["quota", "group-quota"][..]), quotas in [usage(), usage(), usage()],
        more in usage(), held in usage(), in_addition in usage(), has in any::<[bool; 3]>(),
    ) {
        let pod = Pod::new("a g");
        let both = |usage: Usage| Held { pod: usage, group: usage };
        let (less, all) = (both(held), both(plus(held, in_addition)));
        let (small, large) = (limits(key, quotas, has), limits(key, quotas.map(|quota| plus(quota, more)), has));
        for ((small_all, small_less), large_all) in outcomes(&small, &pod, &all).into_iter()
            .zip(outcomes(&small, &pod, &less)).zip(outcomes(&large, &pod, &all))
        {
            prop_assert!(!small_all || small_less);
            prop_assert!(!small_all || large_all);
        }
    }
}
