//! Publishes 64 MiB of GPU memory under a name, and retires it when Enter is pressed.
//!
//!     GPU_HANDOFF_SOCKET=/run/pod-a/app.sock cargo run -p gpu-handoff-client --example publish -- weights
//!
//! The socket is that of a member of a running node (README, "Run a node by hand"). Without a GPU, plugin and applications
//! alike take the simulated driver, which `e2e/pack.sh` lays out as `e2e/pack/simcuda/libcuda.so.1`. In every shell, before
//! starting either:
//!
//!     export LD_LIBRARY_PATH=$PWD/e2e/pack/simcuda
//!
//! Where the node is started by root, all must be told of one simulated machine, too (`SIMCUDA_DIR`: README, "Without a GPU").

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use gpu_handoff_client::{Access, Buffer, Client, VmmAllocation};
use gpu_handoff_cuda::{Driver, ops};

mod common;

const BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    common::end(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "weights".to_owned());

    // The application's own affair: a context, memory, and something in it.
    let driver = Driver::load()?;
    let device = driver.device_at(0)?;
    let _context = device.retain_primary_context()?;
    let memory = VmmAllocation::create(driver, device, BYTES)?.map(Access::ReadWrite, device)?;
    ops::memset_d32(driver, memory.ptr(), 0x2a2a_2a2a, BYTES / 4)?;
    ops::synchronize(driver)?;

    let client = Client::connect()?;
    let buffer = Buffer::named(&name)?.vmm(&memory).tensor("float32", &[4096, 4096]).read_only();
    let published = client.publish(buffer)?;
    println!("{name} generation {} is {}", published.generation(), published.id());

    println!("press Enter to retire it");
    io::stdin().read_line(&mut String::new())?;
    let left = published.retire(Duration::from_secs(10))?;
    println!("{left} leases are left; they have 10 s");
    Ok(())
}
