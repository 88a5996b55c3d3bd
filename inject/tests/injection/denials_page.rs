//! `docs/denials.md` and `docs/annotations.md` and the code say the same.

use std::collections::BTreeSet;

use gpu_handoff_inject::DenialCode;
use gpu_handoff_inject::keys::Key;

const DENIALS: &str = include_str!("../../../docs/denials.md");
const ANNOTATIONS: &str = include_str!("../../../docs/annotations.md");

fn headings(page: &'static str) -> Vec<&'static str> {
    page.lines().filter_map(|line| line.strip_prefix("### ")).collect()
}

/// A heading's section: up to the next.
fn section(page: &'static str, heading: &str) -> &'static str {
    let (_, rest) = page.split_once(&format!("\n### {heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    rest.split("\n##").next().unwrap()
}

#[test]
fn the_page_has_the_codes_that_exist_in_their_order() {
    let codes: Vec<_> = DenialCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(headings(DENIALS), codes);
    for code in DenialCode::ALL {
        assert_eq!(code.anchor(), format!("docs/denials.md#{}", code.as_str().to_ascii_lowercase()));
    }
}

#[test]
fn the_table_has_a_row_for_each_code() {
    let rows: Vec<_> = DENIALS.lines().filter(|line| line.starts_with("| [`")).collect();
    assert_eq!(rows.len(), DenialCode::ALL.len());
    for (row, code) in rows.iter().zip(DenialCode::ALL) {
        let (name, anchor) = (code.as_str(), code.as_str().to_ascii_lowercase());
        assert!(row.starts_with(&format!("| [`{name}`](#{anchor}) | ")), "{row}");
    }
}

#[test]
fn every_section_says_what_it_means_what_is_compared_and_what_to_do() {
    for code in DenialCode::ALL {
        let section = section(DENIALS, code.as_str());
        for part in ["**Means:**", "**Compared:**", "**Do:**"] {
            assert!(section.contains(part), "{code} lacks {part}");
        }
        assert!(section.contains(&format!("\n    denied: {code} (")), "{code} lacks an example");
    }
}

#[test]
fn every_annotation_has_a_section_with_values_default_and_example() {
    let keys: Vec<_> = Key::ALL.iter().map(|key| key.as_str()).collect();
    assert_eq!(headings(ANNOTATIONS), keys);
    for key in keys {
        let section = section(ANNOTATIONS, key);
        let parts = if key == Key::Injected.as_str() {
            vec!["**Values:**"]
        } else {
            vec!["**Values:**", "**Default:**", "**Example:**"]
        };
        for part in parts {
            assert!(section.contains(part), "{key} lacks {part}");
        }
    }
}

#[test]
fn no_code_and_no_annotation_is_named_that_does_not_exist() {
    let codes: BTreeSet<_> = DenialCode::ALL.iter().map(|code| code.as_str()).collect();
    let named = |page: &'static str, begin: &'static str| {
        page.split(begin)
            .skip(1)
            .map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).next().unwrap())
    };
    for name in named(DENIALS, "denied: ").chain(named(ANNOTATIONS, "denials.md#")) {
        assert!(codes.contains(name.to_ascii_uppercase().as_str()), "{name}");
    }
    let known =
        |name: &str| Key::ALL.iter().any(|key| key.as_str().strip_prefix("gpu-handoff.io/") == Some(name));
    for name in named(ANNOTATIONS, "`gpu-handoff.io/") {
        assert!(name.is_empty() || name == "group-hash" || known(name), "{name}");
    }
}
