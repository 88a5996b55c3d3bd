//! Publishes 64 MiB of GPU memory under a name, and retires it when Enter is pressed.
//!
//!     cargo run --example publish -- weights

use std::error::Error;
use std::io;
use std::time::Duration;

use gpu_handoff_client::{Access, Buffer, Client, VmmAllocation};
use gpu_handoff_cuda::{Driver, ops};

const BYTES: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
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
