//! The benchmark; see `gpu_handoff_e2e::bench`.

use clap::Parser;

/// Measures hand-offs between two pods, beside the raw driver.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    options: gpu_handoff_e2e::bench::Options,
}

fn main() -> anyhow::Result<()> {
    gpu_handoff_e2e::bench::run(&Args::parse().options)
}
