//! Scenarios on a real Kubernetes cluster of one node, which `e2e/cluster/run.sh` starts.
//!
//! The same scenarios run with simulated GPUs and with real ones: pods ask for `nvidia.com/gpu` or for a claim of
//! `gpu.nvidia.com`, and what they get then is the cluster's matter. Where something cannot be tried, that is shown as
//! ignored, with the reason.
//!
//! | concern | file |
//! |---|---|
//! | the cluster | `ground` |
//! | a scenario: run, limited, reported | `play` |
//! | its namespace, and what its pods share | `scene` |
//! | what a pod is asked to be | `plan` |
//! | pods started and waited for | `pods` |
//! | programs in them | `program` |
//! | two pods that others must not disturb | `bystanders` |
//! | the product's images | `images` |
//! | the product on the cluster | `product` |
//! | what is printed of a failure | `report` |
//!
//! `images`, `handover`, `claims` and most of `matrix` are of the ground itself, with nothing of gpu-handoff in between.

mod away;
mod bystanders;
mod claims;
mod departures;
mod doctor;
mod ground;
mod handover;
mod hostile;
mod identity;
mod images;
mod latency;
mod lifecycle;
mod matrix;
mod members;
mod members_gpus;
mod members_plain;
mod mounts;
mod older_kubelet;
mod orphans;
mod plan;
mod play;
mod pods;
mod product;
mod program;
mod report;
mod restarts;
mod rights;
mod scene;
mod taken_over;
mod updates;
mod webhook;

use std::process::ExitCode;

use anyhow::Context as _;
use ground::Ground;
use libtest_mimic::Arguments;

/// Scenarios at a time. They wait for the cluster most of the time.
const AT_A_TIME: usize = 4;

/// A number of the environment.
fn number(variable: &str, without: usize) -> anyhow::Result<usize> {
    match std::env::var(variable) {
        Ok(number) => number.parse().with_context(|| format!("{variable}={number}")),
        Err(_) => Ok(without),
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_A_TIME);
    let ground = match Ground::find() {
        Ok(ground) => ground,
        Err(error) => {
            eprintln!("the cluster cannot be used: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let trials = [
        images::all(),
        handover::all(),
        members::all(),
        members_gpus::all(),
        members_plain::all(),
        mounts::all(),
        identity::all(),
        hostile::all(),
        doctor::all(),
        restarts::all(),
        updates::all(),
        away::all(),
        older_kubelet::all(),
        lifecycle::all(),
        departures::all(),
        latency::all(),
        orphans::all(),
        rights::all(),
        webhook::all(),
        taken_over::all(),
        matrix::all(),
    ];
    let trials = trials.into_iter().flatten();
    let trials = trials.map(|scenario| scenario.on(&ground)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ran = conclusion.num_passed + conclusion.num_failed + conclusion.num_ignored;
    if ran == 0 && !arguments.list {
        eprintln!("no scenario has such a name: --list tells them");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}
