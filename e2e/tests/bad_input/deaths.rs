//! Peers that die in the middle. What they held ends with them, and nothing else does.

use gpu_handoff_e2e::folder::Folder;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use gpu_handoff_e2e::agent::Command as Order;
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::gpu::Gpu;
use gpu_handoff_e2e::node::{Member, Node, PATIENCE, kill};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_e2e::rough::{Client, vmm};
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, ClientBody, EndReason, Event, Target};
use gpu_handoff_protocol::{BufferId, Code};

use crate::scene::{
    BYTES, Scene, Stage, acquire, acquired, device, eventually, publish, refused_with, verify,
};
use crate::source::SOURCE;

/// Starts the program `rough` in the misbehaving pod, and waits for the first line that it prints.
fn rough(stage: &Stage, deed: &str) -> anyhow::Result<(Child, String)> {
    rough_with_sink(stage, deed, SocketAddr::from(([127, 0, 0, 1], 1)))
}

/// The same with a place where somebody accepts connections and reads nothing.
fn rough_with_sink(stage: &Stage, deed: &str, sink: SocketAddr) -> anyhow::Result<(Child, String)> {
    let mut command = Command::new(Folder::shared()?.binary("rough")?);
    command.arg(deed).arg("--socket").arg(stage.rough.socket()).args(["--source", SOURCE]);
    command.arg("--sink").arg(sink.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start `rough`")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
    Ok((child, line.trim().to_owned()))
}

/// Waits for the next event that `pick` picks, of a watch or a notice.
fn event<T>(client: &mut Client, what: &str, pick: impl Fn(&Event) -> Option<T>) -> anyhow::Result<T> {
    loop {
        let message: BrokerMessage =
            client.hear()?.with_context(|| format!("the connection ended before {what}"))?;
        if let BrokerBody::Event(event) = &message.body
            && let Some(found) = pick(event)
        {
            return Ok(found);
        }
    }
}

fn gone(wanted: BufferId) -> impl Fn(&Event) -> Option<EndReason> {
    move |event| match event {
        Event::Gone { id, reason } if *id == wanted => Some(*reason),
        _ => None,
    }
}

#[test]
fn a_producer_with_many_publishes_on_the_way() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        for round in 0..3 {
            let (mut child, said) = rough(stage, "publish")?;
            assert_eq!(said, "publishing", "round {round}");
            // It has sent far more than it was answered for.
            eventually("some are published", || {
                Ok(stage.node.log().contains(&format!("name=flood-{}", 100)))
            })?;
            kill(child.id())?;
            child.wait()?;
        }
        let mut client = Client::greeted(stage.rough.socket())?;
        eventually("its buffers are gone", || {
            let request = client.begin(ClientBody::Watch)?;
            let mut flood = 0;
            loop {
                match client.answer(request)? {
                    BrokerBody::Event(Event::SnapshotDone) => break,
                    BrokerBody::Event(Event::Appeared(info)) => {
                        flood += usize::from(info.facts.name.as_str().starts_with("flood"));
                    }
                    _ => {}
                }
            }
            client.begin(ClientBody::Cancel { request })?;
            Ok(flood == 0)
        })?;
        drop(client);
        source.finish()
    })
}

#[test]
fn a_consumer_that_waits() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut consumers: Vec<App> =
            (0..3).map(|_| stage.connected(&stage.rough)).collect::<Result<_, _>>()?;
        for consumer in &mut consumers {
            let Order::Acquire { name, id, newer_than, wait_ms, lease, .. } =
                acquire("never", 0, PATIENCE * 10)
            else {
                anyhow::bail!("no acquire")
            };
            let order = Order::Acquire { name, id, newer_than, wait_ms, lease, announce: true };
            consumer.ask(&order)?;
        }
        for consumer in &mut consumers {
            consumer.kill()?;
        }
        for consumer in consumers {
            consumer.reap()?;
        }
        // What they waited for comes too late for them, and is given to nobody.
        stage.with_lent(|mut client, memory| {
            let id = client.publish_one(vmm("never", device(0), BYTES, memory.clone())?)??.id;
            assert_eq!(client.retire(id, Duration::ZERO)?.unwrap(), 0);
            Ok(())
        })
    })
}

#[test]
fn a_consumer_with_leases() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        stage.with_lent(|mut owner, memory| {
            let item = vmm("leased", device(0), BYTES, memory.clone())?;
            let id = owner.publish_one(item)??.id;
            let mut consumer = stage.connected(&stage.rough)?;
            acquired(&mut consumer, "leased")?;
            verify(&mut consumer)?;
            assert_eq!(owner.retire(id, Duration::from_secs(600))?.unwrap(), 1);
            consumer.kill()?;
            // The last lease ends with its holder, and the buffer with it: long before the deadline.
            assert_eq!(event(&mut owner, "the buffer is gone", gone(id))?, EndReason::Retired);
            consumer.reap()?;
            Ok(())
        })
    })
}

#[test]
fn a_producer_whose_buffer_is_leased() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut source = stage.source()?;
        let mut consumer = stage.connected(&stage.rough)?;
        acquired(&mut consumer, SOURCE)?;
        let (mut client, grant) = stage.with_memory()?;
        let id = grant.buffer.id;
        source.kill()?;
        let leases = event(&mut client, "the buffer is orphaned", |event| match event {
            Event::Orphaned { id: orphan, reason: EndReason::OwnerDied, leases } if *orphan == id => {
                Some(*leases)
            }
            _ => None,
        })?;
        assert_eq!(leases, 2);
        source.reap()?;
        refused_with(client.acquire(Target::Id(id), Duration::ZERO)?, Code::Retired);
        // The memory outlives its maker for as long as somebody holds it.
        verify(&mut consumer)?;
        assert!(client.release(vec![grant.lease])?[0].is_ok());
        consumer.kill()?;
        assert_eq!(event(&mut client, "the buffer is gone", gone(id))?, EndReason::OwnerDied);
        consumer.reap()
    })
}

/// A connection that a child inherited does not keep its parent's rights alive.
#[test]
fn an_application_whose_child_holds_the_connection() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let (mut client, grant) = stage.with_memory()?;
        let (mut parent, child) = rough(stage, "fork")?;
        let child: u32 = child.parse().context("the child's number")?;
        let theirs = client.acquire(Target::Name("of-the-dead".parse()?), PATIENCE)??;
        // Two leases of the source: this client's and the parent's.
        kill(parent.id())?;
        parent.wait()?;
        let ended = event(&mut client, "the parent's buffer ends", |event| match event {
            Event::Orphaned { id, reason, leases: 1 } if *id == theirs.buffer.id => Some(*reason),
            _ => None,
        })?;
        assert_eq!(ended, EndReason::OwnerDied);
        ensure!(std::path::Path::new(&format!("/proc/{child}/fd")).exists(), "the child is gone");
        client.begin(ClientBody::Release(vec![theirs.lease]))?;
        assert_eq!(
            event(&mut client, "the parent's buffer is gone", gone(theirs.buffer.id))?,
            EndReason::OwnerDied
        );
        // Its lease of the source has ended too: the source goes with the last one that is known of.
        let id = grant.buffer.id;
        source.finish()?;
        let leases = event(&mut client, "the source is orphaned", |event| match event {
            Event::Orphaned { id: orphan, leases, .. } if *orphan == id => Some(*leases),
            _ => None,
        })?;
        assert_eq!(leases, 1);
        kill(child)
    })
}

#[test]
fn the_sidecar() -> anyhow::Result<()> {
    let mut scene = Scene::start()?;
    scene.act(|stage| {
        let mut source = stage.source()?;
        let mut consumer = stage.connected(&stage.rough)?;
        acquired(&mut consumer, SOURCE)?;
        // A sidecar of the same slot, beside the one that the pod keeps.
        kill(stage.rough.sidecar_pid()?)?;
        stage.node.wait_for_log("sidecar disconnected")?;
        // Sessions outlive it: it was their door, not their way.
        verify(&mut consumer)?;
        publish(&mut source, "another")?;
        consumer.done(&Order::Release { lease: "lease".to_owned() })?;
        acquired(&mut consumer, "another")?;
        verify(&mut consumer)?;
        ensure!(
            Client::connect(stage.rough.socket()).is_err(),
            "somebody listens on the socket of a dead sidecar"
        );
        // Its successor takes its place, the socket's file too.
        let successor = Pod::start(&stage.node, "rough", Walls::None)?;
        ensure!(Client::greeted(successor.socket())?.acquire_nothing()?, "the successor does not serve");
        consumer.finish()?;
        source.finish()?;
        successor.stop()
    })?;
    // The dead one cannot be stopped in good order.
    scene.end_without_rough()
}

#[test]
fn the_gpu_worker() -> anyhow::Result<()> {
    Scene::start()?.run_disturbed(|stage| {
        stage.with_lent(|mut client, memory| {
            let item = |name: &str| vmm(name, device(0), BYTES, memory.clone());
            for round in 0..3 {
                let worker = stage.worker()?;
                // In the middle of much work: what it was asked is refused with a name, or was answered before.
                let items = (0..64).map(|i| item(&format!("{round}-{i}"))).collect::<Result<_, _>>()?;
                let request = client.begin(ClientBody::Publish(items))?;
                kill(worker)?;
                let BrokerBody::Published(outcomes) = client.answer(request)? else {
                    anyhow::bail!("no outcomes")
                };
                for refusal in outcomes.into_iter().filter_map(Result::err) {
                    crate::scene::expect_code(&refusal, Code::WorkerFailed);
                }
                // The next publish finds a new one.
                eventually("a publish works again", || Ok(client.publish_one(item("after")?)?.is_ok()))?;
                ensure!(stage.worker()? != worker, "the old worker is still named");
            }
            Ok(())
        })
    })
}

/// An item that is refused as soon as it is known what memory looks like.
fn no_memory() -> anyhow::Result<gpu_handoff_protocol::message::Publication> {
    let null = OwnedFd::from(File::open("/dev/null")?);
    vmm("no-memory", device(0), BYTES, Arc::new(null))
}

/// The plugin's copy of what is being vetted outlives the application: the GPU worker's close is never the last one.
#[test]
fn a_producer_whose_descriptors_block_their_closer() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let mut stranger = Client::greeted(stage.stranger.socket())?;
        for round in 0..8 {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4 << 10)?;
            let (mut child, said) = rough_with_sink(stage, "linger", listener.local_addr()?)?;
            assert_eq!(said, "lingering", "round {round}");
            std::thread::sleep(Duration::from_micros(700) * round);
            kill(child.id())?;
            child.wait()?;
            // Another group's pod, and the pair, need the same worker.
            for _ in 0..20 {
                refused_with(stranger.publish_one(no_memory()?)?, Code::NotGpuMemory);
            }
            // Nobody waits for what nobody can read any more: the closes that block come back.
            drop(listener);
        }
        drop(stranger);
        source.finish()
    })
}

/// A GPU worker that could not load the driver is not the last one.
#[test]
fn a_driver_that_comes_late() -> anyhow::Result<()> {
    let gpu = Gpu::simulated(&Folder::shared()?)?;
    let device = gpu.device_folder().context("a simulated device")?.to_path_buf();
    let mode = device.metadata()?.permissions();
    std::fs::remove_dir(&device)?;
    File::create(&device)?;
    let member = Member { pod: "pod", group: "group" };
    let node = Node::start_with(&Folder::shared()?, Arc::new(gpu), &[member], &serde_json::json!({}))?;
    let pod = Pod::start(&node, "pod", Walls::None)?;
    let mut client = Client::greeted(pod.socket())?;
    for _ in 0..20 {
        refused_with(client.publish_one(no_memory()?)?, Code::WorkerFailed);
    }
    // The log says why, but not twenty times.
    assert_eq!(node.log().matches("could not be started").count(), 1, "{}", node.log());
    std::fs::remove_file(&device)?;
    std::fs::create_dir(&device)?;
    std::fs::set_permissions(&device, mode)?;
    eventually("a publish is inspected", || {
        Ok(client.publish_one(no_memory()?)?.is_err_and(|refusal| refusal.code() == Code::NotGpuMemory))
    })?;
    drop(client);
    pod.stop()?;
    node.stop()
}
