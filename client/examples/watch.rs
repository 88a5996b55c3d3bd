//! Prints what happens to the buffers of the group, until it is interrupted. Needs no GPU.
//!
//!     cargo run --example watch

use gpu_handoff_client::{Client, ClientError, Event};

fn main() -> Result<(), ClientError> {
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
            Event::Gone { id, reason } => println!("- {id} is gone: {}", reason.as_str()),
        }
    }
    Ok(())
}
