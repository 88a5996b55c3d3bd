//! `docs/refusals.md` and the code say the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::collections::BTreeSet;

use gpu_handoff_protocol::Code;

const PAGE: &str = include_str!("../../docs/refusals.md");

/// What a heading's anchor is on a rendered page: lower case, blanks as hyphens, other signs but `_` dropped.
fn anchor(heading: &str) -> String {
    heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ' '))
        .map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
        .collect()
}

fn headings() -> Vec<&'static str> {
    PAGE.lines().filter_map(|l| l.strip_prefix("### ")).map(str::trim).collect()
}

/// A code's section: from its heading to the next.
fn section(code: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("\n### {code}\n")).expect("a section");
    rest.split("\n## ").next().unwrap().split("\n### ").next().unwrap()
}

#[test]
fn the_page_has_the_codes_that_exist_and_no_other() {
    let known: BTreeSet<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
    let explained: BTreeSet<&str> = headings().into_iter().collect();
    assert_eq!(explained, known);
    assert_eq!(headings().len(), known.len(), "a code has two sections");
}

#[test]
fn every_anchor_leads_to_its_heading() {
    for (code, heading) in Code::ALL.iter().zip(headings()) {
        assert_eq!(heading, code.as_str(), "the sections are in order of number");
        assert_eq!(code.anchor(), format!("docs/refusals.md#{}", anchor(heading)));
    }
}

#[test]
fn the_table_has_a_row_for_each_code_with_its_number() {
    let rows: Vec<&str> =
        PAGE.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| number")).collect();
    assert_eq!(rows.len(), Code::ALL.len());
    for (row, code) in rows.iter().zip(Code::ALL) {
        let name = code.as_str();
        let begin = format!("| {} | [`{name}`](#{}) | ", code.number(), anchor(name));
        assert!(row.starts_with(&begin), "{row}\nlacks\n{begin}");
    }
}

#[test]
fn every_section_says_what_it_means_what_is_compared_and_what_to_do() {
    for code in Code::ALL {
        let section = section(code.as_str());
        for part in ["**Means:**", "**Compared:**", "**Do:**"] {
            assert!(section.contains(part), "{code} lacks {part}");
        }
        let example = section.lines().find_map(|l| l.strip_prefix("    refused: "));
        let example = example.unwrap_or_else(|| panic!("{code} lacks an example"));
        assert!(example == code.as_str() || example.starts_with(&format!("{code} (")), "{example}");
    }
}

#[test]
fn no_code_is_named_that_does_not_exist() {
    let known: BTreeSet<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
    for line in PAGE.lines().filter_map(|l| l.split("refused: ").nth(1)) {
        let name = line.split([' ', ';', '(']).next().unwrap();
        assert!(known.contains(name), "{name}");
    }
    for target in PAGE.split("](#").skip(1) {
        let target = target.split(')').next().unwrap();
        assert!(known.iter().any(|name| anchor(name) == target), "{target}");
    }
}
