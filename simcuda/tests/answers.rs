//! The library gives the answers that a real driver gave to the same program, `probes/answers.cu`, and that `measured` lists.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use gpu_handoff_simcuda::measured::{ANSWERS, Source};

/// What the program printed on an H200 with driver 580.159.04, one answer a line; `died` where the driver took it down.
const REAL: &str = include_str!("answers-h200.txt");

fn real() -> impl Iterator<Item = (&'static str, &'static str)> {
    REAL.lines().map(|line| line.split_once(' ').unwrap())
}

/// The row of the table that a case asks for: the part of its name before the slash. Other names are statements, true or not.
fn row(case: &str) -> Option<&'static gpu_handoff_simcuda::measured::Answer> {
    let name = case.split('/').next().unwrap();
    ANSWERS.iter().find(|answer| answer.name == name)
}

#[test]
fn the_table_says_what_was_measured() {
    for (case, answer) in real() {
        let Some(row) = row(case) else {
            assert!(matches!(answer, "0" | "1"), "{case} is neither a row nor a statement");
            continue;
        };
        assert!(answer == "died" || answer == row.code.0.to_string(), "{case}: {answer}, table {row:?}");
        assert!(matches!(row.source, Source::Measured(_)), "{case} was measured: {row:?}");
    }
}

#[test]
fn every_answer_is_the_real_one() {
    let header = match common::header() {
        Ok(header) => header,
        Err(reason) => return common::skip(&reason),
    };
    let machine = common::Machine::new();
    let program = machine.compile("answers", &header);
    let names = common::output(machine.command(&[], &program).arg("list"));
    assert_eq!(names.lines().collect::<Vec<_>>(), real().map(|(name, _)| name).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (name, expected) in real() {
        let answer = common::output(machine.command(&[], &program).arg(name));
        let answer = match answer.trim_end().strip_prefix(name) {
            None if answer.is_empty() => "died",
            given => given.unwrap_or(&answer).trim_start(),
        };
        if answer != expected {
            wrong.push(format!("{name}: expected {expected:?}, got {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(machine.dump().allocations, [], "the programs ended, so nothing is held");
}
