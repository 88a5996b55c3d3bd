//! Acquires a buffer by name, waiting up to a minute for it, and looks at its first bytes.
//!
//!     GPU_HANDOFF_SOCKET=/run/pod-b/app.sock cargo run -p gpu-handoff-client --example acquire -- weights
//!
//! The socket is that of a member of a running node (README, "Run a node by hand"). Without a GPU, plugin and applications
//! alike take the simulated driver, which `e2e/pack.sh` lays out as `e2e/pack/simcuda/libcuda.so.1`. In every shell, before
//! starting either:
//!
//!     export LD_LIBRARY_PATH=$PWD/e2e/pack/simcuda
//!
//! Where the node is started by root, all must be told of one simulated machine, too (`SIMCUDA_DIR`: README, "Without a GPU").

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use gpu_handoff_client::{Acquire, Client};
use gpu_handoff_cuda::{Driver, ops};

mod common;

fn main() -> ExitCode {
    common::end(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "weights".to_owned());

    // The application's own affair: a context.
    let driver = Driver::load()?;
    let _context = driver.device_at(0)?.retain_primary_context()?;

    let client = Client::connect()?;
    let lease = client.acquire(Acquire::named(&name)?.wait(Duration::from_secs(60)))?;
    let info = lease.info();
    println!("{name} generation {} from {}: {} bytes", info.generation, info.owner, lease.bytes());
    if let Some(tensor) = &info.facts.metadata.tensor {
        println!("a tensor of {} with extents {:?}", tensor.dtype, tensor.shape);
    }

    let mut head = [0; 16];
    ops::read(driver, lease.ptr(), &mut head)?;
    println!("it begins with {head:02x?}");

    lease.release()?;
    Ok(())
}
