//! Ordered buffers: read when they are ready, overwritten when their readers are done, whoever dies.

use gpu_handoff_e2e::agent::order::Step;
use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_e2e::app::App;

use crate::stage::{
    MOMENT_MS, PATIENCE_MS, Stage, acquire, acquire_with_patience, brake, comes_to_rest, fill, hold, let_go,
    number, refused, s,
};

fn publish_on(app: &mut App, stream: &str, seats: u32) -> anyhow::Result<()> {
    let (memory, name, stream, timeline) = (s("memory"), s("frame"), s(stream), s("order"));
    app.order(Step::PublishOn { memory, name, stream, timeline, seats })
}

fn retire_on(app: &mut App, stream: &str) -> anyhow::Result<()> {
    app.order(Step::RetireOn { name: s("frame"), stream: s(stream) })
}

fn write_on(app: &mut App, stream: &str, value: u64) -> anyhow::Result<()> {
    app.order(Step::WriteOn { memory: s("memory"), stream: s(stream), value })
}

fn content(app: &mut App) -> anyhow::Result<u64> {
    number(app, Step::Read { memory: s("memory") })
}

fn wait_on(app: &mut App, stream: &str) -> anyhow::Result<()> {
    app.order(Step::WaitOn { lease: s("lease"), stream: s(stream) })
}

fn release_on(app: &mut App, stream: &str) -> anyhow::Result<()> {
    app.order(Step::ReleaseOn { lease: s("lease"), stream: s(stream) })
}

fn finish(stage: Stage, apps: impl IntoIterator<Item = App>) -> anyhow::Result<()> {
    apps.into_iter().try_for_each(App::finish)?;
    stage.end()
}

#[test]
fn a_buffer_is_read_when_its_writers_stream_is_done() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    brake(&mut owner, "order")?;
    fill(&mut owner, "memory")?;
    hold(&mut owner, "order", "write")?;
    write_on(&mut owner, "write", 42)?;
    publish_on(&mut owner, "write", 1)?;
    acquire(&mut reader, "frame", "lease")?;
    wait_on(&mut reader, "read")?;
    assert!(!comes_to_rest(&mut reader, "read", MOMENT_MS)?, "it is not written yet");
    reader.order(Step::CheckLease { lease: s("lease") })?;
    let_go(&mut owner, "order")?;
    reader.order(Step::Synchronize { stream: s("read") })?;
    assert_eq!(number(&mut reader, Step::ReadLease { lease: s("lease") })?, 42);
    release_on(&mut reader, "read")?;
    finish(stage, [owner, reader])
}

#[test]
fn a_slot_is_not_overwritten_before_its_readers_gpu_work_has_ended() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    brake(&mut owner, "order")?;
    brake(&mut reader, "brake")?;
    fill(&mut owner, "memory")?;
    write_on(&mut owner, "write", 42)?;
    publish_on(&mut owner, "write", 2)?;
    acquire(&mut reader, "frame", "lease")?;
    wait_on(&mut reader, "read")?;
    hold(&mut reader, "brake", "read")?;
    release_on(&mut reader, "read")?;
    retire_on(&mut owner, "write")?;
    write_on(&mut owner, "write", 43)?;
    assert!(!comes_to_rest(&mut owner, "write", MOMENT_MS)?, "the reader's stream is held back");
    assert_eq!(content(&mut owner)?, 42);
    let_go(&mut reader, "brake")?;
    owner.order(Step::Synchronize { stream: s("write") })?;
    assert_eq!(content(&mut owner)?, 43);
    // Again with the same words of the timeline, whose values have risen meanwhile.
    for _ in 0..40 {
        publish_on(&mut owner, "write", 2)?;
        acquire(&mut reader, "frame", "lease")?;
        wait_on(&mut reader, "read")?;
        release_on(&mut reader, "read")?;
        retire_on(&mut owner, "write")?;
    }
    owner.order(Step::Synchronize { stream: s("write") })?;
    finish(stage, [owner, reader])
}

#[test]
fn a_seat_that_somebody_had_before_is_waited_for_too() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    brake(&mut owner, "order")?;
    brake(&mut reader, "brake")?;
    fill(&mut owner, "memory")?;
    write_on(&mut owner, "write", 42)?;
    publish_on(&mut owner, "write", 1)?;
    acquire(&mut reader, "frame", "lease")?;
    release_on(&mut reader, "read")?;
    // Its seat is free when the node has heard of the release.
    acquire_with_patience(&mut reader, "frame")?;
    hold(&mut reader, "brake", "read")?;
    release_on(&mut reader, "read")?;
    retire_on(&mut owner, "write")?;
    write_on(&mut owner, "write", 43)?;
    assert!(!comes_to_rest(&mut owner, "write", MOMENT_MS)?, "the second holder's stream is held back");
    assert_eq!(content(&mut owner)?, 42);
    let_go(&mut reader, "brake")?;
    owner.order(Step::Synchronize { stream: s("write") })?;
    assert_eq!(content(&mut owner)?, 43);
    // More often than the timeline has words: the one that the owner's stream waits for comes back each time.
    for _ in 0..70 {
        publish_on(&mut owner, "write", 1)?;
        acquire(&mut reader, "frame", "lease")?;
        release_on(&mut reader, "read")?;
        acquire_with_patience(&mut reader, "frame")?;
        release_on(&mut reader, "read")?;
        retire_on(&mut owner, "write")?;
        owner.order(Step::Synchronize { stream: s("write") })?;
    }
    finish(stage, [owner, reader])
}

#[test]
fn a_reader_that_simply_releases_lets_the_owner_go_on() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    brake(&mut owner, "order")?;
    fill(&mut owner, "memory")?;
    publish_on(&mut owner, "write", 1)?;
    acquire(&mut reader, "frame", "lease")?;
    retire_on(&mut owner, "write")?;
    assert!(!comes_to_rest(&mut owner, "write", MOMENT_MS)?);
    reader.done(&Command::Release { lease: s("lease") })?;
    owner.order(Step::Synchronize { stream: s("write") })?;
    finish(stage, [owner, reader])
}

#[test]
fn a_dead_reader_holds_up_nobody() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    brake(&mut owner, "order")?;
    brake(&mut reader, "brake")?;
    fill(&mut owner, "memory")?;
    publish_on(&mut owner, "write", 1)?;
    acquire(&mut reader, "frame", "lease")?;
    hold(&mut reader, "brake", "read")?;
    release_on(&mut reader, "read")?;
    retire_on(&mut owner, "write")?;
    assert!(!comes_to_rest(&mut owner, "write", MOMENT_MS)?);
    reader.kill()?;
    owner.order(Step::Synchronize { stream: s("write") })?;
    // The word that was poisoned serves again.
    let mut reader = replaced(&stage, reader)?;
    brake(&mut reader, "brake")?;
    publish_on(&mut owner, "write", 1)?;
    acquire(&mut reader, "frame", "lease")?;
    hold(&mut reader, "brake", "read")?;
    release_on(&mut reader, "read")?;
    retire_on(&mut owner, "write")?;
    assert!(!comes_to_rest(&mut owner, "write", MOMENT_MS)?, "the new reader is waited for");
    let_go(&mut reader, "brake")?;
    owner.order(Step::Synchronize { stream: s("write") })?;
    finish(stage, [owner, reader])
}

fn replaced(stage: &Stage, dead: App) -> anyhow::Result<App> {
    dead.reap()?;
    stage.app(&stage.consumer)
}

#[test]
fn a_reader_of_a_dead_owner_goes_on_and_is_told() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    brake(&mut owner, "order")?;
    fill(&mut owner, "memory")?;
    hold(&mut owner, "order", "write")?;
    publish_on(&mut owner, "write", 1)?;
    acquire(&mut reader, "frame", "lease")?;
    wait_on(&mut reader, "read")?;
    assert!(!comes_to_rest(&mut reader, "read", MOMENT_MS)?);
    owner.kill()?;
    reader.order(Step::Synchronize { stream: s("read") })?;
    refused(&mut reader, Step::CheckLease { lease: s("lease") }, "PEER_DIED")?;
    refused(&mut reader, Step::WaitOn { lease: s("lease"), stream: s("read") }, "PEER_DIED")?;
    assert!(comes_to_rest(&mut reader, "read", 0)?, "nothing was queued");
    release_on(&mut reader, "read")?;
    owner.reap()?;
    finish(stage, [reader])
}

#[test]
fn what_was_ready_before_its_owner_died_stays_ready() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    brake(&mut owner, "order")?;
    fill(&mut owner, "memory")?;
    write_on(&mut owner, "write", 42)?;
    publish_on(&mut owner, "write", 2)?;
    let mut other = stage.app(&stage.consumer)?;
    for reader in [&mut reader, &mut other] {
        acquire(reader, "frame", "lease")?;
        wait_on(reader, "read")?;
        reader.order(Step::Synchronize { stream: s("read") })?;
    }
    owner.kill()?;
    owner.reap()?;
    stage.node.wait_for_log("leases are left")?;
    for reader in [&mut reader, &mut other] {
        reader.order(Step::CheckLease { lease: s("lease") })?;
        reader.order(Step::WaitOn { lease: s("lease"), stream: s("read") })?;
        assert_eq!(number(reader, Step::ReadLease { lease: s("lease") })?, 42);
        release_on(reader, "read")?;
    }
    finish(stage, [reader, other])
}

#[test]
fn raw_words_order_two_pods_and_their_limits_are_errors() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut other) = stage.apps()?;
    owner.order(Step::Timeline { name: s("line"), words: 4, reserve: 4 })?;
    other.order(Step::AcquireTimeline { name: s("line") })?;
    let wait = |word, value| Step::Wait { timeline: s("line"), stream: s("a"), word, value };
    let signal = |word, value| Step::Signal { timeline: s("line"), stream: s("a"), word, value };
    for round in 1..=50 {
        owner.order(signal(0, round))?;
        other.order(wait(0, round))?;
        other.order(signal(1, round))?;
        owner.order(wait(1, round))?;
    }
    owner.order(Step::WaitHere { timeline: s("line"), word: 1, value: 50, timeout_ms: PATIENCE_MS })?;
    for bad in [wait(4, 1), signal(4, 1), wait(0, 1 << 62), signal(0, u64::MAX)] {
        refused(&mut other, bad, "TOO_LARGE")?;
    }
    // Its owner's end sets the stream free, and a thread that waits.
    other.order(wait(2, 1))?;
    other.tell(&Command::Order(Step::WaitHere {
        timeline: s("line"),
        word: 2,
        value: 1,
        timeout_ms: PATIENCE_MS,
    }))?;
    owner.kill()?;
    let answer = other.hear()?;
    assert!(matches!(&answer, Answer::Refused { code, .. } if code == "PEER_DIED"), "{answer:?}");
    assert!(comes_to_rest(&mut other, "a", PATIENCE_MS)?);
    refused(&mut other, Step::Check { timeline: s("line"), word: 2, value: 1 }, "PEER_DIED")?;
    other.order(Step::Check { timeline: s("line"), word: 0, value: 50 })?;
    owner.reap()?;
    finish(stage, [other])
}
