//! The library gives the answers that `measured` lists, asked through the vendor's header.
//!
//! The same program, `probes/answers.cu`, runs on a real GPU; what it prints there is what the table should say.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use gpu_handoff_simcuda::measured::ANSWERS;

#[test]
fn every_answer_is_the_one_in_the_table() {
    let header = match common::header() {
        Ok(header) => header,
        Err(reason) => return common::skip(&reason),
    };
    let machine = common::Machine::new();
    let program = machine.compile("answers", &header);
    let names = common::output(machine.command(&[], &program).arg("list"));
    let mut wrong = Vec::new();
    for name in names.lines() {
        let answer = common::output(machine.command(&[], &program).arg(name));
        let expected = format!("{name} {}\n", expected(name));
        if answer != expected {
            wrong.push(format!("expected {expected:?}, got {answer:?}"));
        }
    }
    assert!(names.lines().count() > 90, "the list is not complete: {names}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(machine.dump().allocations, [], "the programs ended, so nothing is held");
}

/// A row of the table, by the part of the name before the slash; other names are statements that hold.
fn expected(case: &str) -> u32 {
    let row = case.split('/').next().unwrap();
    ANSWERS.iter().find(|answer| answer.name == row).map_or(1, |answer| answer.code.0)
}
