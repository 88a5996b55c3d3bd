//! Memory of another GPU than the one that the importer maps it on.

use gpu_handoff_e2e::folder::Folder;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use gpu_handoff_cuda::Survey;
use gpu_handoff_e2e::agent::{Answer, Command as Order};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::gpu::{Gpu, Settings};
use gpu_handoff_e2e::node::{Member, Node};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_sys::isolate::{self, Isolation, available};
use serde_json::json;

use crate::scene::{fill, publish};
use crate::source::SOURCE;

/// A node with several GPUs; a buffer on the first of them is published.
struct Machine {
    node: Node,
    pods: [Pod; 2],
    producer: App,
    survey: Survey,
}

impl Machine {
    /// `held` are the GPUs of the importing pod, by their place in the survey; `None`: all.
    fn start(gpus: usize, settings: Settings, held: Option<&[usize]>) -> anyhow::Result<Self> {
        let (gpu, survey) = Gpu::machine(&Folder::shared()?, gpus, settings)?;
        let members = [("a", "producer"), ("b", "consumer")].map(|(_, pod)| Member { pod, group: "group" });
        let mut list = members
            .clone()
            .map(|m| json!({ "slot": m.pod, "namespace": "demo", "pod": m.pod, "group": m.group }));
        if let Some(held) = held {
            let held: Vec<_> = held.iter().map(|n| survey.devices[*n].uuid.to_string()).collect();
            list[1]["devices"] = json!(held);
        }
        let node =
            Node::start_from(&Folder::shared()?, Arc::new(gpu), &members, &json!({ "members": list }))?;
        node.wait_for_log("surveyed the GPUs")?;
        let pods = [Pod::start(&node, "producer", Walls::None)?, Pod::start(&node, "consumer", Walls::None)?];
        let mut producer = pods[0].connected(&node)?;
        fill(&mut producer)?;
        publish(&mut producer, SOURCE)?;
        Ok(Self { node, pods, producer, survey })
    }

    fn device(&self, number: usize) -> DeviceUuid {
        self.survey.devices[number].uuid
    }

    /// A process that will acquire the buffer to map it on that GPU.
    fn importer(&self, on: DeviceUuid) -> anyhow::Result<Command> {
        let mut command = Command::new(Folder::shared()?.binary("rough")?);
        command.arg("reach").arg(on.to_string()).arg("--socket").arg(self.pods[1].socket());
        Ok(command)
    }

    fn said(command: &mut Command) -> anyhow::Result<String> {
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What such a process is told.
    fn outcome(&self, on: DeviceUuid) -> anyhow::Result<String> {
        Self::said(&mut self.importer(on)?)
    }

    /// An application with the client library whose one GPU this is, and what it is answered when it acquires the buffer.
    fn acquires(&self, on: DeviceUuid) -> anyhow::Result<(App, Answer)> {
        let mut command = Command::new(Folder::shared()?.binary("agent")?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        isolate::die_with_parent(&mut command);
        self.node.gpu.give_to(&mut command, None);
        command.env("CUDA_VISIBLE_DEVICES", on.to_string());
        let mut app = App::new(command.spawn()?, false)?;
        app.connect(self.pods[1].socket())?;
        let (name, lease) = (Some(SOURCE.to_owned()), "lease".to_owned());
        let answer =
            app.ask(&Order::Acquire { name, id: None, newer_than: 0, wait_ms: 0, lease, announce: false })?;
        Ok((app, answer))
    }

    fn end(self) -> anyhow::Result<()> {
        self.producer.finish()?;
        for pod in self.pods {
            pod.stop()?;
        }
        self.node.stop()
    }
}

/// Checks a refusal's code, and that it names all of what was compared.
fn assert_refused(said: &str, code: &str, named: &[&dyn std::fmt::Display]) {
    assert!(said.contains(code), "{said}");
    for what in named {
        assert!(said.contains(&what.to_string()), "{said} does not name {what}");
    }
}

#[test]
fn a_gpu_that_reaches_the_other_and_whose_process_has_its_node() -> anyhow::Result<()> {
    let machine = Machine::start(2, Settings::new(), None)?;
    assert_eq!(machine.outcome(machine.device(0))?.trim(), "granted");
    assert_eq!(machine.outcome(machine.device(1))?.trim(), "granted");
    // The variable hides a GPU from the program, not from the driver.
    let mut hidden = machine.importer(machine.device(1))?;
    hidden.env("CUDA_VISIBLE_DEVICES", machine.device(1).to_string());
    assert_eq!(Machine::said(&mut hidden)?.trim(), "granted");
    machine.end()
}

#[test]
fn a_gpu_whose_node_the_process_does_not_have() -> anyhow::Result<()> {
    let machine = Machine::start(2, Settings::new(), None)?;
    let privilege = match available() {
        Ok(privilege) => privilege,
        Err(e) => {
            ensure!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "no namespaces: {e}");
            let line = format!("SKIPPED: a_gpu_whose_node_the_process_does_not_have: no namespaces ({e})\n");
            let _unheard = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            return machine.end();
        }
    };
    let nodes = machine.node.gpu.device_folder().context("a simulated machine")?.join("dev");
    let empty = tempfile::tempdir()?;
    let hidden = |place: &std::path::Path| -> anyhow::Result<String> {
        let mut importer = machine.importer(machine.device(1))?;
        Isolation::own_pids(privilege).bind(place, &nodes)?.apply(&mut importer);
        Machine::said(&mut importer)
    };
    // None at all; and another file in the place of the first GPU's.
    let none = hidden(empty.path())?;
    assert_refused(&none, "GPU_NOT_REACHABLE", &[&machine.device(0)]);
    for name in ["nvidia0", "nvidia1"] {
        std::fs::write(empty.path().join(name), "")?;
    }
    assert_refused(&hidden(empty.path())?, "GPU_NOT_REACHABLE", &[&machine.device(0)]);
    // Set apart in the same way, but with its nodes.
    assert_eq!(hidden(&nodes)?.trim(), "granted");
    machine.end()
}

#[test]
fn gpus_that_do_not_reach_each_other_both_ways() -> anyhow::Result<()> {
    for pairs in ["none", "0>1", "1>0"] {
        let machine = Machine::start(2, vec![("SIMCUDA_P2P", pairs)], None)?;
        let (one, other) = (machine.device(0), machine.device(1));
        assert_refused(&machine.outcome(other)?, "NO_PEER_ACCESS", &[&one, &other]);
        assert_eq!(machine.outcome(one)?.trim(), "granted");
        machine.end()?;
    }
    Ok(())
}

#[test]
fn an_application_is_told_by_the_node_what_its_gpu_does_not_reach() -> anyhow::Result<()> {
    for pairs in ["none", "0>1,1>0"] {
        let machine = Machine::start(2, vec![("SIMCUDA_P2P", pairs)], None)?;
        for number in [0, 1] {
            let (app, answer) = machine.acquires(machine.device(number))?;
            match (&answer, pairs == "none" && number == 1) {
                (Answer::Refused { code, .. }, true) if code == "NO_PEER_ACCESS" => {}
                (Answer::Acquired { .. }, false) => {}
                _ => anyhow::bail!("GPU {number}, peers {pairs}: {answer:?}"),
            }
            app.finish()?;
        }
        machine.end()?;
    }
    Ok(())
}

#[test]
fn a_gpu_that_the_pod_does_not_hold() -> anyhow::Result<()> {
    let machine = Machine::start(3, Settings::new(), Some(&[1]))?;
    let (held, other) = (machine.device(1), machine.device(2));
    assert_refused(&machine.outcome(other)?, "DEVICE_MISMATCH", &[&held, &other]);
    assert_eq!(machine.outcome(held)?.trim(), "granted");
    machine.end()
}

/// Where a GPU is split, a process without more to say sees its first instance, and what it publishes is of that.
#[test]
fn a_mig_instance() -> anyhow::Result<()> {
    let machine = Machine::start(2, vec![("SIMCUDA_MIG", "1:2")], None)?;
    let instance = machine.survey.devices.first().context("an instance")?;
    ensure!(instance.mig, "the driver shows no instance: {:?}", machine.survey);
    assert_refused(&machine.outcome(instance.gpu)?, "MIG_ISOLATED", &[&instance.uuid, &instance.gpu]);
    assert_eq!(machine.outcome(instance.uuid)?.trim(), "granted");
    machine.end()
}
