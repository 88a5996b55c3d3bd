//! Rings: the same slots again and again, and nobody reads what is being written.

use gpu_handoff_e2e::agent::Command;
use gpu_handoff_e2e::agent::order::Step;

use crate::stage::{
    MOMENT_MS, PATIENCE_MS, Stage, acquire_with_patience, comes_to_rest, looked, picked, refused, s,
};

fn write(count: u64) -> Step {
    Step::WriteRing { name: s("ring"), count }
}

fn read(count: u64) -> Step {
    Step::ReadRing { name: s("ring"), count }
}

fn join() -> Step {
    Step::Join { name: s("ring") }
}

fn readers(count: usize) -> Step {
    Step::Readers { name: s("ring"), count }
}

#[test]
fn every_reader_sees_every_number_once_and_whole() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut writer, mut one) = stage.apps()?;
    let mut two = stage.app(&stage.consumer)?;
    writer.order(Step::Ring { name: s("ring"), slots: 3, seats: 2 })?;
    one.tell(&Command::Order(join()))?;
    two.tell(&Command::Order(join()))?;
    writer.order(readers(2))?;
    one.hear()?;
    two.hear()?;
    let mut third = stage.app(&stage.consumer)?;
    refused(&mut third, join(), "NO_SEAT")?;
    one.tell(&Command::Order(read(300)))?;
    two.tell(&Command::Order(read(300)))?;
    writer.order(write(300))?;
    for reader in [&mut one, &mut two] {
        assert_eq!(picked(reader.hear()?).map_err(|other| anyhow::anyhow!("{other:?}"))?, (300, 0));
    }
    for app in [third, one, two, writer] {
        app.finish()?;
    }
    stage.end()
}

#[test]
fn a_reader_that_does_not_keep_up_holds_the_writer_until_it_dies() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut writer, mut quick) = stage.apps()?;
    let mut slow = stage.app(&stage.consumer)?;
    writer.order(Step::Ring { name: s("ring"), slots: 2, seats: 2 })?;
    quick.tell(&Command::Order(join()))?;
    slow.tell(&Command::Order(join()))?;
    writer.order(readers(2))?;
    quick.hear()?;
    slow.hear()?;
    writer.order(write(10))?;
    assert!(!comes_to_rest(&mut writer, "ring", MOMENT_MS)?, "one has read nothing");
    assert_eq!(looked(&mut quick, read(2))?, (2, 0));
    slow.kill()?;
    assert_eq!(looked(&mut quick, read(8))?, (8, 0));
    assert!(comes_to_rest(&mut writer, "ring", PATIENCE_MS)?);
    slow.reap()?;
    // Its seat is taken by another, which is waited for from the moment on that it is admitted.
    let mut late = stage.app(&stage.consumer)?;
    late.tell(&Command::Order(join()))?;
    writer.order(readers(2))?;
    late.hear()?;
    writer.order(write(6))?;
    assert_eq!(looked(&mut quick, read(2))?, (2, 0));
    assert!(!comes_to_rest(&mut writer, "ring", MOMENT_MS)?, "the newcomer has read nothing");
    late.tell(&Command::Order(read(6)))?;
    assert_eq!(looked(&mut quick, read(4))?, (4, 0));
    assert_eq!(picked(late.hear()?).map_err(|other| anyhow::anyhow!("{other:?}"))?, (6, 0));
    assert!(comes_to_rest(&mut writer, "ring", PATIENCE_MS)?);
    for app in [late, quick, writer] {
        app.finish()?;
    }
    stage.end()
}

#[test]
fn readers_of_a_dead_writer_are_told() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut writer, mut reader) = stage.apps()?;
    writer.order(Step::Ring { name: s("ring"), slots: 2, seats: 1 })?;
    reader.tell(&Command::Order(join()))?;
    writer.order(readers(1))?;
    reader.hear()?;
    writer.order(write(2))?;
    reader.tell(&Command::Order(read(3)))?;
    assert!(comes_to_rest(&mut writer, "ring", PATIENCE_MS)?);
    writer.kill()?;
    let answer = reader.hear()?;
    let told = matches!(&answer, gpu_handoff_e2e::agent::Answer::Refused { code, .. } if code == "PEER_DIED");
    assert!(told, "{answer:?}");
    refused(&mut reader, read(1), "PEER_DIED")?;
    writer.reap()?;
    reader.finish()?;
    stage.end()
}

#[test]
fn a_reader_that_left_before_it_was_admitted_is_not_taken_for_the_next() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut writer, mut first) = stage.apps()?;
    let (mut second, mut looking) = (stage.app(&stage.consumer)?, stage.app(&stage.consumer)?);
    writer.order(Step::Ring { name: s("ring"), slots: 2, seats: 1 })?;
    looking.order(Step::AcquireTimeline { name: s("ring.order") })?;
    first.tell(&Command::Order(join()))?;
    // Until it has said hello: the third word.
    looking.order(Step::WaitHere {
        timeline: s("ring.order"),
        word: 2,
        value: 1,
        timeout_ms: PATIENCE_MS,
    })?;
    first.kill()?;
    first.reap()?;
    // Once its seat is free.
    acquire_with_patience(&mut second, "ring")?;
    second.done(&Command::Release { lease: s("lease") })?;
    second.tell(&Command::Order(join()))?;
    writer.order(readers(1))?;
    second.hear()?;
    second.tell(&Command::Order(read(6)))?;
    writer.order(write(6))?;
    assert_eq!(picked(second.hear()?).map_err(|other| anyhow::anyhow!("{other:?}"))?, (6, 0));
    assert!(comes_to_rest(&mut writer, "ring", PATIENCE_MS)?);
    for app in [looking, second, writer] {
        app.finish()?;
    }
    stage.end()
}
