//! Real sidecars and applications: the broker, a sidecar, or an owner is killed, and everybody goes on with what is left.

use std::time::Instant;

use gpu_handoff_e2e::agent::{Answer, Command};
use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::node::{Node, PATIENCE, kill};
use gpu_handoff_e2e::pod::{Pod, Walls};
use gpu_handoff_e2e::wait;
use gpu_handoff_simcuda::dump;

use crate::stage::{acquire, kill_broker, node, publish, release, revoke, tail, verify};

/// Rounds of killing.
const ROUNDS: usize = 5;

struct Pair {
    node: Node,
    pods: [Pod; 2],
    producer: App,
    consumer: App,
}

impl Pair {
    fn start() -> anyhow::Result<Self> {
        let node = node()?;
        let pod = |name| Pod::start(&node, name, Walls::None);
        let pods = [pod("producer")?, pod("consumer")?];
        let (producer, consumer) = (pods[0].connected(&node)?, pods[1].connected(&node)?);
        Ok(Self { node, pods, producer, consumer })
    }

    /// Everybody ends in good order; nothing is left of the GPU's memory.
    fn end(self) -> anyhow::Result<()> {
        let Self { node, pods, producer, consumer } = self;
        producer.finish()?;
        consumer.finish()?;
        if let Some(device) = node.gpu.device_folder() {
            dump::wait_until_free(device, Instant::now() + PATIENCE)?;
        }
        for pod in pods {
            pod.stop()?;
        }
        node.stop()
    }
}

#[test]
fn a_killed_broker_loses_neither_buffers_nor_leases() -> anyhow::Result<()> {
    let mut p = Pair::start()?;
    let (id, _) = publish(&mut p.producer, "weights")?;
    assert_eq!(acquire(&mut p.consumer, "weights")?, id);
    for round in 0..ROUNDS {
        kill_broker(&p.node)?;
        verify(&mut p.consumer, "weights")?;
        // The lease is the same one: it can be released, once, and the buffer acquired again.
        release(&mut p.consumer, "weights")
            .map_err(|e| e.context(format!("round {round}; {}", tail(&p.node))))?;
        assert_eq!(acquire(&mut p.consumer, "weights")?, id, "the same buffer as before");
        verify(&mut p.consumer, "weights")?;
    }
    assert_eq!(revoke(&mut p.producer, "weights")?, 1, "the one lease is known");
    release(&mut p.consumer, "weights")?;
    p.end()
}

#[test]
fn versions_go_on_after_a_restart() -> anyhow::Result<()> {
    let mut p = Pair::start()?;
    let (_, first) = publish(&mut p.producer, "a")?;
    revoke(&mut p.producer, "a")?;
    kill_broker(&p.node)?;
    let (_, second) = publish(&mut p.producer, "b")?;
    assert!(second > first, "{second} after {first}");
    revoke(&mut p.producer, "b")?;
    p.end()
}

#[test]
fn an_owner_that_dies_while_the_broker_is_away_leaves_an_orphan() -> anyhow::Result<()> {
    let mut p = Pair::start()?;
    publish(&mut p.producer, "weights")?;
    acquire(&mut p.consumer, "weights")?;
    p.producer.kill()?;
    kill_broker(&p.node)?;
    let state = |app: &mut App| {
        app.expect(&Command::LeaseState { lease: "weights".to_owned() }, |answer| match answer {
            Answer::LeaseState { state } => Ok(state),
            other => Err(other),
        })
    };
    wait::until(PATIENCE, "the consumer knows that the owner is gone", || {
        Ok(state(&mut p.consumer)?.contains("ended").then_some(()))
    })
    .map_err(|e| e.context(tail(&p.node)))?;
    verify(&mut p.consumer, "weights")?;
    release(&mut p.consumer, "weights")?;
    let Pair { node, pods, producer, consumer } = p;
    producer.reap()?;
    consumer.finish()?;
    for pod in pods {
        pod.stop()?;
    }
    node.stop()
}

#[test]
fn a_sidecar_that_was_killed_is_told_everything_again() -> anyhow::Result<()> {
    let mut p = Pair::start()?;
    let (id, _) = publish(&mut p.producer, "weights")?;
    for round in 0..ROUNDS {
        kill(p.pods[0].sidecar_pid()?)?;
        let member = p.producer.pid()?;
        p.pods[0].revive(&p.node, member)?;
        kill_broker(&p.node)?;
        assert_eq!(acquire(&mut p.consumer, "weights")?, id, "round {round}");
        release(&mut p.consumer, "weights")?;
    }
    revoke(&mut p.producer, "weights")?;
    p.end()
}
