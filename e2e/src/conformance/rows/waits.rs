//! Section 6: streams that wait for a word: what sets them free, what goes on meanwhile, and functions of the host behind the wait.

use std::time::{Duration, Instant};

use gpu_handoff_cuda::Status;

use crate::conformance::Row;
use crate::conformance::memory::{self, MIB};
use crate::conformance::puppet::{End, Puppet, Step, outcome};
use crate::conformance::stage::Stage;
use crate::conformance::wire::Request;

use super::here;

const BYTES: u64 = 2 * MIB;
/// How long a stream that should stand still is watched, how long one of which that is the question, and how long one that should
/// go on may take.
const STILL: Duration = Duration::from_millis(50);
const EITHER: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(4);
/// The value that sets every waiter free.
const POISON: u64 = 1 << 62;

/// A process with words of its own and two streams, neither of which waits for the default stream.
struct Scene {
    puppet: Puppet,
    /// Where the words are: one to wait for, one that is written behind the wait.
    ptr: u64,
    waits: u64,
    other: u64,
}

impl Scene {
    /// In a process of its own: a stream that waits for ever stays with it.
    fn new(stage: &mut Stage) -> Step<Scene> {
        let puppet = stage.own(&here())?;
        let ptr = memory::vmm(&puppet, BYTES, true)?.ptr;
        puppet.tell(Request::Fill { ptr, value: 0, words: 8 })?;
        puppet.tell(Request::Synchronize)?;
        let (waits, other) = (puppet.word(Request::StreamCreate)?, puppet.word(Request::StreamCreate)?);
        Ok(Scene { puppet, ptr, waits, other })
    }

    /// Has the first stream wait until the word is at least `value`.
    fn wait(&self, value: u64) -> Step<()> {
        self.puppet.tell(Request::WaitValue { stream: self.waits, ptr: self.ptr, value })
    }

    /// Has the other stream write the word, and waits until it has.
    fn write(&self, value: u64) -> Step<()> {
        self.puppet.tell(Request::WriteValue { stream: self.other, ptr: self.ptr, value })?;
        self.puppet.tell(Request::StreamSynchronize { stream: self.other })
    }

    /// Whether the waiting stream has come through.
    fn is_through(&self) -> Step<bool> {
        match self.puppet.tell(Request::StreamQuery { stream: self.waits }) {
            Err(End::Answered { status: Status::NOT_READY, .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// `goes on` or `stands still`, as the stream does within a time.
    fn moves(&self, within: Duration) -> Step<&'static str> {
        Ok(if until(within, || self.is_through())? { "goes on" } else { "stands still" })
    }
}

/// Asks again and again until the answer is yes; `false` if it is not within that time.
fn until(patience: Duration, mut ask: impl FnMut() -> Step<bool>) -> Step<bool> {
    let end = Instant::now() + patience;
    loop {
        if ask()? {
            return Ok(true);
        }
        if Instant::now() > end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a stream does that waits until a word is at least `value`, when the word is `word`.
fn compared(id: &str, says: &str, word: u64, value: u64) -> Row {
    Row::api(6, format!("wait-{id}"), format!("a wait where the word is {says}"), move |stage| {
        let scene = Scene::new(stage)?;
        scene.write(word)?;
        scene.wait(value)?;
        scene.moves(EITHER).map(str::to_owned)
    })
}

pub(super) fn rows() -> Vec<Row> {
    [of_comparison(), of_freedom(), of_meanwhile(), of_functions()].into_iter().flatten().collect()
}

fn of_comparison() -> Vec<Row> {
    vec![
        compared("equal", "the value", 3, 3),
        compared("below", "one less", 2, 3),
        compared("poison", "2^62 and the value the largest below", POISON, POISON - 1),
        compared("half-way", "2^63 - 1 more", 3 + ((1 << 63) - 1), 3),
        compared("beyond-half-way", "2^63 more", 3 + (1 << 63), 3),
        compared("all-ones", "2^64 - 1 and the value 3", u64::MAX, 3),
        compared("wrapped", "1 and the value 2^64 - 1", 1, u64::MAX),
    ]
}

fn of_freedom() -> Vec<Row> {
    vec![
        Row::api(
            6,
            "wait-freed-by-own-stream",
            "a wait before and after another stream writes the word",
            |stage| {
                let scene = Scene::new(stage)?;
                scene.wait(3)?;
                let before = scene.moves(STILL)?;
                scene.write(POISON)?;
                Ok(format!("{before}, then {}", scene.moves(SOON)?))
            },
        ),
        Row::api(6, "wait-freed-by-copy", "a wait before and after a copy from the host meets it", |stage| {
            let scene = Scene::new(stage)?;
            // Each byte of what is copied is 0x5a.
            scene.wait(0x5a5a_5a5a_5a5a_5a5a)?;
            let before = scene.moves(STILL)?;
            scene.puppet.tell(Request::Write { ptr: scene.ptr, bytes: 8 })?;
            Ok(format!("{before}, then {}", scene.moves(SOON)?))
        }),
        Row::api(
            6,
            "wait-freed-by-heir",
            "a wait whose writer was killed, before and after a third process writes the word",
            freed_by_heir,
        ),
        Row::api(
            6,
            "wait-destroyed-stream",
            "destroying a stream that waits, and the write behind the wait before and after it is met",
            |stage| {
                let scene = Scene::new(stage)?;
                let behind = scene.ptr + 8;
                scene.wait(1)?;
                scene.puppet.tell(Request::WriteValue { stream: scene.waits, ptr: behind, value: 7 })?;
                let destroyed = outcome(&scene.puppet.tell(Request::StreamDestroy { stream: scene.waits }));
                let before = scene.puppet.word(Request::Load { ptr: behind })?;
                scene.write(1)?;
                let written = || Ok(scene.puppet.word(Request::Load { ptr: behind })? == 7);
                let after = if until(SOON, written)? { "written" } else { "not written" };
                Ok(format!("{destroyed}, before {before}, then {after}"))
            },
        ),
    ]
}

/// A stream that waits for a word which another process was to write, and a third one writes.
fn freed_by_heir(stage: &mut Stage) -> Step<String> {
    let scene = Scene::new(stage)?;
    let mapped = memory::vmm(&scene.puppet, BYTES, true)?;
    scene.puppet.tell(Request::Fill { ptr: mapped.ptr, value: 0, words: 8 })?;
    scene.puppet.tell(Request::Synchronize)?;
    let fd = scene.puppet.fd(Request::Export { handle: mapped.handle })?;
    let ptr = mapped.ptr;
    scene.puppet.tell(Request::WaitValue { stream: scene.waits, ptr, value: 1 })?;
    let writer = stage.own(&here())?;
    memory::import_map(&writer, &fd, BYTES)?;
    writer.kill();
    let before = scene.moves(STILL)?;
    let heir = stage.own(&here())?;
    let there = memory::import_map(&heir, &fd, BYTES)?;
    let stream = heir.word(Request::StreamCreate)?;
    heir.tell(Request::WriteValue { stream, ptr: there.ptr, value: POISON })?;
    Ok(format!("{before}, then {}", scene.moves(SOON)?))
}

/// A row about a call while a stream of the same process waits for what does not come.
fn meanwhile(id: &str, says: &str, script: impl Fn(&Scene) -> Step<String> + 'static) -> Row {
    Row::api(6, format!("meanwhile-{id}"), format!("while another stream waits: {says}"), move |stage| {
        let scene = Scene::new(stage)?;
        scene.wait(1)?;
        script(&scene)
    })
}

fn of_meanwhile() -> Vec<Row> {
    vec![
        meanwhile("stream-query", "cuStreamQuery of that stream", |scene| {
            Ok(outcome(&scene.puppet.tell(Request::StreamQuery { stream: scene.waits })))
        }),
        meanwhile("event-query", "cuEventQuery of an event behind the wait, and after it is met", |scene| {
            let event = scene.puppet.word(Request::EventRecord { stream: scene.waits })?;
            let query = || scene.puppet.tell(Request::EventQuery { event });
            let before = outcome(&query());
            scene.write(1)?;
            scene.moves(SOON)?;
            Ok(format!("{before}, then {}", outcome(&query())))
        }),
        meanwhile("load", "a word read by a stream of its own", |scene| {
            Ok(format!("reads {}", scene.puppet.word(Request::Load { ptr: scene.ptr })?))
        }),
        meanwhile("read", "cuMemcpyDtoH", |scene| {
            Ok(format!("reads {}", memory::read(&scene.puppet, scene.ptr)?))
        }),
        meanwhile("create", "making, exporting and mapping memory", |scene| {
            let handle = scene.puppet.word(Request::Create { bytes: BYTES, exportable: true })?;
            let fd = scene.puppet.fd(Request::Export { handle })?;
            let mapped = memory::import_map(&scene.puppet, &fd, BYTES)?;
            Ok(outcome(&memory::unmap(&scene.puppet, mapped)))
        }),
    ]
}

fn of_functions() -> Vec<Row> {
    vec![
        Row::api(
            6,
            "host-function-order",
            "calls of a host function behind a wait, before and after it is met, and the write behind it",
            |stage| {
                let scene = Scene::new(stage)?;
                let behind = scene.ptr + 8;
                scene.wait(1)?;
                scene.puppet.tell(Request::HostFunction { stream: scene.waits, calls_driver: false })?;
                scene.puppet.tell(Request::WriteValue { stream: scene.waits, ptr: behind, value: 7 })?;
                scene.moves(STILL)?;
                let (before, _) = scene.puppet.words(Request::HostFunctionSaid)?;
                scene.write(1)?;
                let moved = scene.moves(SOON)?;
                let (calls, _) = scene.puppet.words(Request::HostFunctionSaid)?;
                let word = scene.puppet.word(Request::Load { ptr: behind })?;
                Ok(format!("before {before}, then {moved}, {calls}, word {word}"))
            },
        ),
        Row::api(6, "host-function-destroyed", "calls of a host function of a destroyed stream", |stage| {
            let scene = Scene::new(stage)?;
            scene.wait(1)?;
            scene.puppet.tell(Request::HostFunction { stream: scene.waits, calls_driver: false })?;
            scene.puppet.tell(Request::StreamDestroy { stream: scene.waits })?;
            scene.write(1)?;
            let called = || Ok(scene.puppet.words(Request::HostFunctionSaid)?.0 == 1);
            Ok(if until(SOON, called)? { "one".into() } else { "none".into() })
        }),
        // The vendor leaves open what comes of it, and forbids it.
        Row::kernel(6, "host-function-driver", "what the driver answers to a host function", |stage| {
            let scene = Scene::new(stage)?;
            scene.puppet.tell(Request::HostFunction { stream: scene.waits, calls_driver: true })?;
            let called = || Ok(scene.puppet.words(Request::HostFunctionSaid)?.0 == 1);
            if !until(SOON, called)? {
                return Ok("nothing".into());
            }
            let (_, status) = scene.puppet.words(Request::HostFunctionSaid)?;
            Ok(Status(u32::try_from(status).unwrap_or(u32::MAX)).to_string())
        }),
    ]
}
