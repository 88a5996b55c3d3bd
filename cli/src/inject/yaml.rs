//! Writing JSON values as YAML that every version of YAML reads alike.
//!
//! `serde_yaml` writes for version 1.2, in which `yes` is a text; `kubectl` reads version 1.1, in which it is `true`. So
//! what could be anything else than a text is written in quotes here.

use serde_json::{Map, Value};

/// How much deeper what is inside stands.
const INDENT: usize = 2;

/// Writes one document.
pub(crate) fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(members) if !members.is_empty() => mapping(members, 0, &mut out),
        Value::Array(items) if !items.is_empty() => sequence(items, 0, &mut out),
        other => {
            out.push_str(&scalar(other, 0));
            out.push('\n');
        }
    }
    out
}

fn mapping(members: &Map<String, Value>, indent: usize, out: &mut String) {
    for (index, (name, value)) in members.iter().enumerate() {
        // The first stands behind the mark of the list that it is in.
        if index > 0 || out.ends_with('\n') {
            spaces(indent, out);
        }
        out.push_str(&text(name));
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                mapping(inner, indent + INDENT, out);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                sequence(items, indent, out);
            }
            other => {
                out.push(' ');
                out.push_str(&scalar(other, indent));
                out.push('\n');
            }
        }
    }
}

fn sequence(items: &[Value], indent: usize, out: &mut String) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 || out.ends_with('\n') {
            spaces(indent, out);
        }
        out.push_str("- ");
        match item {
            Value::Object(members) if !members.is_empty() => mapping(members, indent + INDENT, out),
            Value::Array(inner) if !inner.is_empty() => sequence(inner, indent + INDENT, out),
            other => {
                out.push_str(&scalar(other, indent));
                out.push('\n');
            }
        }
    }
}

fn spaces(count: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', count));
}

/// What is no list or object, or an empty one.
fn scalar(value: &Value, indent: usize) -> String {
    match value {
        Value::String(string) => lines(string, indent + INDENT).unwrap_or_else(|| text(string)),
        other => other.to_string(),
    }
}

/// A text of several lines as such, if it can stand so.
fn lines(text: &str, indent: usize) -> Option<String> {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let fits = body.contains('\n')
        && !body.ends_with('\n')
        && !body.starts_with([' ', '\n'])
        && text.chars().all(|c| c == '\n' || is_printable(c));
    if !fits {
        return None;
    }
    let mut out = if text.ends_with('\n') { "|".to_owned() } else { "|-".to_owned() };
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            spaces(indent, &mut out);
            out.push_str(line);
        }
    }
    Some(out)
}

/// A text on one line: bare where nobody can take it for anything else.
fn text(text: &str) -> String {
    if is_bare(text) {
        return text.to_owned();
    }
    // A text of JSON is one of YAML, but for some characters.
    let quoted = Value::from(text).to_string();
    let mut out = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        if is_printable(c) {
            out.push(c);
        } else {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        }
    }
    out
}

fn is_bare(text: &str) -> bool {
    const NOT_TEXTS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_')
        && !text.ends_with(':')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:@".contains(c))
        && !NOT_TEXTS.contains(&text.to_ascii_lowercase().as_str())
}

/// What YAML lets stand as it is.
fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::documents;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn objects_read_as_people_write_them() {
        let value = json!({
            "spec": {
                "containers": [{"name": "app", "args": ["-c", "a\n  b\n\nc\n"], "env": []}, {"name": "b", "limits": {}}],
                "nested": [[1, [2]], []],
            },
            "kind": "Pod",
        });
        let wanted = "\
kind: Pod
spec:
  containers:
  - args:
    - \"-c\"
    - |
      a
        b

      c
    env: []
    name: app
  - limits: {}
    name: b
  nested:
  - - 1
    - - 2
  - []
";
        assert_eq!(write(&value), wanted);
    }

    #[test]
    fn what_another_version_of_yaml_would_take_for_something_else_is_in_quotes() {
        for word in [
            "yes",
            "No",
            "ON",
            "off",
            "y",
            "N",
            "true",
            "null",
            "~",
            "",
            "0644",
            "1_000",
            "1:20",
            "1e3",
            "0x1f",
            ".5",
            "-1",
            "<<",
            "=",
            "2024-01-01",
            "a: b",
            "a #b",
            "#a",
            "-",
            "- a",
            "*a",
            "&a",
            "!a",
            "%a",
            "@a",
            "`a",
            "a ",
            " a",
            "a:",
            "[a]",
            "{a}",
            "'a'",
            "\"a\"",
            "|",
            ">",
            "?",
            "a\tb",
            "a\u{85}b",
            ".inf",
            "---",
        ] {
            let written = write(&json!({ "k": word }));
            assert!(written.starts_with("k: \""), "{written}");
        }
        for word in [
            "a",
            "app:1",
            "registry.example.com/a/b@sha256:0f",
            "/run/x",
            "kubernetes.io/os",
            "_x",
            "no-thing",
        ] {
            assert_eq!(write(&json!({ "k": word })), format!("k: {word}\n"));
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let texts = prop_oneof![
            any::<String>(),
            "[a-z ]{0,3}(\n[a-z #:-]{0,4}){0,4}",
            proptest::sample::select(vec!["yes", "- a", "a: b", "|", "0644", "\n", " \n", "a\n\n", "\na"])
                .prop_map(str::to_owned),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            texts.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(texts.clone(), inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_again(value in values()) {
            // A merge key in quotes is still one to the reader, and no name in Kubernetes.
            prop_assume!(!value.to_string().contains("\"<<\""));
            let written = write(&json!({ "root": value }));
            let read = documents::read(&written).unwrap();
            prop_assert_eq!(&read[0].object["root"], &value, "{}", written);
        }
    }
}
