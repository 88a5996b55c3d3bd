//! Section 6: two processes' streams ordered by a 64-bit word, without an event.

use crate::conformance::memory::{self, MIB};
use crate::conformance::place::Place;
use crate::conformance::puppet::{Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;
use crate::conformance::{Row, Tag};

use super::here;

const BYTES: u64 = 2 * MIB;
const ROUNDS: u64 = 500;

/// The address of one word at two processes.
struct Word {
    leader: Puppet,
    follower: Puppet,
    at_leader: u64,
    at_follower: u64,
}

fn word(stage: &mut Stage, place: &Place) -> Step<Word> {
    let (leader, follower) = (stage.own(&here())?, stage.own(place)?);
    let handle = leader.word(Request::Create { bytes: BYTES, exportable: true })?;
    let ours = memory::map(&leader, handle, BYTES)?;
    leader.tell(Request::Fill { ptr: ours.ptr, value: 0, words: 4 })?;
    leader.tell(Request::Synchronize)?;
    let fd = leader.fd(Request::Export { handle })?;
    let theirs = memory::import_map(&follower, &fd, BYTES)?;
    Ok(Word { leader, follower, at_leader: ours.ptr, at_follower: theirs.ptr })
}

/// Both sides at once: nanoseconds a round at the leader, and the word at the end.
fn ping_pong(stage: &mut Stage, place: &Place) -> Step<(u64, u64)> {
    let Word { leader, follower, at_leader, at_follower } = word(stage, place)?;
    let lead = Request::PingPong { ptr: at_leader, rounds: ROUNDS, leads: true };
    let follow = Request::PingPong { ptr: at_follower, rounds: ROUNDS, leads: false };
    follower.begin(&follow, None)?;
    let (response, _) = leader.ask(&lead, None)?;
    follower.finish(&follow)?;
    let last = memory::read(&leader, at_leader)?;
    Ok((response.words.first().copied().unwrap_or(0), last))
}

/// A row with one process and a word of its own.
fn alone(id: &str, says: &str, script: impl Fn(&Puppet, u64, u64) -> Step<String> + 'static) -> Row {
    Row::api(6, id, says, move |stage| {
        let puppet = stage.shared(&here(), "timeline")?;
        let ptr = memory::vmm(&puppet, BYTES, true)?.ptr;
        puppet.tell(Request::Fill { ptr, value: 0, words: 4 })?;
        let stream = puppet.word(Request::StreamCreate)?;
        script(&puppet, ptr, stream)
    })
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::api(
            6,
            "timeline-order",
            "500 rounds of write and wait between two processes: the word at the end",
            |stage| {
                let (_, last) = ping_pong(stage, &here())?;
                Ok(format!("OK, {last}"))
            },
        ),
        Row::api(
            6,
            "timeline-order-isolated",
            "the same with IPC and network namespaces of its own",
            |stage| {
                let (_, last) = ping_pong(stage, &Place::ipc_net())?;
                Ok(format!("OK, {last}"))
            },
        ),
        Row::new(Tag::Time, 6, "time-timeline-round", "one round trip, µs", |stage| {
            let (ns, _) = ping_pong(stage, &Place::ipc_net())?;
            Ok(super::times::micros(ns))
        }),
        alone(
            "timeline-wait-reached",
            "waiting for a value that is passed already (at least)",
            |puppet, ptr, stream| {
                puppet.tell(Request::WriteValue { stream, ptr, value: 9 })?;
                puppet.tell(Request::WaitValue { stream, ptr, value: 5 })?;
                Ok(outcome(&puppet.tell(Request::StreamSynchronize { stream })))
            },
        ),
        alone(
            "timeline-write-unaligned",
            "cuStreamWriteValue64 at an address that is no multiple of 8",
            |puppet, ptr, stream| {
                Ok(outcome(&puppet.tell(Request::WriteValue { stream, ptr: ptr + 4, value: 1 })))
            },
        ),
        alone(
            "timeline-wait-unaligned",
            "cuStreamWaitValue64 at an address that is no multiple of 8",
            |puppet, ptr, stream| {
                Ok(outcome(&puppet.tell(Request::WaitValue { stream, ptr: ptr + 4, value: 0 })))
            },
        ),
        alone(
            "timeline-write-unknown",
            "cuStreamWriteValue64 at an address that the driver never gave",
            |puppet, _, stream| {
                Ok(outcome(&puppet.tell(Request::WriteValue { stream, ptr: 0x7000_0000_0000, value: 1 })))
            },
        ),
        Row::api(6, "timeline-legacy-memory", "cuStreamWriteValue64 in cuMemAlloc memory", |stage| {
            let puppet = stage.shared(&here(), "timeline")?;
            let ptr = puppet.word(Request::Alloc { bytes: BYTES })?;
            let stream = puppet.word(Request::StreamCreate)?;
            puppet.tell(Request::WriteValue { stream, ptr, value: 77 })?;
            puppet.tell(Request::StreamSynchronize { stream })?;
            Ok(format!("reads {}", memory::read(&puppet, ptr)?))
        }),
        Row::api(
            6,
            "timeline-wait-unmet",
            "the word and the stream while a wait is not met, and after the CPU meets it",
            |stage| {
                let Word { leader, follower, at_leader, at_follower } = word(stage, &here())?;
                let stream = follower.word(Request::StreamCreate)?;
                follower.tell(Request::WaitValue { stream, ptr: at_follower, value: 3 })?;
                follower.tell(Request::WriteValue { stream, ptr: at_follower + 8, value: 4 })?;
                std::thread::sleep(std::time::Duration::from_millis(50));
                let before = memory::read(&leader, at_leader + 8)?;
                let other = leader.word(Request::StreamCreate)?;
                leader.tell(Request::WriteValue { stream: other, ptr: at_leader, value: 3 })?;
                leader.tell(Request::StreamSynchronize { stream: other })?;
                follower.tell(Request::StreamSynchronize { stream })?;
                Ok(format!("before {before}, after {}", memory::read(&leader, at_leader + 8)?))
            },
        ),
    ]
}
