//! Timelines and rings that an application lets go of while its streams still wait for their words: dropping them waits
//! for nothing, the streams go on when their peer has done its work, and when it dies.

use gpu_handoff_e2e::agent::Command;
use gpu_handoff_e2e::agent::order::Step;
use gpu_handoff_e2e::app::App;

use crate::stage::{MOMENT_MS, Stage, acquire, brake, comes_to_rest, fill, hold, let_go, s};

fn finish(stage: Stage, peer_is_dead: bool, peer: App, other: App) -> anyhow::Result<()> {
    other.finish()?;
    if peer_is_dead {
        peer.reap()?
    } else {
        peer.finish()?
    };
    stage.end()
}

#[test]
fn a_timeline_of_another_is_kept_for_the_stream_that_waits_for_it() -> anyhow::Result<()> {
    for peer_dies in [false, true] {
        let stage = Stage::start()?;
        let (mut owner, mut waiting) = stage.apps()?;
        owner.order(Step::Timeline { name: s("line"), words: 4, reserve: 4 })?;
        waiting.order(Step::AcquireTimeline { name: s("line") })?;
        waiting.order(Step::Wait { timeline: s("line"), stream: s("a"), word: 2, value: 1 })?;
        waiting.order(Step::DropTimeline { name: s("line") })?;
        assert!(!comes_to_rest(&mut waiting, "a", MOMENT_MS)?);
        if peer_dies {
            owner.kill()?;
        } else {
            owner.order(Step::Signal { timeline: s("line"), stream: s("b"), word: 2, value: 1 })?;
        }
        waiting.order(Step::Synchronize { stream: s("a") })?;
        finish(stage, peer_dies, owner, waiting)?;
    }
    Ok(())
}

#[test]
fn an_own_timeline_is_kept_for_the_stream_that_waits_for_a_reader() -> anyhow::Result<()> {
    for peer_dies in [false, true] {
        let stage = Stage::start()?;
        let (mut owner, mut reader) = stage.apps()?;
        brake(&mut owner, "order")?;
        brake(&mut reader, "brake")?;
        fill(&mut owner, "memory")?;
        let (memory, name, stream, timeline) = (s("memory"), s("frame"), s("write"), s("order"));
        owner.order(Step::PublishOn { memory, name, stream, timeline, seats: 1 })?;
        acquire(&mut reader, "frame", "lease")?;
        hold(&mut reader, "brake", "read")?;
        reader.order(Step::ReleaseOn { lease: s("lease"), stream: s("read") })?;
        owner.order(Step::RetireOn { name: s("frame"), stream: s("write") })?;
        owner.order(Step::DropTimeline { name: s("order") })?;
        assert!(!comes_to_rest(&mut owner, "write", MOMENT_MS)?);
        if peer_dies {
            reader.kill()?;
        } else {
            let_go(&mut reader, "brake")?;
        }
        owner.order(Step::Synchronize { stream: s("write") })?;
        finish(stage, peer_dies, reader, owner)?;
    }
    Ok(())
}

#[test]
fn a_ring_that_is_let_go_of_holds_up_nobody() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut writer, mut reader) = stage.apps()?;
    writer.order(Step::Ring { name: s("ring"), slots: 2, seats: 1 })?;
    reader.tell(&Command::Order(Step::Join { name: s("ring") }))?;
    writer.order(Step::Readers { name: s("ring"), count: 1 })?;
    reader.hear()?;
    writer.order(Step::WriteRing { name: s("ring"), count: 5 })?;
    writer.order(Step::DropRing { name: s("ring") })?;
    assert!(!comes_to_rest(&mut writer, "ring", MOMENT_MS)?, "it has read nothing");
    reader.kill()?;
    writer.order(Step::Synchronize { stream: s("ring") })?;
    finish(stage, true, reader, writer)
}
