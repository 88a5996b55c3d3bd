//! The survey against the simulated driver.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
mod common;

use common::{role, said, say, simulator};
use gpu_handoff_cuda::{Driver, Survey};

/// A survey in a process with these variables.
fn survey(variables: &[(&str, &str)]) -> Option<Survey> {
    let folder = simulator()?;
    let mut command = role("role_survey", folder.path());
    command.env("SIMCUDA_DIR", folder.path().join("gpu")).env_remove("CUDA_VISIBLE_DEVICES");
    let lines = said(command.envs(variables.iter().copied()).output());
    Some(serde_json::from_str(&lines[0]).unwrap())
}

#[test]
#[ignore = "started by another test"]
fn role_survey() {
    let driver = Driver::load().unwrap();
    let survey = Survey::take(driver).unwrap();
    assert_eq!(driver.current_context(), Ok(None));
    say(serde_json::to_string(&survey).unwrap());
}

#[test]
fn all_devices_and_pairs_are_found() {
    let Some(survey) = survey(&[("SIMCUDA_GPUS", "3"), ("SIMCUDA_MEMORY_MIB", "64")]) else { return };
    assert_eq!(survey.cuda_version, 13000);
    let bus: Vec<_> = survey.devices.iter().map(|device| device.pci_bus_id.as_str()).collect();
    assert_eq!(bus, ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]);
    let uuids: Vec<_> = survey.devices.iter().map(|device| device.uuid).collect();
    assert_eq!(survey.links.len(), 6);
    for device in &survey.devices {
        assert_eq!((device.gpu, device.mig, device.memory_bytes), (device.uuid, false, 64 << 20));
        assert!(device.vmm && device.timeline && !device.name.is_empty());
        assert!(uuids.iter().all(|&other| survey.reach_each_other(device.uuid, other)));
        assert_eq!(survey.device(device.uuid), Some(device));
    }
}
