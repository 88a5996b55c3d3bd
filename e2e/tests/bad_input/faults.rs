//! Descriptors over which a GPU worker crashes or hangs: that is their sender's loss, and nobody else's for long.

use std::time::Duration;

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, legacy, vmm};
use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::message::{BrokerBody, Carrier, ClientBody};
use gpu_handoff_simcuda::faults::{Action, Fault, arm};

use crate::scene::{BYTES, Scene, Stage, device, expect_code, refused_with};

/// Lets the next import of a GPU worker end in this way.
fn next_import(stage: &Stage, does: Action) -> anyhow::Result<()> {
    let folder = stage.node.gpu.device_folder().context("a simulated device")?;
    let import = Fault::new(does).of_call("cuMemImportFromShareableHandle").with_argument("gpu-worker");
    Ok(arm(folder, "next-import", &import.times(1))?)
}

#[test]
fn a_member_that_breaks_workers_again_and_again() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("a legacy buffer") };
        let item = || vmm("breaks-it", device(0), BYTES, memory.clone());
        for (does, code) in [
            (Action::Crash, Code::WorkerFailed),
            (Action::Hang, Code::WorkerTimeout),
            (Action::Crash, Code::WorkerFailed),
        ] {
            next_import(stage, does)?;
            refused_with(client.publish_one(item()?)?, code);
        }
        let refusal = client.publish_one(item()?)?.unwrap_err();
        expect_code(&refusal, Code::MemberSuspended);
        assert_eq!(refusal.compared()[0].found, "3", "{refusal}");
        // Another process of the member is no other member, and what needs no worker is not concerned.
        let mut again = Client::greeted(stage.rough.socket())?;
        refused_with(again.publish_one(item()?)?, Code::MemberSuspended);
        again.publish_one(legacy("no-worker", device(0), BYTES)?)??;
        // Other members are served.
        let mut other = Client::greeted(stage.consumer_socket())?;
        other.publish_one(vmm("anothers", device(0), BYTES, memory.clone())?)??;
        drop((client, again, other, grant));
        source.finish()
    })
}

#[test]
fn what_waits_behind_a_descriptor_that_hangs_is_asked_again() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("a legacy buffer") };
        next_import(stage, Action::Hang)?;
        let request =
            client.begin(ClientBody::Publish(vec![vmm("hangs", device(0), BYTES, memory.clone())?]))?;
        let folder = stage.node.gpu.device_folder().context("a simulated device")?;
        crate::scene::eventually("the worker hangs", || {
            Ok(!gpu_handoff_simcuda::faults::is_armed(folder, "next-import"))
        })?;
        let begin = std::time::Instant::now();
        let mut other = Client::greeted(stage.consumer_socket())?;
        other.publish_one(vmm("waits", device(0), BYTES, memory.clone())?)??;
        ensure!(begin.elapsed() < Duration::from_secs(10), "it waited {:?}", begin.elapsed());
        let BrokerBody::Published(outcomes) = client.answer(request)? else { anyhow::bail!("no outcomes") };
        refused_with(outcomes.into_iter().next().context("an outcome")?, Code::WorkerTimeout);
        drop((client, other, grant));
        source.finish()
    })
}
