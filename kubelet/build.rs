//! Compiles the kubelet's and CSI's services with a protobuf compiler written in Rust: no system package is needed.

const FILES: [&str; 5] =
    ["core.proto", "csi.proto", "pluginregistration.proto", "podresources.proto", "pods.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(FILES, ["proto"])?;
    // Both sides of each: the kubelet's are served by the tests, which stand in for it.
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
