//! An application that lets its client go too late: the driver is gone.

use gpu_handoff_e2e::agent::Command;
use gpu_handoff_e2e::agent::order::Step;

use crate::stage::{Stage, s};

#[test]
fn a_client_that_goes_after_the_driver_keeps_the_process_from_nothing() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut other, mut app) = stage.apps()?;
    // Registered before the driver is initialised, so called after the driver's own.
    app.done(&Command::KeepToTheEnd)?;
    app.order(Step::Timeline { name: s("own"), words: 4, reserve: 4 })?;
    other.order(Step::AcquireTimeline { name: s("own") })?;
    // Its threads have something to do to the words of a timeline when the connection ends.
    app.finish()?;
    other.finish()?;
    stage.end()
}
