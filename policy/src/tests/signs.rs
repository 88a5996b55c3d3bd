//! What is found before a text is read, against what its reader finds.

use proptest::prelude::*;
use serde_yaml::Value;

use crate::{Place, Sign, signs};

/// Most brackets that are open at a time, and how many are opened.
fn brackets(text: &str) -> (usize, usize) {
    let open =
        signs(text).filter_map(|(_, sign)| if let Sign::Open(open) = sign { Some(open) } else { None });
    open.fold((0, 0), |(most, count), open| (most.max(open), count + 1))
}

fn opening(text: &str) -> usize {
    text.matches(['[', '{']).count()
}

/// What a value has, as its reader gives it out.
#[derive(Debug, Default)]
struct Found {
    lists_and_maps: usize,
    depth: usize,
    in_texts: usize,
}

impl Found {
    fn of(value: &Value) -> Self {
        let mut found = Self::default();
        found.add(value, 0);
        found
    }

    fn add(&mut self, value: &Value, depth: usize) {
        self.depth = self.depth.max(depth);
        match value {
            Value::String(text) => self.in_texts += opening(text),
            Value::Sequence(items) => {
                self.lists_and_maps += 1;
                items.iter().for_each(|item| self.count(item, depth));
            }
            Value::Mapping(members) => {
                self.lists_and_maps += 1;
                for (key, value) in members {
                    self.count(key, depth);
                    self.count(value, depth);
                }
            }
            _ => {}
        }
        if matches!(value, Value::Sequence(_) | Value::Mapping(_)) {
            self.depth = self.depth.max(depth + 1);
        }
    }

    fn count(&mut self, value: &Value, depth: usize) {
        self.add(value, depth + 1);
    }
}

/// A text of these pieces.
fn text(pieces: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(pieces), 0..most).prop_map(|pieces| pieces.concat())
}

const SIGNS: &[&str] = &["[", "]", "{", "}", "\"", "'", ",", ":", "-", "|", ">", " ", "\n", "\r", "a"];
const BLOCKS: &[&str] = &[
    "a: ", "b: ", "- ", "? ", "\n", "\n ", "\n  ", "\n   ", "|\n", ">1\n", "|2-\n  ", "[", "]", "{}", "[]",
    "'", "\"", "a", "[ a", " ", "''", "\\", "#", "\u{85}", "\u{2028}", "---\n", "...\n", ": ",
];
const FLOWS: &[&str] =
    &["[", "]", "[", "]", "{", "}", ",", "a", "'", "\"", "''", " ", "\n", "#", "# ]\n", "\"]\"", "a#"];

/// What is read has as many brackets as are found in it; those in its texts are none, and those in comments.
fn as_read(text: &str) -> Result<(), TestCaseError> {
    if let Ok(value) = serde_yaml::from_str::<Value>(text) {
        let (found, (most, count)) = (Found::of(&value), brackets(text));
        prop_assert!(most <= found.depth && count <= found.lists_and_maps, "{most} {count} {found:?}");
        let all = opening(text) - found.in_texts;
        prop_assert!(if text.contains('#') { count <= all } else { count == all }, "{count} {all} {found:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn brackets_are_found_as_they_are_read(text in text(SIGNS, 10)) {
        as_read(&text)?;
    }

    #[test]
    fn in_blocks_too(text in text(BLOCKS, 12)) {
        as_read(&text)?;
    }

    /// Where all is within brackets and nothing has a colon, each of them is a level.
    #[test]
    fn depth_is_found_as_it_is_read(text in text(FLOWS, 12)) {
        let text = format!("[{text}\n]");
        if let Ok(value) = serde_yaml::from_str::<Value>(&text) {
            prop_assert_eq!(brackets(&text).0, Found::of(&value).depth);
        }
    }
}

#[test]
fn what_closes_elsewhere_closes_nothing() {
    let n = 50;
    for (row, end) in
        [("[#]\n", "]"), ("{#}\n a: ", "}"), ("[\"]\",", "]"), ("[']}',", "]"), ("[\"\\\"]\",", "]")]
    {
        let text = row.repeat(n);
        assert_eq!(brackets(&text).0, n, "{row}");
        let closed = format!("{text}\n{}", end.repeat(n));
        assert_eq!(
            serde_yaml::from_str::<Value>(&closed).map(|value| Found::of(&value).depth).unwrap(),
            n,
            "{row}"
        );
    }
}

#[test]
fn texts_have_brackets_that_are_none() {
    let words = "\\e[31mword {[ ".repeat(500);
    for text in [
        format!("a: |\n  {words}\nb: []\n"),
        format!("a: >-\n\n    {words}\n   # {words}\nb: []\n"),
        format!("a:\n- |2\n    {words}\n- []\n"),
        format!("a: \"{}\"\nb: []\n", words.replace('\\', "\\\\")),
        format!("a: '{words}''{words}'\nb: []\n"),
        format!("a: x{words}\n  {words}\nb: []\n"),
        format!("? x{words}\n  {words}\n: []\n"),
        format!("# {words}\na: [] # {words}\n"),
        // What a block ends with, and what is no key any more.
        " - |\n - []\n".to_owned(),
        format!("? a\n: b\n  {words}\nc: []\n"),
    ] {
        assert!(serde_yaml::from_str::<Value>(&text).is_ok(), "{text}");
        assert_eq!(brackets(&text), (1, 1), "{text}");
    }
}

#[test]
fn other_signs_are_found_where_they_are_some() {
    let found =
        |text: &str| signs(text).map(|(place, sign)| (place.line, place.column, sign)).collect::<Vec<_>>();
    assert_eq!(
        found("a: &b x\nc: [*b, !d e, !<[> f] # &\n"),
        [
            (1, 4, Sign::Anchor),
            (2, 4, Sign::Open(1)),
            (2, 5, Sign::Alias),
            (2, 9, Sign::Tag),
            (2, 15, Sign::Tag)
        ]
    );
    assert_eq!(found("a: \"&b *c !d\n%e\" # ü\nf: x&y*z!\n  %g\ng: |\n  &h\n"), []);
    for end in ["\n", "\r", "\r\n", "\u{85}", "\u{2028}", "\u{2029}"] {
        assert_eq!(
            signs(&format!("# a{end}%TAG !b! c{end}")).collect::<Vec<_>>(),
            [(Place { line: 2, column: 1 }, Sign::Directive)]
        );
    }
}
