//! Compiles the protocol's messages with a protobuf compiler written in Rust: no system package is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/handoff.proto");
    let files = protox::compile(["proto/handoff.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(files)?;
    Ok(())
}
