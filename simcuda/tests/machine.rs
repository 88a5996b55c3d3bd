//! Several GPUs: the driver's files, missing device nodes, links between GPUs, MIG instances.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::loaded::{Cuda, alone};
use common::{Machine, Running, wait_for};

const BYTES: &str = "8388608";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The directory of the machine that this process is on.
fn dir() -> PathBuf {
    std::env::var_os("SIMCUDA_DIR").unwrap().into()
}

fn count(cuda: &Cuda) -> usize {
    cuda.get("cuDeviceGetCount", &[]) & 0xffff_ffff
}

/// The UUID of a device as the driver's tools print it, without the kind; the first version of the call if told so.
fn uuid(cuda: &Cuda, device: usize, call: &str) -> String {
    let mut bytes = [0_u8; 16];
    cuda.ok(call, &[bytes.as_mut_ptr().addr(), device]);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn text(cuda: &Cuda, call: &str, device: usize) -> String {
    let mut bytes = [0_u8; 64];
    cuda.ok(call, &[bytes.as_mut_ptr().addr(), bytes.len(), device]);
    std::ffi::CStr::from_bytes_until_nul(&bytes).unwrap().to_str().unwrap().to_owned()
}

/// The value of a line of the driver's information file.
fn value<'a>(information: &'a str, key: &str) -> &'a str {
    information.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim()
}

/// Whether this process has a file open.
fn holds(file: &Path) -> bool {
    let wanted = fs::metadata(file).map(|file| (file.dev(), file.ino())).unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter_map(|entry| fs::metadata(entry.path()).ok()).any(|file| (file.dev(), file.ino()) == wanted)
}

#[test]
fn the_drivers_files_tell_which_node_a_device_has() {
    let variables = [("SIMCUDA_GPUS", "3"), (VISIBLE, "2,0")];
    alone("the_drivers_files_tell_which_node_a_device_has", &variables, |cuda| {
        cuda.ok("cuInit", &[0]);
        let tree = dir().join("proc/driver/nvidia");
        assert!(fs::read_to_string(tree.join("version")).unwrap().contains("  580.159.04  "));
        assert_eq!(fs::read_dir(tree.join("gpus")).unwrap().count(), 3);
        for (device, minor) in [(0, 2), (1, 0)] {
            let bus = text(cuda, "cuDeviceGetPCIBusId", device).to_lowercase();
            let information = fs::read_to_string(tree.join("gpus").join(bus).join("information")).unwrap();
            let uuid = format!("GPU-{}", uuid(cuda, device, "cuDeviceGetUuid_v2"));
            assert_eq!(value(&information, "GPU UUID:"), uuid);
            assert_eq!(value(&information, "Device Minor:"), minor.to_string());
            assert!(holds(&dir().join(format!("dev/nvidia{minor}"))));
        }
        assert!(!holds(&dir().join("dev/nvidia1")), "hidden by the variable");
    });
}

#[test]
fn a_machine_stays_as_it_was_made_and_grows_when_told() {
    alone("a_machine_stays_as_it_was_made_and_grows_when_told", &[], |cuda| {
        if std::env::var_os("SIMCUDA_TEST_ROLE").is_some() {
            cuda.ok("cuInit", &[0]);
            return println!("\nSEES {}", count(cuda));
        }
        let seen = |gpus: Option<&str>| {
            let mut child = common::loaded::itself("a_machine_stays_as_it_was_made_and_grows_when_told");
            child.envs(gpus.map(|gpus| ("SIMCUDA_GPUS", gpus)));
            let said = common::output(&mut child);
            said.lines().find_map(|line| line.strip_prefix("SEES ")).unwrap_or(&said).to_owned()
        };
        assert_eq!([seen(Some("2")), seen(None), seen(Some("3")), seen(None)], ["2", "2", "3", "3"]);
        fs::remove_file(dir().join("dev/nvidia1")).unwrap();
        let with = [seen(None), seen(Some("4")), seen(Some("1")), seen(Some("4"))];
        assert_eq!(with, ["2", "3", "1", "3"], "a node that was taken away stays away");
    });
}

#[test]
fn a_variable_that_makes_no_sense_is_said_and_refused() {
    for (name, wrong) in [("SIMCUDA_GPUS", "two"), ("SIMCUDA_MIG", "0"), ("SIMCUDA_P2P", "0/1")] {
        let machine = Machine::new();
        let mut child = common::loaded::itself("a_variable_that_makes_no_sense_is_said_and_refused");
        if std::env::var_os("SIMCUDA_TEST_ROLE").is_some() {
            return assert_eq!(Cuda::load().call("cuInit", &[0]), 1);
        }
        let output = child.env("SIMCUDA_DIR", machine.gpu()).env(name, wrong).output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("simcuda: {name}={wrong} is not understood")), "{said}");
    }
}

/// The probe on a machine of two GPUs, or nothing where it cannot be had.
fn probe() -> Option<(Machine, PathBuf)> {
    let header = match common::header() {
        Ok(header) => header,
        Err(reason) => {
            common::skip(&reason);
            return None;
        }
    };
    let machine = Machine::new();
    let probe = machine.compile("ipcprobe", &header);
    Some((machine, probe))
}

/// What the importer said, or how it died: it starts when the exporter, on the first device that it sees, is ready and
/// `between` has been done.
fn exchange(
    (machine, probe): &(Machine, PathBuf),
    kind: &str,
    exporter: &[(&str, &str)],
    importer: &[(&str, &str)],
    between: impl FnOnce(),
) -> String {
    let number = fs::read_dir(machine.gpu().parent().unwrap()).unwrap().count();
    let meeting = machine.meeting(&format!("meeting-{number}"));
    let mut command = machine.command(&[], probe);
    command.envs(exporter.iter().copied()).args(["export", kind, BYTES]).arg(&meeting);
    let mut exporter = Running::start(&mut command, &meeting.join("export.log"));
    wait_for("the handle", || meeting.join("handle").exists().then_some(()));
    between();
    let mut command = machine.command(&[], probe);
    command.envs(importer.iter().copied()).args(["import", kind]).arg(&meeting);
    let output = command.output().unwrap();
    fs::write(meeting.join("done"), "").unwrap();
    // One that died before it came for the descriptor leaves its maker waiting.
    if !output.status.success() {
        exporter.kill();
    }
    let died = std::os::unix::process::ExitStatusExt::signal(&output.status);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find(|line| line.starts_with("RESULT") || line.starts_with("FAIL"));
    let is_answer = |word: &&str| *word == "OK" || word.starts_with("CUDA_ERROR");
    match (died, line.and_then(|line| line.split_ascii_whitespace().find(is_answer))) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(answer)) => answer.to_owned(),
        (None, None) => said,
    }
}

#[test]
fn a_gpu_that_the_variable_hides_is_reached_and_one_without_a_node_is_not() {
    let Some(scene) = probe() else { return };
    let node = scene.0.gpu().join("dev/nvidia0");
    let aside = scene.0.gpu().join("aside");
    let gpus = ("SIMCUDA_GPUS", "2");
    let none = ["CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_DEVICE", "signal 11", "OK"];
    for (kind, none) in ["legacy", "vmm", "pool", "event"].into_iter().zip(none) {
        let hidden = exchange(&scene, kind, &[gpus, (VISIBLE, "0")], &[gpus, (VISIBLE, "1")], || ());
        assert_eq!(hidden, "OK", "{kind}");
        let take_away = || fs::rename(&node, &aside).unwrap();
        let missing = exchange(&scene, kind, &[gpus, (VISIBLE, "0")], &[gpus], take_away);
        assert_eq!(missing, none, "{kind}");
        fs::rename(&aside, &node).unwrap();
    }
}

#[test]
fn gpus_without_a_link_do_not_reach_each_other() {
    let Some(scene) = probe() else { return };
    let both = [("SIMCUDA_GPUS", "3"), ("SIMCUDA_P2P", "0-1,1>2")];
    let peers = common::output(scene.0.command(&[], &scene.1).envs(both).arg("peers"));
    let can: Vec<_> =
        peers.lines().filter(|line| line.contains(" can 1 ") && line.contains(" access 1 ")).collect();
    let pairs: Vec<_> = can.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(pairs, ["0->1", "1->0", "1->2"], "{peers}");
    for (kind, refused) in
        [("legacy", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"), ("vmm", "CUDA_ERROR_INVALID_DEVICE")]
    {
        for (importer, expected) in [("1", "OK"), ("0", refused)] {
            let importer = [both[0], both[1], ("DEV", importer)];
            let exporter = [both[0], both[1], ("DEV", "2")];
            assert_eq!(exchange(&scene, kind, &exporter, &importer, || ()), expected, "{kind}");
        }
    }
}

#[test]
fn an_instance_is_a_device_of_its_own_that_no_other_reaches() {
    let variables = [("SIMCUDA_GPUS", "2"), ("SIMCUDA_MIG", "1:2"), ("SIMCUDA_MEMORY_MIB", "4096")];
    alone("an_instance_is_a_device_of_its_own_that_no_other_reaches", &variables, |cuda| {
        cuda.ok("cuInit", &[0]);
        assert_eq!(count(cuda), 1, "the first instance and nothing else");
        assert_eq!(text(cuda, "cuDeviceGetName", 0), "Simulated GPU MIG 1g.2gb");
        let (instance, gpu) = (uuid(cuda, 0, "cuDeviceGetUuid_v2"), uuid(cuda, 0, "cuDeviceGetUuid"));
        assert_ne!(instance, gpu);
        let mut bytes = 0_usize;
        cuda.ok("cuDeviceTotalMem_v2", &[(&raw mut bytes).addr(), 0]);
        assert_eq!(bytes, 2 << 30);
        assert!(holds(&dir().join("dev/nvidia1")) && !holds(&dir().join("dev/nvidia0")));
    });
    let Some(scene) = probe() else { return };
    let second = "MIG-73696d63-7564-6100-4000-800000000201";
    for (kind, other) in [("legacy", "CUDA_ERROR_INVALID_VALUE"), ("vmm", "CUDA_ERROR_INVALID_DEVICE")] {
        let with = |instance: &'static str| [variables[0], variables[1], (VISIBLE, instance)];
        assert_eq!(exchange(&scene, kind, &with(second), &with(second), || ()), "OK", "{kind}");
        assert_eq!(exchange(&scene, kind, &with(second), &with("1"), || ()), other, "{kind}");
        assert_eq!(exchange(&scene, kind, &with("0"), &with("1"), || ()), other, "{kind}");
    }
}
