//! The survey against the simulated driver.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

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
fn links_have_a_direction() {
    let Some(survey) = survey(&[("SIMCUDA_GPUS", "3"), ("SIMCUDA_P2P", "0-1,1>2")]) else { return };
    let uuids: Vec<_> = survey.devices.iter().map(|device| device.uuid).collect();
    let access: Vec<_> =
        survey.links.iter().filter(|link| link.access).map(|link| (link.from, link.to)).collect();
    assert_eq!(access, [(uuids[0], uuids[1]), (uuids[1], uuids[0]), (uuids[1], uuids[2])]);
    assert!(survey.reach_each_other(uuids[0], uuids[1]) && !survey.reach_each_other(uuids[1], uuids[2]));
}

#[test]
fn an_instance_is_surveyed_alone_and_tells_its_gpu() {
    let split = [("SIMCUDA_GPUS", "2"), ("SIMCUDA_MIG", "1:2")];
    let Some(first) = survey(&split) else { return };
    let [instance] = &first.devices[..] else { panic!("{first:?}") };
    assert!(instance.mig && instance.gpu != instance.uuid && instance.name.contains(" MIG "), "{instance:?}");
    assert_eq!((instance.pci_bus_id.as_str(), &first.links[..]), ("0000:02:00.0", &[][..]));
    let whole = survey(&[split[0], split[1], ("CUDA_VISIBLE_DEVICES", "0")]).unwrap();
    assert!(!whole.devices[0].mig && whole.devices[0].gpu == whole.devices[0].uuid);
    let second = instance.uuid.to_string().replace("GPU-", "MIG-").replace("0101", "0201");
    let second = survey(&[split[0], split[1], ("CUDA_VISIBLE_DEVICES", &second)]).unwrap();
    assert_eq!((second.devices[0].mig, second.devices[0].gpu), (true, instance.gpu));
    assert_ne!(second.devices[0].uuid, instance.uuid);
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
