//! A reader whose leases another broker does not restore: what its streams wait for is not made to come true by that, for
//! nobody.

use gpu_handoff_e2e::agent::Answer;
use gpu_handoff_e2e::agent::Command;
use gpu_handoff_e2e::agent::order::{Outcome, Step};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::node::{Node, PATIENCE, kill};
use gpu_handoff_e2e::wait;
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{
    MOMENT_MS, PATIENCE_MS, Stage, acquire, acquire_with_patience, brake, comes_to_rest, fill, hold, let_go,
    number, s,
};

fn signal(app: &App, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(app.pid()?.cast_signed());
    Ok(kill_process(pid.ok_or_else(|| anyhow::anyhow!("a process"))?, signal)?)
}

fn replace_broker(node: &Node) -> anyhow::Result<()> {
    let served = || node.log().matches("the broker serves").count();
    let before = served();
    kill(node.broker_pid()?)?;
    wait::until(PATIENCE, "another broker serves", || Ok((served() > before).then_some(())))
}

fn check(app: &mut App) -> anyhow::Result<bool> {
    let answer = app.ask(&Command::Order(Step::CheckLease { lease: s("lease") }))?;
    Ok(matches!(answer, Answer::Order(Outcome::Done)))
}

/// Publishes a frame that is ready once its stream is let go.
fn publish_held_back(owner: &mut App) -> anyhow::Result<()> {
    brake(owner, "order")?;
    fill(owner, "memory")?;
    hold(owner, "order", "write")?;
    owner.order(Step::WriteOn { memory: s("memory"), stream: s("write"), value: 42 })?;
    let (memory, name, stream, timeline) = (s("memory"), s("frame"), s("write"), s("order"));
    owner.order(Step::PublishOn { memory, name, stream, timeline, seats: 2 })
}

fn wait_on(reader: &mut App) -> anyhow::Result<()> {
    acquire(reader, "frame", "lease")?;
    reader.order(Step::WaitOn { lease: s("lease"), stream: s("read") })
}

/// One reader's lease is not restored by another broker, another's is; then the owner lets its stream go, or dies. With
/// `none_is_left` the pod may hold no more leases than its other processes have until one of those ends.
fn a_lease_is_lost(stage: Stage, none_is_left: bool, owner_dies: bool) -> anyhow::Result<()> {
    let (mut owner, mut late) = stage.apps()?;
    let (mut other, mut third) = (stage.app(&stage.consumer)?, stage.app(&stage.consumer)?);
    publish_held_back(&mut owner)?;
    wait_on(&mut late)?;
    wait_on(&mut other)?;
    // It does not come in time to have its leases restored, and its seat is another's then.
    signal(&late, Signal::STOP)?;
    replace_broker(&stage.node)?;
    acquire_with_patience(&mut third, "frame")?;
    let mut third = Some(third);
    signal(&late, Signal::CONT)?;
    wait::until(PATIENCE, "it is told", || Ok((!check(&mut late)?).then_some(())))?;
    for reader in [&mut late, &mut other] {
        assert!(!comes_to_rest(reader, "read", MOMENT_MS)?, "it is not written yet");
    }
    assert!(check(&mut other)?);
    if owner_dies {
        owner.kill()?;
    } else {
        if none_is_left {
            third.take().into_iter().try_for_each(App::finish)?;
        }
        let_go(&mut owner, "order")?;
    }
    for reader in [&mut late, &mut other] {
        assert!(comes_to_rest(reader, "read", PATIENCE_MS)?);
    }
    assert_eq!(check(&mut other)?, !owner_dies);
    if owner_dies {
        owner.reap()?;
    } else {
        assert_eq!(number(&mut other, Step::ReadLease { lease: s("lease") })?, 42);
        owner.finish()?;
    }
    [late, other].into_iter().chain(third).try_for_each(App::finish)?;
    stage.end()
}

#[test]
fn a_lost_lease_lets_nobody_read_too_early_and_its_stream_goes_on_all_the_same() -> anyhow::Result<()> {
    for owner_dies in [false, true] {
        a_lease_is_lost(Stage::start()?, false, owner_dies)?;
    }
    Ok(())
}

#[test]
fn a_lease_of_a_timeline_that_is_refused_for_what_passes_sets_nobody_free() -> anyhow::Result<()> {
    for owner_dies in [false, true] {
        // Of the frame and of its timeline, for two processes of the pod.
        let stage = Stage::start_with(&serde_json::json!({ "quota": { "leases": 4 } }))?;
        a_lease_is_lost(stage, true, owner_dies)?;
    }
    Ok(())
}
