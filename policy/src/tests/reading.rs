//! What is a policy, what is none, and where the text says so.

use std::time::{Duration, Instant};

use crate::{GrantedKind, LegacyRule, Orphans, Policy, Profile, limits};

const V1: &str = "version: gpu-handoff.io/v1\n";

/// What is wrong with a text after its version, which is its first line.
fn refused(text: &str) -> String {
    Policy::read(&format!("{V1}{text}")).unwrap_err().to_string()
}

#[test]
fn a_version_is_a_policy_and_changes_nothing_else() {
    let mut policy = Policy::read(V1).unwrap();
    policy.version = None;
    assert_eq!(policy, Policy::default());
    let json = r#"{"version": "gpu-handoff.io/v1", "legacy": "within-namespace", "quota": {"buffers": 3}}"#;
    assert_eq!(Policy::read(json).unwrap().quota.buffers, 3);
}

#[test]
fn without_its_version_or_with_another_it_is_none() {
    for (text, wrong) in [
        ("", "line 1 column 1: version: missing, expected `version: gpu-handoff.io/v1`"),
        ("legacy: deny\n", "line 1 column 1: version: missing, expected `version: gpu-handoff.io/v1`"),
        (
            "version: gpu-handoff.io/v2\n",
            "line 1 column 10: version: unknown variant `gpu-handoff.io/v2`, expected `gpu-handoff.io/v1`",
        ),
    ] {
        assert_eq!(Policy::read(text).unwrap_err().to_string(), wrong);
    }
}

#[test]
fn every_value_is_read() {
    let policy = super::policy(
        "legacy: within-namespace\nkinds: [vmm]\nprofiles: [torch, client]\npod-lifetime-bytes: 2Gi\n\
         retire-deadline: 1500ms\norphans: kill\nquota: {bytes: 1Ti}\nnamespaces: {ml: {groups: {g: {quota: {leases: 0}}}}}\n",
    );
    assert_eq!(policy.legacy, LegacyRule::WithinNamespace);
    assert!(policy.kinds.iter().eq([&GrantedKind::Vmm]));
    assert!(policy.profiles.iter().eq([&Profile::Client, &Profile::Torch]));
    assert_eq!((policy.pod_lifetime_bytes, policy.quota.bytes), (2 << 30, 1 << 40));
    assert_eq!((policy.retire_deadline, policy.orphans), (Duration::from_millis(1_500), Orphans::Kill));
    let json = serde_json::to_string(&policy).unwrap();
    assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy, "as node and broker tell each other");
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_its_key() {
    for (text, wrong) in [
        ("- a\n", "line 2 column 1: did not find expected key, while parsing a block mapping"),
        ("legcy: deny\n", "line 2 column 1: unknown field `legcy`, expected one of `version`, `legacy`,"),
        ("version: gpu-handoff.io/v1\n", "line 1 column 1: duplicate field `version`"),
        (
            "quota:\n  buffers: -1\n",
            "line 3 column 12: quota.buffers: invalid type: integer `-1`, expected a whole number, 0 or more",
        ),
        (
            "quota:\n  buffers:\n",
            "line 3 column 11: quota.buffers: invalid type: unit value, expected a whole",
        ),
        (
            "quota:\n  bytes: 80GB\n",
            "line 3 column 10: quota.bytes: invalid value: string \"80GB\", expected bytes",
        ),
        ("quota:\n  bytes: 99999999999Ti\n", "line 3 column 10: quota.bytes: invalid value"),
        (
            "retire-deadline: 30\n",
            "line 2 column 18: retire-deadline: invalid value: string \"30\", expected a time",
        ),
        (
            "shm: {node-share: 25}\n",
            "line 2 column 19: shm.node-share: invalid value: string \"25\", expected a share such as 25%",
        ),
        ("shm: {node-share: 101%}\n", "line 2 column 19: shm.node-share: invalid value"),
        (
            "shm: {per-group: 1E}\n",
            "line 2 column 18: shm.per-group: invalid value: string \"1E\", expected bytes",
        ),
        (
            "namespaces: {ml: {shm: {size: 1Gi}}}\n",
            "line 2 column 25: namespaces.ml.shm: unknown field `size`",
        ),
        ("retire-deadline: 2h\n", "line 2 column 18: retire-deadline: invalid value"),
        ("profiles: [client, client]\n", "line 2 column 11: profiles: client stands twice"),
        ("kinds: [vmm, legacy]\n", "line 2 column 14: kinds[1]: unknown variant `legacy`, expected `vmm` or"),
        (
            "namespaces:\n  ml:\n    quota: {bufers: 3}\n",
            "line 4 column 13: namespaces.ml.quota: unknown field `bufers`, expected one of `buffers`,",
        ),
        ("namespaces:\n  ml: {}\n  ml: {}\n", "line 4 column 3: namespaces: ml stands twice"),
        ("namespaces:\n  ML: {}\n", "line 3 column 3: namespaces: namespace contains 'M', allowed are a-z,"),
        ("namespaces:\n  ml:\n    legacy:\n", "line 4 column 12: namespaces.ml.legacy: unknown variant ``"),
        (
            "group-quota: {requests: 3}\n",
            "line 2 column 15: group-quota: unknown field `requests`, expected one of",
        ),
    ] {
        let found = refused(text);
        assert!(found.starts_with(wrong), "{text}\n{found}");
    }
}

#[test]
fn so_is_what_is_wrong_with_a_rule() {
    let rule = |rest: &str| format!("exchange:\n  - name: a\n{rest}");
    let (publish, acquire) = ("    publish: [{namespaces: [a]}]\n", "    acquire: [{namespaces: [b]}]\n");
    for (text, wrong) in [
        (rule(publish), "line 3 column 5: exchange[0]: missing field `acquire`"),
        (
            rule(&format!("{publish}    acquire: []\n")),
            "line 5 column 14: exchange[0].acquire: invalid length 0, expected a list of 1 to 16 entries",
        ),
        (
            rule(&format!("{publish}    acquire: [{{groups: [x]}}]\n")),
            "line 5 column 15: exchange[0].acquire[0]: missing field `namespaces`",
        ),
        (
            rule("    publish: [{namespaces: [a], groups: [a/b/c]}]\n"),
            "line 4 column 42: exchange[0].publish[0].groups[0]: group name contains '/'",
        ),
        (
            rule("    publish: [{namespaces: [\"*\"]}]\n"),
            "line 4 column 30: `*`: a policy takes neither patterns nor aliases, each name has to be written",
        ),
        (
            format!("exchange:\n  - name: A b\n{publish}{acquire}"),
            "line 3 column 11: exchange[0].name: a rule's name \"A b\", expected 1 to 63 letters",
        ),
        (
            format!("{}  - name: a\n{publish}{acquire}", rule(&format!("{publish}{acquire}"))),
            "line 3 column 3: exchange: a stands twice",
        ),
    ] {
        let found = refused(&text);
        assert!(found.starts_with(wrong), "{text}\n{found}");
    }
}

#[test]
fn what_yaml_has_beside_is_not_taken() {
    for (text, wrong) in [
        ("quota: &a {}\n", "line 2 column 8: `&`: a policy takes neither anchors nor tags"),
        ("quota: !mine {}\n", "line 2 column 8: `!`: a policy takes neither anchors nor tags"),
        (
            "namespaces: {a: {}}\n---\nlegacy: deny\n",
            "line 3 column 1: a second document, expected a policy alone",
        ),
        ("%TAG !a! b\n", "line 2 column 1: a directive of YAML"),
        (
            "# one\rlegacy: within-namespace\n",
            "line 2 column 6: '\\r', expected lines that end with a line feed",
        ),
        ("# one\u{2028}legacy: within-namespace\n", "line 2 column 6: '\\u{2028}'"),
        ("<<: {legacy: deny}\n", "line 2 column 1: unknown field `<<`"),
    ] {
        let found = refused(text);
        assert!(found.starts_with(wrong), "{text}\n{found}");
    }
    let commented = "# &, *, ! and [[[ mean nothing here\nlegacy: deny # nor * here\r\n";
    assert_eq!(super::policy(commented), super::policy(""));
    assert!(Policy::read(&format!("---\n{V1}")).is_ok());
    assert!(Policy::read(&format!("\u{feff}{V1}")).is_ok());
}

#[test]
fn what_is_no_text_is_no_policy_and_its_place_is_told() {
    let read = |rest: &[u8]| Policy::read(&[V1.as_bytes(), rest].concat()).map_err(|e| e.to_string());
    // In a comment, too; in characters, as elsewhere; without the mark before the text.
    let wrong = "line 3 column 4: a byte that is no UTF-8".to_owned();
    assert_eq!(read(b"legacy: deny\n# \xc3\xbc\xff"), Err(wrong.clone()));
    assert_eq!(read(b"\n\xe2\x82"), Err("line 3 column 1: a byte that is no UTF-8".to_owned()));
    let marked = Policy::read(b"\xef\xbb\xbf\n\n#  \xff").unwrap_err();
    assert_eq!(marked.to_string(), wrong);
    assert!(read("# \u{fc}ber\n".as_bytes()).is_ok());
}

#[test]
fn texts_lists_maps_and_depth_have_limits() {
    let long = " ".repeat(limits::TEXT_BYTES);
    assert_eq!(
        refused(&long),
        format!("{} bytes, expected at most {}", long.len() + V1.len(), limits::TEXT_BYTES)
    );
    let deep = format!("quota: {}", "[".repeat(limits::BRACKETS + 1));
    assert_eq!(refused(&deep), "line 2 column 40: brackets within brackets, expected at most 32");
    let row = refused(&format!("legacy: \"{}", " ".repeat(limits::BLANKS + 1)));
    assert_eq!(row, "line 2 column 1010: blanks in a row, expected at most 1000");
    let terms = |count| (0..count).map(|n| format!("  n{n}: {{}}\n")).collect::<String>();
    assert_eq!(
        super::policy(&format!("namespaces:\n{}", terms(limits::TERMS))).namespaces.len(),
        limits::TERMS
    );
    let found = refused(&format!("namespaces:\n{}", terms(limits::TERMS + 1)));
    assert_eq!(found, "line 4099 column 3: namespaces: a map of more than 4096 entries");
    let rule = |n: usize, names: usize, sides: usize| {
        let side = format!("{{namespaces: [{}]}}", vec!["a"; names].join(", "));
        format!(
            "  - {{name: r{n}, publish: [{side}], acquire: [{}]}}\n",
            vec![side.as_str(); sides].join(", ")
        )
    };
    let rules = |count| (0..count).map(|n| rule(n, 1, 1)).collect::<String>();
    assert_eq!(super::policy(&format!("exchange:\n{}", rules(limits::RULES))).exchange.len(), limits::RULES);
    for text in [rules(limits::RULES + 1), rule(0, limits::NAMES + 1, 1), rule(0, 1, limits::SIDES + 1)] {
        let found = refused(&format!("exchange:\n{text}"));
        assert!(found.contains("invalid length"), "{found}");
    }
}

#[test]
fn a_hostile_text_takes_no_time() {
    let n = limits::TEXT_BYTES - 100;
    let bomb: String = ('b'..='z').zip('a'..).map(|(n, o)| format!("{n}: &{n} [*{o},*{o},*{o}]\n")).collect();
    for text in [
        "[".repeat(n),
        "- ".repeat(n / 2),
        "? ".repeat(n / 2),
        format!("legacy: [{}", "[],".repeat(n / 3)),
        "a: ".repeat(n / 3),
        format!("x: [&a y{}]", ",*a".repeat(n / 4)),
        format!("x: {{{}", "a,".repeat(n / 2)),
        (0..n / 20).map(|i| format!("%TAG !a{i}! x\n")).collect(),
        (0..n / 20).map(|i| format!("\r%TAG !a{i}! x")).collect(),
        "\t".repeat(n),
        format!("legacy: {}", "x\n ".repeat(n / 3)),
        format!("a: &a [x]\n{bomb}"),
        format!("legacy: {}", "[\"]\",".repeat(n / 5)),
        format!("legacy: {}", "{#}\n a: ".repeat(n / 8)),
        format!("legacy: \"{}{}\"", " ".repeat(n / 2), " a".repeat(n / 4)),
        format!("legacy: a{}{}", "\n".repeat(n / 2), "\n\n a".repeat(n / 8)),
        format!("legacy: |\n{}{}", "\n".repeat(n / 2), "\n a\n".repeat(n / 8)),
    ] {
        let begin = Instant::now();
        assert!(Policy::read(&format!("{V1}{text}")).is_err());
        // They take a second at most, and those that are not looked for here took a minute.
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}: {text:.20}", begin.elapsed());
    }
}
