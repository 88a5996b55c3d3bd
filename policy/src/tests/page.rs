//! `docs/policy.md` and the code say the same.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{Policy, limits};

const PAGE: &str = include_str!("../../../docs/policy.md");

/// The blocks of the page that begin so, each with what comes after it.
fn blocks(begin: &'static str) -> Vec<(&'static str, &'static str)> {
    let blocks: Vec<_> = PAGE.split(begin).skip(1).map(|rest| rest.split_once("```").unwrap()).collect();
    assert!(!blocks.is_empty(), "{begin}");
    blocks
}

/// All keys of a value, with what stands for a name that anybody may choose.
fn keys(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = match path {
                    "namespaces" => "NAMESPACE",
                    path if path.ends_with(".groups") && path.starts_with("namespaces") => "GROUP",
                    path if path.ends_with("quota") && path.starts_with("namespaces") => "KEY",
                    _ => key,
                };
                keys(value, format!("{path}.{key}").trim_start_matches('.'), into);
            }
        }
        Value::Array(entries) if entries.iter().all(Value::is_object) => {
            entries.iter().for_each(|entry| keys(entry, &format!("{path}[]"), into));
        }
        _ => drop(into.insert(path.to_owned())),
    }
}

/// The table's keys with their defaults.
fn rows() -> BTreeMap<&'static str, &'static str> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (key, rest) = row.split_once("` | ").unwrap();
        (key, rest.split(" |").next().unwrap().trim())
    })
    .collect()
}

fn largest() -> Policy {
    let (text, _) = blocks("```yaml\n").into_iter().max_by_key(|(text, _)| text.len()).unwrap();
    Policy::read(text).unwrap()
}

#[test]
fn every_example_is_a_policy() {
    for (text, _) in blocks("```yaml\n") {
        Policy::read(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

#[test]
fn what_is_shown_as_refused_is_refused_in_these_words() {
    for (text, after) in blocks("```yaml refused\n") {
        assert_eq!(Policy::read(text).unwrap_err().to_string(), after.trim().lines().next().unwrap().trim());
    }
}

#[test]
fn the_table_has_the_keys_that_there_are() {
    // Every field of a value with all of them: one that was forgotten in the example is missing here by its type.
    let policy = largest();
    let namespace = policy.namespaces.values().next().unwrap();
    let (mut found, filled) = (BTreeSet::new(), serde_json::to_value(&policy).unwrap());
    keys(&filled, "", &mut found);
    let all = format!("{namespace:?}");
    assert!(!all.contains("None"), "the example has not all keys: {all}");
    let mut sides = policy.exchange.iter().flat_map(|rule| [&rule.publish, &rule.acquire]).flatten();
    assert!(sides.all(|side| side.groups.is_some() && side.service_accounts.is_some()));
    assert!(policy.version.is_some());
    assert_eq!(found, rows().into_keys().map(str::to_owned).collect());
}

#[test]
fn the_defaults_are_the_codes() {
    let mut written = String::from("version: gpu-handoff.io/v1\n");
    let mut policy = Policy::default();
    for (key, default) in rows() {
        let Some(value) = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else { continue };
        match key.split_once('.') {
            None => written += &format!("{key}: {value}\n"),
            Some((quota, limit)) if quota.ends_with("quota") => {
                // Each alone against the default that it is.
                let text = format!("version: gpu-handoff.io/v1\n{quota}: {{{limit}: {value}}}\n");
                let read = Policy::read(&text).unwrap();
                assert_eq!((read.quota, read.group_quota), (policy.quota, policy.group_quota), "{key}");
            }
            Some(("shm", limit)) => {
                let text = format!("version: gpu-handoff.io/v1\nshm: {{{limit}: {value}}}\n");
                assert_eq!(Policy::read(&text).unwrap().shm, policy.shm, "{key}");
            }
            Some(_) => assert_eq!((key, value), ("exchange[].both-ways", "false")),
        }
    }
    let read = Policy::read(&written).unwrap();
    policy.version = read.version;
    assert_eq!(read, policy);
}

#[test]
fn the_limits_are_the_codes() {
    let words = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    let limit = format!(
        "at most {} KiB, brackets are nested at most {} deep, there are at most {} rules with {} entries a side and {} \
         names in each list, at most 1,000 blanks in a row, and at most 4,096 namespaces",
        limits::TEXT_BYTES >> 10,
        limits::BRACKETS,
        limits::RULES,
        limits::SIDES,
        limits::NAMES
    );
    assert!(words.contains(&limit), "{limit}");
    assert_eq!((limits::BLANKS, limits::TERMS), (1_000, 4_096));
}
