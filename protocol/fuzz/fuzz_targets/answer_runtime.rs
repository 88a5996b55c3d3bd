//! What a container runtime can make of its plugin: whatever it says, each question has one answer, however it was cut.
#![no_main]

use gpu_handoff_nri::exchange::Exchange;
use gpu_handoff_nri::mux::{Connection, Demux};
use gpu_handoff_nri::ttrpc::{Frame, Frames, Kind, Request};
use gpu_handoff_nri::{Adjustment, Container, Events, Handler, Pod, Runtime, Validation, limits, names};

/// The calls whose payload is fuzzed by itself; for the rest, the input is what comes over the socket.
const CALLS: [&str; 5] = [
    names::CONFIGURE,
    names::SYNCHRONIZE,
    names::CREATE_CONTAINER,
    names::VALIDATE_CONTAINER_ADJUSTMENT,
    names::START_CONTAINER,
];

/// Says back what it hears.
struct Echo;

impl Handler for Echo {
    fn configured(&mut self, _: &Runtime) -> Events {
        Events::of_containers().and_validation()
    }

    fn synchronized(&mut self, all: Vec<(Pod, Vec<Container>)>) {
        assert!(all.len() <= limits::PODS);
        assert!(all.iter().map(|(_, containers)| containers.len()).sum::<usize>() <= limits::CONTAINERS);
    }

    fn create(&mut self, pod: &Pod, container: &Container) -> Result<Adjustment, String> {
        if container.name.is_empty() {
            return Err(pod.name.clone());
        }
        let all = container.env.iter().fold(Adjustment::default(), |all, (name, value)| all.env(name, value));
        Ok(container.mounts.iter().fold(all, |all, mount| all.mount(mount.clone())))
    }

    fn validate(&mut self, whole: &Validation) -> Result<(), String> {
        if whole.default_validator() { Ok(()) } else { Err(whole.container.name.clone()) }
    }

    fn start(&mut self, _: &Pod, container: &Container) -> Result<(), String> {
        container.pid.map(drop).ok_or_else(|| container.name.clone())
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let [call, cut, bytes @ ..] = input else { return };
    match CALLS.get(usize::from(*call)) {
        Some(method) => call_it(method, bytes),
        None => {
            let whole = converse(bytes, bytes.len().max(1));
            assert_eq!(converse(bytes, usize::from(*cut) + 1), whole, "it matters how it was cut");
        }
    }
});

/// Asks a plugin that is configured.
fn call_it(method: &str, payload: &[u8]) {
    let mut echo = Echo;
    let mut exchange = Exchange::new(&mut echo);
    for (stream, method, payload) in [(1, names::CONFIGURE, &[][..]), (3, method, payload)] {
        let request = Request {
            service: names::PLUGIN.into(),
            method: method.into(),
            payload: payload.to_vec(),
            timeout_nano: 0,
        };
        let answer = exchange.take(Connection::Plugin, Frame::request(stream, &request));
        check(stream, &answer.expect("a question does not end a connection").expect("each is answered"));
    }
}

/// All that is answered to these bytes, which come in parts of this length, until they are no conversation any more.
fn converse(bytes: &[u8], length: usize) -> Vec<Vec<u8>> {
    let mut echo = Echo;
    let mut exchange = Exchange::new(&mut echo);
    let (mut demux, mut plugin, mut runtime) = (Demux::default(), Frames::default(), Frames::default());
    let mut answers = Vec::new();
    for part in bytes.chunks(length) {
        // What came before what cannot be read is answered or not, as it was cut: only what all of can be read is compared.
        let Ok(pieces) = demux.feed(part) else { return Vec::new() };
        for piece in pieces {
            let frames = if piece.connection == Connection::Plugin { &mut plugin } else { &mut runtime };
            let Ok(frames) = frames.feed(&piece.bytes) else { return Vec::new() };
            for frame in frames {
                let (stream, kind) = (frame.stream, frame.kind);
                let Ok(answer) = exchange.take(piece.connection, frame) else { return Vec::new() };
                let asked = (piece.connection, kind) == (Connection::Plugin, Kind::Request);
                assert_eq!(answer.is_some(), asked, "each question has an answer, and nothing else has");
                if let Some(answer) = answer {
                    check(stream, &answer);
                    answers.push(answer);
                }
            }
        }
    }
    answers
}

/// An answer is one frame, for its question, and no longer than it may be.
fn check(stream: u32, answer: &[u8]) {
    let frames = Frames::default().feed(answer).expect("an answer can be read");
    let [frame] = frames.as_slice() else { panic!("{} frames", frames.len()) };
    assert_eq!((frame.stream, frame.kind), (stream, Kind::Response));
    assert!(frame.data.len() <= limits::ANSWER_BYTES + 64);
}
