//! The simulated driver gives the answers that a real one gave: the conformance suite beside `docs/measurements/conformance-h200.json`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpu_handoff_e2e::conformance::report::{Pair, Report, Verdict, counts, pairs};

const SIMULATOR: &str = "libgpu_handoff_simcuda.so";

/// The built simulator: Cargo puts it beside the test's executable, and above it if it was asked for by name.
fn simulator() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    own.ancestors().skip(1).take(2).map(|folder| folder.join(SIMULATOR)).find(|path| path.exists())
}

/// Whether nothing may be left out.
fn all() -> bool {
    std::env::var("GPU_HANDOFF_TESTS").as_deref() == Ok("all")
}

fn report(path: &Path) -> Report {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Wrappers that give a program a `/dev/shm` of its own and change nothing else: for root, and for other users.
const OWN_DEV_SHM: [&[&str]; 2] = [
    &["unshare", "-m", "sh", "-c", r#"mount -t tmpfs t /dev/shm && exec "$0" "$@""#],
    &[
        "unshare",
        "-m",
        "-U",
        "--map-current-user",
        "--keep-caps",
        "sh",
        "-c",
        r#"mount -t tmpfs t /dev/shm && exec setpriv --ambient-caps=-all --inh-caps=-all "$0" "$@""#,
    ],
];

/// The command that runs a program with a `/dev/shm` of its own, if this user may have that: the children that the
/// suite kills leave the files of their events there.
fn apart(program: &str) -> Command {
    let in_wrapper = |wrapper: &[&str], program: &str| {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(program);
        command
    };
    let works =
        |wrapper: &&&[&str]| in_wrapper(wrapper, "true").output().is_ok_and(|output| output.status.success());
    let wrapper = OWN_DEV_SHM.iter().find(works);
    wrapper.map_or_else(|| Command::new(program), |wrapper| in_wrapper(wrapper, program))
}

/// Runs the suite on a simulated machine of two GPUs.
fn run(simulator: &Path) -> Report {
    // Children of another user load the library too.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(simulator, folder.path().join("libcuda.so.1")).unwrap();
    let json = folder.path().join("simulated.json");
    let mut command = apart(env!("CARGO_BIN_EXE_conformance"));
    command
        .arg("run")
        .arg("--json")
        .arg(&json)
        .env("LD_LIBRARY_PATH", folder.path())
        .env("SIMCUDA_GPUS", "2");
    for variable in ["SIMCUDA_DIR", "SIMCUDA_MEMORY_MIB", "CUDA_VISIBLE_DEVICES"] {
        command.env_remove(variable);
    }
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    report(&json)
}

/// Both columns in a line.
fn line(pair: &Pair<'_>) -> String {
    let said = |row: Option<&gpu_handoff_e2e::conformance::report::Result>| {
        row.filter(|row| !row.outcome.is_empty()).map_or("nothing", |row| row.outcome.as_str()).to_owned()
    };
    let row = pair.simulated.or(pair.real).unwrap();
    format!("{}: simulated: {}; real: {}", row.id, said(pair.simulated), said(pair.real))
}

#[test]
fn the_simulator_answers_as_the_real_driver_did() {
    let Some(simulator) = simulator() else {
        let how = format!("{SIMULATOR} is missing: run `cargo build -p gpu-handoff-simcuda` first");
        assert!(!all(), "{how}");
        // Not by a macro: the harness hides what those print in a test that passes.
        let line = format!("SKIPPED: the_simulator_answers_as_the_real_driver_did: {how}\n");
        let _unheard = std::io::stderr().write_all(line.as_bytes());
        return;
    };
    let real =
        report(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/measurements/conformance-h200.json"));
    let simulated = run(&simulator);
    let pairs = pairs(&simulated, &real);
    let with = |verdict: Verdict| pairs.iter().filter(move |pair| pair.verdict == verdict).map(line);
    println!("{}", counts(&pairs));
    with(Verdict::NotRun).for_each(|line| println!("not run: {line}"));
    with(Verdict::NotMeasured).for_each(|line| println!("not measured: {line}"));

    let differ: Vec<_> = with(Verdict::Differs).collect();
    assert!(differ.is_empty(), "{differ:#?}");
    let failed: Vec<_> = simulated.results.iter().filter(|row| row.set_up_failed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let left_out = pairs.iter().filter(|pair| {
        let simulated = pair.simulated.is_some_and(gpu_handoff_e2e::conformance::report::Result::not_run);
        pair.verdict == Verdict::NotRun && simulated
    });
    let left_out: Vec<_> = left_out.map(line).collect();
    assert!(
        left_out.is_empty() || !all(),
        "GPU_HANDOFF_TESTS=all, but these rows were not tried: {left_out:#?}"
    );
    assert!(with(Verdict::Same).count() > 200 || !left_out.is_empty(), "{}", counts(&pairs));
}
