//! Compiles the service with a protobuf compiler written in Rust: no system package is needed.

/// Enumerations, which are numbers in a message: in JSON they are written by their names.
const ENUMERATIONS: [(&str, &str); 3] = [
    ("gpu_handoff.admin.v1.Kubelet.registration", "crate::names::registration"),
    ("gpu_handoff.admin.v1.Pods.source", "crate::names::source"),
    ("gpu_handoff.admin.v1.Policy.origin", "crate::names::origin"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["admin.proto"], ["proto"])?;
    let mut config = tonic_prost_build::configure().message_attribute(".", "#[derive(serde::Serialize)]");
    for (field, writer) in ENUMERATIONS {
        config = config.field_attribute(field, format!("#[serde(serialize_with = \"{writer}\")]"));
    }
    config.compile_fds(files)?;
    Ok(())
}
