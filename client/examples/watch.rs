//! Prints what happens to the buffers of the group, until it is interrupted. Loads no CUDA driver.
//!
//!     GPU_HANDOFF_SOCKET=/run/pod-b/app.sock cargo run -p gpu-handoff-client --example watch
//!
//! The socket is that of a member of a running node (README, "Run a node by hand"). It runs without a GPU as
//! it is; the plugin and the applications that publish and acquire then take the simulated driver, which `e2e/pack.sh`
//! lays out as `e2e/pack/simcuda/libcuda.so.1`. In every shell of theirs, before starting them:
//!
//!     export LD_LIBRARY_PATH=$PWD/e2e/pack/simcuda

use std::error::Error;
use std::process::ExitCode;

use gpu_handoff_client::{Client, Event};

mod common;

fn main() -> ExitCode {
    common::end(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let client = Client::connect()?;
    let me = client.welcome();
    println!("{} watches group {}", me.pod, me.group);
    for event in client.watch()? {
        match event? {
            Event::Appeared(b) => {
                println!("+ {} {} ({} bytes) from {}", b.id, b.facts.name, b.facts.size, b.owner)
            }
            Event::SnapshotDone => println!("that is all for now"),
            Event::Retiring { id, deadline } => println!("~ {id} is retired, {deadline:?} left"),
            Event::Orphaned { id, leases, .. } => println!("! {id} has ended with {leases} leases left"),
            Event::Seated { id, seat } => println!("+ {id}: {seat} is taken"),
            Event::Unseated { id, seat, .. } => println!("- {id}: {seat} is free"),
            Event::Gone { id, reason } => println!("- {id} is gone: {}", reason.as_str()),
        }
    }
    Ok(())
}
