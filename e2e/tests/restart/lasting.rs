//! Buffers that outlive their process, through the deaths of that, of the broker and of the sidecar; and a process that keeps
//! what is over.

use std::time::Instant;

use gpu_handoff_e2e::agent::{Answer, Command, MemoryKind};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::node::{Node, PATIENCE, kill};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_simcuda::dump;

use crate::stage::{BYTES, acquire, kill_broker, node_with, publish, release, revoke, tail, verify};

/// What the buffers hold.
const WORD: u32 = 0x0bad_cafe;

/// Publishes memory that outlives its process, and gives the buffer's id and version back.
fn publish_lasting(app: &mut App, name: &str) -> anyhow::Result<(String, u64)> {
    let memory = name.to_owned();
    app.done(&Command::Fill { memory: memory.clone(), bytes: BYTES, kind: MemoryKind::Vmm, word: WORD })?;
    app.expect(&Command::PublishLasting { memory, name: name.to_owned() }, |answer| match answer {
        Answer::Published { id, generation, .. } => Ok((id, generation)),
        other => Err(other),
    })
}

fn state(app: &mut App, lease: &str) -> anyhow::Result<String> {
    app.expect(&Command::LeaseState { lease: lease.to_owned() }, |answer| match answer {
        Answer::LeaseState { state } => Ok(state),
        other => Err(other),
    })
}

fn retire_id(app: &mut App, id: &str) -> anyhow::Result<Answer> {
    app.ask(&Command::RetireId { id: id.to_owned(), deadline_ms: 0 })
}

fn pods(node: &Node) -> anyhow::Result<[Pod; 2]> {
    let pod = |name| Pod::start(node, name, Walls::None);
    Ok([pod("producer")?, pod("consumer")?])
}

/// Nothing is left of the GPU's memory while the node and its pods go on.
fn all_is_free(node: &Node) -> anyhow::Result<()> {
    match node.gpu.device_folder() {
        Some(device) => Ok(dump::wait_until_free(device, Instant::now() + PATIENCE)?),
        None => Ok(()),
    }
}

/// The pod's sidecar has a duplicate of memory: whoever of broker and sidecar dies then, the other one has it.
fn sidecar_keeps(node: &Node, pod: &Pod) -> anyhow::Result<()> {
    let (Some(device), sidecar) = (node.gpu.device_folder(), pod.sidecar_pid()?) else { return Ok(()) };
    let keeps = |dump: &dump::Dump| {
        dump.allocations.iter().any(|one| one.holders.iter().any(|holder| holder.pid == sidecar))
    };
    Ok(dump::wait_until(device, Instant::now() + PATIENCE, keeps).map(drop)?)
}

fn stop(node: Node, pods: [Pod; 2]) -> anyhow::Result<()> {
    pods.into_iter().try_for_each(Pod::stop)?;
    node.stop()
}

#[test]
fn a_pods_buffer_outlives_the_process_that_published_it() -> anyhow::Result<()> {
    let node = node_with(&serde_json::json!({ "pod-lifetime-bytes": 2 * BYTES, "orphans": "kill" }))?;
    let mut pods = pods(&node)?;
    let mut first = pods[0].connected(&node)?;
    let mut consumer = pods[1].connected(&node)?;
    let (id, generation) = publish_lasting(&mut first, "weights")?;
    assert_eq!(acquire(&mut consumer, "weights")?, id);
    sidecar_keeps(&node, &pods[0])?;
    first.kill()?;
    first.reap()?;
    // No process of the pod lives, and neither this broker nor the next one needs one; nor the same sidecar.
    kill_broker(&node)?;
    verify(&mut consumer, "weights")?;
    assert_eq!(state(&mut consumer, "weights")?, "held");
    node.wait_for_log("the sidecar has offered what it keeps buffers=1")?;
    kill(pods[0].sidecar_pid()?)?;
    pods[0].revive(&node, node.plugin_pid())?;
    sidecar_keeps(&node, &pods[0])?;
    kill_broker(&node)?;
    release(&mut consumer, "weights")?;
    assert_eq!(acquire(&mut consumer, "weights").map_err(|e| e.context(tail(&node)))?, id);
    // The next process of the pod finds it, and takes its place.
    let mut second = pods[0].connected(&node)?;
    assert_eq!(acquire(&mut second, "weights")?, id);
    verify(&mut second, "weights")?;
    release(&mut second, "weights")?;
    let (next, later) = publish_lasting(&mut second, "weights")?;
    assert!(later > generation, "{later} after {generation}");
    verify(&mut consumer, "weights")?;
    release(&mut consumer, "weights")?;
    assert_eq!(acquire(&mut consumer, "weights")?, next);
    // There is room for two, and the first is gone.
    let (other, _) = publish_lasting(&mut second, "other")?;
    second.kill()?;
    second.reap()?;
    let mut third = pods[0].connected(&node)?;
    let not_its = retire_id(&mut consumer, &next)?;
    assert!(matches!(&not_its, Answer::Refused { code, .. } if code == "NOT_OWNER"), "{not_its:?}");
    let retired = retire_id(&mut third, &next)?;
    assert!(matches!(retired, Answer::Retired { leases: 1 }), "{retired:?}");
    release(&mut consumer, "weights")?;
    assert!(matches!(retire_id(&mut third, &other)?, Answer::Retired { leases: 0 }));
    third.finish()?;
    consumer.finish()?;
    all_is_free(&node)?;
    stop(node, pods)
}

#[test]
fn a_pods_buffer_outlives_a_daemon_that_is_away_while_the_pods_container_is_started_anew()
-> anyhow::Result<()> {
    let mut node = node_with(&serde_json::json!({ "pod-lifetime-bytes": 2 * BYTES }))?;
    let pods = pods(&node)?;
    let mut first = pods[0].connected(&node)?;
    let mut consumer = pods[1].connected(&node)?;
    let (id, generation) = publish_lasting(&mut first, "weights")?;
    assert_eq!(acquire(&mut consumer, "weights")?, id);
    sidecar_keeps(&node, &pods[0])?;
    kill(node.plugin_pid())?;
    first.kill()?;
    first.reap()?;
    // The container comes again, and is refused when the sidecar has waited for the daemon as long as it does: longer than any update
    // of that takes.
    let mut second = pods[0].app(&node)?;
    let refused = second.ask(&Command::Connect { socket: pods[0].socket().to_path_buf() })?;
    assert!(matches!(&refused, Answer::Refused { code, .. } if code == "BROKER_UNAVAILABLE"), "{refused:?}");
    verify(&mut consumer, "weights")?;
    node.revive()?;
    second.connect(pods[0].socket())?;
    // It is the pod's still, for both of them, and its next version takes its place.
    assert_eq!(acquire(&mut second, "weights").map_err(|e| e.context(tail(&node)))?, id);
    verify(&mut second, "weights")?;
    release(&mut second, "weights")?;
    assert_eq!(state(&mut consumer, "weights")?, "held");
    let (next, later) = publish_lasting(&mut second, "weights")?;
    assert!(later > generation, "{later} after {generation}");
    verify(&mut consumer, "weights")?;
    release(&mut consumer, "weights")?;
    assert_eq!(acquire(&mut consumer, "weights")?, next);
    release(&mut consumer, "weights")?;
    assert!(matches!(retire_id(&mut second, &next)?, Answer::Retired { leases: 0 }));
    second.finish()?;
    consumer.finish()?;
    all_is_free(&node)?;
    stop(node, pods)
}

#[test]
fn a_process_that_is_not_known_to_be_the_members_is_not_killed() -> anyhow::Result<()> {
    // Without pods and without a user of its own nobody can tell whose processes are the member's.
    let node = node_with(&serde_json::json!({ "orphans": "kill", "retire-deadline": "100ms" }))?;
    let pods = pods(&node)?;
    let (mut producer, mut consumer) = (pods[0].connected(&node)?, pods[1].connected(&node)?);
    publish(&mut producer, "weights")?;
    acquire(&mut consumer, "weights")?;
    assert_eq!(revoke(&mut producer, "weights")?, 1);
    node.wait_for_log("cannot be told")?;
    verify(&mut consumer, "weights")?;
    release(&mut consumer, "weights")?;
    producer.finish()?;
    consumer.finish()?;
    stop(node, pods)
}
