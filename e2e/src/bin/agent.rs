//! The application in a pod; see `gpu_handoff_e2e::agent`.

fn main() -> anyhow::Result<()> {
    gpu_handoff_e2e::agent::run()
}
