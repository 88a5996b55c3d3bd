//! A forked child has nothing of its parent's, is told so, and harms nothing by its end.

use anyhow::Context;
use gpu_handoff_e2e::agent::order::{Outcome, Step};
use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_simcuda::faults::{Action, Fault, arm, disarm};

use crate::stage::{Stage, acquire, brake, fill, looked, number, s};

#[test]
fn every_call_of_a_forked_child_is_refused_and_its_parent_goes_on() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut app) = stage.apps()?;
    brake(&mut owner, "order")?;
    fill(&mut owner, "memory")?;
    for name in ["one", "two"] {
        let (memory, timeline, stream) = (s("memory"), s("order"), s("write"));
        owner.order(Step::PublishOn { memory, name: s(name), stream, timeline, seats: 2 })?;
    }
    // One of everything.
    brake(&mut app, "own")?;
    fill(&mut app, "memory")?;
    acquire(&mut app, "one", "lease")?;
    acquire(&mut app, "two", "lease-on")?;
    number(&mut app, Step::PublishSet { name: s("set"), count: 3, bad: None })?;
    number(&mut app, Step::AcquireSet { name: s("set"), newer_than: 0, wait_ms: 0 })?;
    app.order(Step::Ring { name: s("ring"), slots: 2, seats: 1 })?;
    let ordered = Step::PublishOn {
        memory: s("memory"),
        name: s("ordered"),
        stream: s("w"),
        timeline: s("own"),
        seats: 1,
    };
    app.order(ordered)?;
    app.ask(&Command::Publish { memory: s("memory"), name: s("kept") })?;
    // Whoever calls the driver now is gone: the parent rests.
    let folder = stage.node.gpu.device_folder().context("a simulated device")?;
    arm(folder, "any-call", &Fault::new(Action::Crash))?;
    let failed = app.expect(&Command::Order(Step::Fork), |answer| match answer {
        Answer::Order(Outcome::Forked { failed }) => Ok(failed),
        other => Err(other),
    });
    disarm(folder, "any-call")?;
    let failed = failed?;
    assert!(failed.is_empty(), "not refused with FORKED: {failed:?}");
    // The parent has all that it had.
    app.order(Step::CheckLease { lease: s("lease") })?;
    app.order(Step::WaitOn { lease: s("lease-on"), stream: s("r") })?;
    app.order(Step::ReleaseOn { lease: s("lease-on"), stream: s("r") })?;
    assert_eq!(looked(&mut app, Step::VerifySet { name: s("set") })?, (3, 0));
    app.order(Step::RetireOn { name: s("ordered"), stream: s("w") })?;
    app.expect(&Command::Retire { name: s("kept"), deadline_ms: 0 }, |answer| match answer {
        Answer::Retired { .. } => Ok(()),
        other => Err(other),
    })?;
    app.finish()?;
    owner.finish()?;
    stage.end()
}
