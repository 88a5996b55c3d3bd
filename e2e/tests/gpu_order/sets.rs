//! Sets: hundreds of buffers at once or none, whoever dies in the middle.

use gpu_handoff_e2e::agent::Command;
use gpu_handoff_e2e::agent::order::Step;
use gpu_handoff_e2e::rough::{Client, vmm};
use gpu_handoff_protocol::SetPart;
use gpu_handoff_protocol::message::{BrokerBody, Carrier, ClientBody, Target};

use crate::stage::{PATIENCE_MS, Stage, acquire, fill, looked, number, refused};

/// More than fit into a packet, and than half of a process's usual descriptors.
const COUNT: usize = 300;

fn publish(count: usize, bad: Option<usize>) -> Step {
    Step::PublishSet { name: "model".to_owned(), count, bad }
}

fn take(newer_than: u64, wait_ms: u64) -> Step {
    Step::AcquireSet { name: "model".to_owned(), newer_than, wait_ms }
}

#[test]
fn three_hundred_buffers_come_at_once_and_the_next_version_takes_their_place() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    let first = number(&mut owner, publish(COUNT, None))?;
    assert_eq!(number(&mut reader, take(0, 0))?, first);
    assert_eq!(looked(&mut reader, Step::VerifySet { name: "model".to_owned() })?, (COUNT as u64, 0));
    refused(&mut reader, take(first, 0), "NOT_FOUND")?;
    // One refused buffer, and the version that is there stays.
    refused(&mut owner, publish(COUNT, Some(200)), "SIZE_MISMATCH")?;
    refused(&mut reader, take(first, 0), "NOT_FOUND")?;
    assert_eq!(number(&mut reader, take(0, 0))?, first);
    // The next version, which the reader waits for with the older one in its hands.
    reader.tell(&Command::Order(take(first, PATIENCE_MS)))?;
    let second = number(&mut owner, publish(2, None))?;
    assert!(second > first);
    reader.hear()?;
    assert_eq!(looked(&mut reader, Step::VerifySet { name: "model".to_owned() })?, (2, 0));
    stage.node.wait_for_log("buffer gone").map(drop)?;
    reader.order(Step::DropSet { name: "model".to_owned() })?;
    reader.finish()?;
    owner.finish()?;
    stage.end()
}

#[test]
fn a_set_for_which_a_process_has_no_descriptors_is_refused_and_nothing_else_is_lost() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    fill(&mut owner, "memory")?;
    let publish_one = Command::Publish { memory: "memory".into(), name: "source".into() };
    owner.ask(&publish_one)?;
    acquire(&mut reader, "source", "lease")?;
    let version = number(&mut owner, publish(COUNT, None))?;
    let before = reader.leave_room(100)?;
    for _ in 0..2 {
        refused(&mut reader, take(0, 0), "TRUNCATED_CONTROL")?;
    }
    reader.set_limit(before)?;
    assert_eq!(number(&mut reader, take(0, 0))?, version);
    assert_eq!(looked(&mut reader, Step::VerifySet { name: "model".to_owned() })?, (COUNT as u64, 0));
    // What it had is there still, and what it was granted in vain was given back: the owner's end leaves nothing.
    reader.done(&Command::Release { lease: "lease".into() })?;
    reader.order(Step::DropSet { name: "model".to_owned() })?;
    owner.finish()?;
    stage.node.wait_for_log("buffer gone").map(drop)?;
    reader.finish()?;
    stage.end()
}

#[test]
fn a_publisher_that_dies_between_two_parts_leaves_nothing() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    let first = number(&mut owner, publish(3, None))?;
    // A process of the same pod that publishes a part by hand, and dies.
    let mut half = std::process::Command::new(stage.node.folder.binary("rough")?)
        .args(["half-a-set", "--source", "source", "--socket"])
        .arg(stage.producer.socket())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    fill(&mut owner, "memory")?;
    let publish = Command::Publish { memory: "memory".into(), name: "source".into() };
    owner.ask(&publish)?;
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(half.stdout.take().ok_or_else(|| anyhow::anyhow!("its output"))?),
        &mut line,
    )?;
    assert_eq!(line.trim(), "half");
    refused(&mut reader, take(first, 0), "NOT_FOUND")?;
    half.kill()?;
    half.wait()?;
    assert_eq!(number(&mut reader, take(0, 0))?, first, "the version before is what it was");
    // The name is free for the pod's next process: nothing is left of what had begun.
    let second = number(&mut owner, crate::sets::publish(3, None))?;
    assert_eq!(number(&mut reader, take(first, 0))?, second);
    reader.finish()?;
    owner.finish()?;
    stage.end()
}

#[test]
fn parts_that_do_not_follow_are_refused_by_the_node() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    let (mut owner, mut reader) = stage.apps()?;
    fill(&mut owner, "memory")?;
    owner.ask(&Command::Publish { memory: "memory".into(), name: "source".into() })?;
    acquire(&mut reader, "source", "lease")?;
    let mut client = Client::greeted(stage.consumer.socket())?;
    let grant = client.acquire(Target::Name("source".parse()?), gpu_handoff_e2e::node::PATIENCE)??;
    let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("no descriptor") };
    let facts = &grant.buffer.facts;
    let mut part = |first, total| -> anyhow::Result<Vec<Option<String>>> {
        let items = vec![vmm("x", facts.device, facts.allocation_size, memory.clone())?];
        let part = SetPart { name: "hand-made".parse()?, total, first };
        match client.ask(ClientBody::PublishSet { part, items })? {
            BrokerBody::Published(outcomes) => {
                Ok(outcomes.into_iter().map(|o| o.err().map(|r| r.code().to_string())).collect())
            }
            other => anyhow::bail!("{other:?}"),
        }
    };
    assert_eq!(part(0, 3)?, [None]);
    assert_eq!(part(2, 3)?, [Some("SET_BROKEN".to_owned())]);
    assert_eq!(part(1, 3)?, [Some("SET_BROKEN".to_owned())], "nothing was left of it");
    assert_eq!(part(0, 2)?, [None]);
    assert_eq!(part(1, 2)?, [None]);
    drop((client, grant));
    reader.finish()?;
    owner.finish()?;
    stage.end()
}
