//! Descriptors over which a GPU worker crashes or hangs: that is their sender's loss, and nobody else's for long.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, Shared, legacy, vmm};
use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::codec::decode_broker;
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{
    BrokerBody, Claim, ClientBody, Keepsake, Reattached, SidecarBody, SlotBody,
};
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_simcuda::faults::{Action, Fault, arm, disarm, is_armed};

use crate::scene::{BYTES, Scene, Stage, device, eventually, expect_code, refused_with};

/// The fault that is armed.
const NEXT: &str = "next";

/// Lets the next import of a GPU worker end in this way.
fn next_import(stage: &Stage, does: Action) -> anyhow::Result<()> {
    next_call(stage, "cuMemImportFromShareableHandle", does)
}

/// Lets the next such call of a GPU worker end in this way.
fn next_call(stage: &Stage, call: &str, does: Action) -> anyhow::Result<()> {
    let folder = stage.node.gpu.device_folder().context("a simulated device")?;
    Ok(arm(folder, NEXT, &Fault::new(does).of_call(call).with_argument("gpu-worker").times(1))?)
}

/// The fault is over.
fn has_struck(stage: &Stage) -> anyhow::Result<()> {
    let folder = stage.node.gpu.device_folder().context("a simulated device")?;
    eventually("the fault strikes", || Ok(!is_armed(folder, NEXT)))
}

#[test]
fn a_member_that_breaks_workers_again_and_again() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
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
            Ok(())
        })
    })
}

#[test]
fn a_member_whose_memory_breaks_workers_when_it_is_let_go() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let item = || vmm("breaks-it-later", device(0), BYTES, memory.clone());
            for (does, broken) in [(Action::Crash, 1), (Action::Hang, 2), (Action::Crash, 3)] {
                // What the worker lets go when the fault comes is the member's, whichever it is.
                client.publish_one(item()?)??;
                next_call(stage, "cuMemUnmap", does)?;
                // The answer comes before that, and is true.
                client.publish_one(item()?)??;
                has_struck(stage)?;
                // Whoever asks next is not to blame, and finds that the worker is gone.
                let mut other = Client::greeted(stage.consumer_socket())?;
                other.publish_one(vmm("anothers", device(0), BYTES, memory.clone())?)??;
                let told = format!("broke the gpu worker gpu={} times={broken}", device(0));
                stage.node.wait_for_log(&told)?;
            }
            refused_with(client.publish_one(item()?)?, Code::MemberSuspended);
            Ok(())
        })
    })
}

#[test]
fn a_driver_that_has_no_room_to_look_costs_nobody_the_worker() -> anyhow::Result<()> {
    const OUT_OF_MEMORY: u32 = 2;
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let item = || vmm("no-room", device(0), BYTES, memory.clone());
            let workers = || stage.node.log().matches("gpu worker started").count();
            let before = workers();
            // More often than workers may break.
            for _ in 0..2 {
                for call in ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap"] {
                    next_call(stage, call, Action::Fail(OUT_OF_MEMORY))?;
                    let refusal = client.publish_one(item()?)?.unwrap_err();
                    expect_code(&refusal, Code::WorkerFailed);
                    ensure!(refusal.remedy().starts_with("free memory of the GPU"), "{refusal}");
                    has_struck(stage)?;
                    client.publish_one(item()?)??;
                }
            }
            ensure!((before, workers()) == (1, 1), "{before} workers before, {} after", workers());
            Ok(())
        })
    })
}

#[test]
fn a_member_whose_descriptors_make_the_driver_fail_again_and_again() -> anyhow::Result<()> {
    const ILLEGAL_ADDRESS: u32 = 700;
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let item = || vmm("fails", device(0), BYTES, memory.clone());
            for times in 1..=3 {
                // A worker that is there, and has made the memory that it compares with.
                client.publish_one(item()?)??;
                next_call(stage, "cuMemMap", Action::Fail(ILLEGAL_ADDRESS))?;
                refused_with(client.publish_one(item()?)?, Code::WorkerFailed);
                has_struck(stage)?;
                stage.node.wait_for_log(&format!("broke the gpu worker gpu={} times={times}", device(0)))?;
            }
            refused_with(client.publish_one(item()?)?, Code::MemberSuspended);
            let mut other = Client::greeted(stage.consumer_socket())?;
            other.publish_one(vmm("anothers", device(0), BYTES, memory.clone())?)??;
            Ok(())
        })
    })
}

#[test]
fn memory_of_a_lost_gpu() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let item = || vmm("lost", device(0), BYTES, memory.clone());
            let folder = stage.node.gpu.device_folder().context("a simulated device")?;
            let lost = Fault::new(Action::Lose(0)).with_argument("gpu-worker");
            arm(folder, NEXT, &lost)?;
            // The worker that was there finds out, and so does each that is started after it: nobody broke those.
            for _ in 0..5 {
                let refusal = client.publish_one(item()?)?.unwrap_err();
                expect_code(&refusal, Code::GpuLost);
                ensure!(refusal.to_string().contains(&device(0).to_string()), "{refusal}");
            }
            disarm(folder, NEXT)?;
            eventually("the GPU is there again", || Ok(client.publish_one(item()?)?.is_ok()))?;
            Ok(())
        })
    })
}

#[test]
fn what_waits_behind_a_descriptor_that_hangs_is_asked_again() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let request = hang_worker(stage, &mut client, memory)?;
            let begin = std::time::Instant::now();
            let mut other = Client::greeted(stage.consumer_socket())?;
            other.publish_one(vmm("waits", device(0), BYTES, memory.clone())?)??;
            ensure!(begin.elapsed() < Duration::from_secs(10), "it waited {:?}", begin.elapsed());
            let BrokerBody::Published(outcomes) = client.answer(request)? else {
                anyhow::bail!("no outcomes")
            };
            refused_with(outcomes.into_iter().next().context("an outcome")?, Code::WorkerTimeout);
            Ok(())
        })
    })
}

/// Lets the next import of a GPU worker hang, and has the worker begin it.
fn hang_worker(stage: &Stage, client: &mut Client, memory: &Shared) -> anyhow::Result<u64> {
    next_import(stage, Action::Hang)?;
    let item = vmm("hangs", device(0), BYTES, Arc::clone(memory))?;
    let request = client.begin(ClientBody::Publish(vec![item]))?;
    has_struck(stage)?;
    Ok(request)
}

#[test]
fn a_connection_does_not_wait_for_an_offer_that_is_being_checked() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let published = client.publish_one(vmm("kept", device(0), BYTES, memory.clone())?)??;
            let receipt = published.receipt.context("a receipt")?;
            let item = Keepsake { id: published.id, receipt, descriptor: Some(memory.clone()) };
            let mut sidecar = stage.rough_sidecar()?;
            let request = hang_worker(stage, &mut client, memory)?;
            let offer = sidecar.begin(SidecarBody::Offer(vec![item]))?;
            let done = sidecar.begin(SidecarBody::OfferDone)?;
            let (_application, broker) = SeqPacket::pair()?;
            let hand_on = sidecar.begin(SidecarBody::HandOn(broker.into_fd()))?;
            let mut answers = Vec::new();
            while answers.len() < 2 {
                let message = sidecar.hear()?.context("the slot ended the connection")?;
                match message.body {
                    SlotBody::HandedOn(outcome) => outcome?,
                    SlotBody::Offered(outcomes) => ensure!(outcomes == [Ok(())], "{outcomes:?}"),
                    SlotBody::Keep(_) => continue,
                    other => anyhow::bail!("{other:?}"),
                }
                answers.push(message.request);
            }
            ensure!(answers == [hand_on, offer], "{answers:?} of {offer}, {done}, {hand_on}");
            client.answer(request)?;
            Ok(())
        })
    })
}

#[test]
fn what_is_shown_again_waits_for_room_where_what_is_new_is_refused() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let published = client.publish_one(vmm("kept", device(0), BYTES, memory.clone())?)??;
            let receipt = published.receipt.context("a receipt")?;
            let mut first = Client::greeted(stage.rough.socket())?;
            hang_worker(stage, &mut first, memory)?;
            // Behind that one as many as the member may have undecided.
            let (mut others, mut refused) = (Vec::new(), None);
            while refused.is_none() {
                let mut other = Client::greeted(stage.rough.socket())?;
                let item = |i| vmm(&format!("{}-{i}", others.len()), device(0), BYTES, memory.clone());
                let items = (0..MESSAGE_ITEMS).map(item).collect::<anyhow::Result<_>>()?;
                let request = other.begin(ClientBody::Publish(items))?;
                // A refusal comes at once; what is taken in waits for the worker.
                if let Some(frame) = other.wire.recv_within(Duration::from_millis(20)).ok().flatten() {
                    let (message, _) = decode_broker(frame)?;
                    ensure!(message.request == request, "{message:?}");
                    let BrokerBody::Published(outcomes) = message.body else { anyhow::bail!("no outcomes") };
                    refused = outcomes.into_iter().next().context("an outcome")?.err();
                }
                others.push(other);
                ensure!(others.len() < 40, "any number of descriptors may wait");
            }
            expect_code(&refused.context("a refusal")?, Code::QuotaInFlight);
            let claim = Claim { receipt, descriptor: Some(memory.clone()) };
            match client.ask(ClientBody::Reattach(vec![claim; MESSAGE_ITEMS]))? {
                BrokerBody::Reattached(outcomes) => {
                    ensure!(outcomes.iter().all(|o| *o == Ok(Reattached::Restored)), "{outcomes:?}");
                }
                other => anyhow::bail!("{other:?}"),
            }
            Ok(())
        })
    })
}
