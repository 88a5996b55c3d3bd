//! What loading says when something is missing: no library, no symbol, no device, a driver that does not start.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
mod common;

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::{role, run, said, say, skipped};
use gpu_handoff_cuda::load::symbols;
use gpu_handoff_cuda::raw::Raw;
use gpu_handoff_cuda::{Driver, LoadError};

/// Builds a `libcuda.so.1` in `folder` that has all functions but `without`; `cuInit` answers `$STUB_INIT`, all others 0.
fn build_stub(folder: &Path, without: Option<&str>) {
    let mut source = String::from("//! stub\n");
    for (name, ..) in symbols().iter().filter(|(name, ..)| Some(*name) != without && *name != "cuInit") {
        writeln!(source, "#[unsafe(no_mangle)] pub extern \"C\" fn {name}() -> u32 {{ 0 }}").unwrap();
    }
    source.push_str(
        "#[unsafe(no_mangle)] pub extern \"C\" fn cuInit(_: u32) -> u32 {\
         std::env::var(\"STUB_INIT\").ok().and_then(|s| s.parse().ok()).unwrap_or(0) }",
    );
    let file = folder.join("stub.rs");
    std::fs::write(&file, source).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition=2024", "--crate-type=cdylib", "-Anon_snake_case", "-o"]);
    let output = command.arg(folder.join("libcuda.so.1")).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The sources of an error, outermost first.
fn chain(error: &dyn Error) -> String {
    std::iter::successors(error.source(), |source| (*source).source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[test]
#[ignore = "started by another test"]
fn role_load() {
    match Driver::load() {
        Ok(_) => say("loaded"),
        Err(error) => {
            let kind = match &error {
                LoadError::Library { .. } => "library",
                LoadError::Symbol { .. } => "symbol",
                LoadError::NoDevice => "no device",
                LoadError::Init(_) => "init",
                LoadError::Forked { .. } => "forked",
            };
            say(format_args!("{kind}: {error}"));
            say(format_args!("because: {}", chain(&error)));
        }
    }
}

#[test]
fn no_library_is_an_error_that_names_it() {
    let empty = tempfile::tempdir().unwrap();
    let lines = said(role("role_load", empty.path()).output());
    if lines == ["loaded"] {
        return skipped("this machine has a driver of its own");
    }
    assert!(
        lines[0].starts_with("library: open libcuda.so.1: this process sees no usable NVIDIA driver"),
        "{lines:?}"
    );
    assert!(lines[0].contains("R470"), "{lines:?}");
}

#[test]
fn a_broken_library_is_an_error_and_the_reason_is_its_source() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libcuda.so.1"), b"not a library").unwrap();
    let lines = said(role("role_load", folder.path()).output());
    assert!(lines[0].starts_with("library: "), "{lines:?}");
    assert!(lines[1].contains(folder.path().to_str().unwrap()), "{lines:?}");
}

#[test]
fn a_missing_symbol_is_named_with_the_first_driver_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    build_stub(folder.path(), Some("cuMemRetainAllocationHandle"));
    let lines = said(role("role_load", folder.path()).output());
    assert_eq!(
        lines[0],
        "symbol: look up cuMemRetainAllocationHandle in libcuda.so.1: this driver is older than R450 (CUDA 11.0), the \
         first that has it"
    );
}

#[test]
fn a_symbol_that_may_be_absent_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    build_stub(folder.path(), Some("cuStreamWaitValue64_v2"));
    // The stub reports no device, so this is as far as it gets.
    assert_eq!(
        said(role("role_load", folder.path()).output())[0],
        "no device: initialise libcuda.so.1: the driver shows this process no GPU"
    );
}

#[test]
fn what_cu_init_answers_becomes_the_error() {
    let folder = tempfile::tempdir().unwrap();
    build_stub(folder.path(), None);
    let with = |code: &str| said(role("role_load", folder.path()).env("STUB_INIT", code).output());
    assert_eq!(with("100")[0], "no device: initialise libcuda.so.1: the driver shows this process no GPU");
    assert_eq!(with("803")[0], "init: initialise libcuda.so.1");
    assert_eq!(with("803")[1], "because: cuInit answered CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
    assert_eq!(with("4242")[1], "because: cuInit answered unknown code (4242)");
}

/// How often of two times a process can load the driver.
fn loads_of_two() -> u32 {
    [(); 2].map(|()| u32::from(Driver::load().is_ok())).into_iter().sum()
}

#[test]
#[ignore = "started by another test"]
fn role_fork() {
    // Opens the library, and initialises nothing.
    let raw = Raw::load().unwrap();
    say(format_args!("forked before: {:?}", raw.in_forked_child(|_| loads_of_two())));
    say(format_args!("parent: {}", loads_of_two()));
    say(format_args!("forked after: {:?}", raw.in_forked_child(|_| loads_of_two())));
}

#[test]
fn the_process_that_initialises_the_driver_has_it_and_its_children_do_not() {
    let Some(lines) = run("role_fork") else { return };
    assert_eq!(lines, ["forked before: Answered(2)", "parent: 2", "forked after: Answered(0)"]);
}
