use proptest::prelude::*;

use super::*;
use crate::adjust::Adjustment;
use crate::handler::Events;
use crate::view::Validation;

/// Keeps what it is told, refuses what is named "bad".
#[derive(Debug, Default)]
struct Told(Vec<String>);

impl Told {
    fn say(&mut self, what: &str, name: &str) -> Result<(), String> {
        self.0.push(format!("{what} {name}"));
        if name == "bad" { Err("é".repeat(1_000)) } else { Ok(()) }
    }
}

impl Handler for Told {
    fn configured(&mut self, runtime: &Runtime) -> Events {
        self.0.push(format!("configured {}", runtime.name));
        Events::of_containers().and_validation()
    }

    fn synchronized(&mut self, all: Vec<(Pod, Vec<Container>)>) {
        let counts: Vec<_> =
            all.iter().map(|(pod, containers)| (pod.uid.as_str(), containers.len())).collect();
        self.0.push(format!("synchronized {counts:?}"));
    }

    fn create(&mut self, _: &Pod, container: &Container) -> Result<Adjustment, String> {
        self.say("create", &container.name)?;
        let long = if container.name == "long" { limits::ANSWER_BYTES } else { 1 };
        Ok(Adjustment::default().env("A", "x".repeat(long)))
    }

    fn validate(&mut self, whole: &Validation) -> Result<(), String> {
        self.say("validate", &whole.container.name)
    }

    fn start(&mut self, _: &Pod, container: &Container) -> Result<(), String> {
        self.say("start", &container.name)
    }
}

/// One side of a conversation: numbers its streams.
struct Runtimes<'h> {
    exchange: Exchange<'h, Told>,
    stream: u32,
}

impl<'h> Runtimes<'h> {
    fn new(told: &'h mut Told) -> Self {
        Self { exchange: Exchange::new(told), stream: 1 }
    }

    fn send(&mut self, frame: Frame) -> Response {
        let stream = frame.stream;
        let answer = self.exchange.take(Connection::Plugin, frame).unwrap().expect("it is answered");
        let frames = crate::ttrpc::Frames::default().feed(&answer).unwrap();
        let [frame] = frames.as_slice() else { panic!("one answer: {frames:?}") };
        assert_eq!((frame.stream, frame.kind), (stream, Kind::Response));
        Response::decode(frame.data.as_slice()).unwrap()
    }

    fn ask(&mut self, method: &str, question: &impl prost::Message) -> Result<Vec<u8>, Status> {
        let request = Request {
            service: names::PLUGIN.into(),
            method: method.into(),
            payload: question.encode_to_vec(),
            timeout_nano: 1,
        };
        let frame = Frame::request(self.stream, &request);
        self.stream += 2;
        let response = self.send(frame);
        response.status.map_or(Ok(response.payload), Err)
    }

    fn configure(&mut self) -> i32 {
        let who = proto::ConfigureRequest {
            runtime_name: "containerd".into(),
            nri_version: "v0.12.3".into(),
            ..Default::default()
        };
        let answer = self.ask(names::CONFIGURE, &who).unwrap();
        proto::ConfigureResponse::decode(answer.as_slice()).unwrap().events
    }

    fn synchronize(&mut self, pods: &[&str], of: &[&str], more: bool) -> bool {
        let pods = pods.iter().map(|id| pod(id)).collect();
        let containers = of.iter().map(|pod| container("c", pod)).collect();
        let answer =
            self.ask(names::SYNCHRONIZE, &proto::SynchronizeRequest { pods, containers, more }).unwrap();
        proto::SynchronizeResponse::decode(answer.as_slice()).unwrap().more
    }

    fn create(&mut self, name: &str) -> Result<proto::CreateContainerResponse, Status> {
        let asked =
            proto::CreateContainerRequest { pod: Some(pod("p")), container: Some(container(name, "p")) };
        let answer = self.ask(names::CREATE_CONTAINER, &asked)?;
        Ok(proto::CreateContainerResponse::decode(answer.as_slice()).unwrap())
    }
}

fn pod(id: &str) -> proto::PodSandbox {
    proto::PodSandbox { id: id.into(), uid: format!("uid-{id}"), ..Default::default() }
}

fn container(name: &str, pod: &str) -> proto::Container {
    proto::Container { name: name.into(), pod_sandbox_id: pod.into(), ..Default::default() }
}

#[test]
fn a_whole_conversation() {
    let mut told = Told::default();
    let mut runtime = Runtimes::new(&mut told);
    assert_eq!(runtime.configure(), 8_232);
    assert!(matches!(runtime.exchange.phase(), Phase::Synchronizing(_)));
    assert!(runtime.synchronize(&["a"], &["b"], true), "what is more must come back");
    assert!(!runtime.synchronize(&["b"], &["a", "b", "c"], false));
    assert!(matches!(runtime.exchange.phase(), Phase::Serving(who) if who.name == "containerd"));
    assert_eq!(runtime.exchange.left_out(), 1);

    let answer = runtime.create("one").unwrap();
    assert_eq!(answer.adjust.unwrap().env, [proto::KeyValue { key: "A".into(), value: "x".into() }]);
    let whole = |name| proto::ValidateContainerAdjustmentRequest {
        container: Some(container(name, "p")),
        ..Default::default()
    };
    let answer = runtime.ask(names::VALIDATE_CONTAINER_ADJUSTMENT, &whole("one")).unwrap();
    assert_eq!(answer, Vec::<u8>::new());
    let answer = runtime.ask(names::VALIDATE_CONTAINER_ADJUSTMENT, &whole("bad")).unwrap();
    let answer = proto::ValidateContainerAdjustmentResponse::decode(answer.as_slice()).unwrap();
    assert!(answer.reject && answer.reason.len() == limits::REFUSAL_BYTES, "{answer:?}");
    let start = proto::StartContainerRequest { pod: None, container: Some(container("one", "p")) };
    assert_eq!(runtime.ask(names::START_CONTAINER, &start).unwrap(), Vec::<u8>::new());
    assert_eq!(runtime.ask(names::SHUTDOWN, &proto::Empty {}).unwrap(), Vec::<u8>::new());
    assert_eq!(
        told.0,
        [
            "configured containerd",
            "synchronized [(\"uid-a\", 1), (\"uid-b\", 2)]",
            "create one",
            "validate one",
            "validate bad",
            "start one"
        ]
    );
}

#[test]
fn a_refusal_is_an_error_that_fits() {
    let mut told = Told::default();
    let mut runtime = Runtimes::new(&mut told);
    runtime.configure();
    let refused = runtime.create("bad").unwrap_err();
    assert_eq!(refused.code, code::UNKNOWN);
    assert_eq!(refused.message, "é".repeat(450));
    let start = proto::StartContainerRequest { pod: None, container: Some(container("bad", "p")) };
    assert_eq!(runtime.ask(names::START_CONTAINER, &start).unwrap_err().code, code::UNKNOWN);
    let refused = runtime.create("long").unwrap_err();
    assert!(refused.message.contains("more than an answer may have (65536)"), "{}", refused.message);
}

#[test]
fn what_makes_no_sense_is_answered_so_and_nobody_is_told() {
    let mut told = Told::default();
    let mut runtime = Runtimes::new(&mut told);
    assert_eq!(runtime.create("early").unwrap_err().code, code::FAILED_PRECONDITION);
    runtime.configure();
    assert_eq!(runtime.ask("RunPodSandbox", &pod("p")).unwrap_err().code, code::UNIMPLEMENTED);
    for method in [names::CREATE_CONTAINER, names::START_CONTAINER, names::VALIDATE_CONTAINER_ADJUSTMENT] {
        let refused = runtime.ask(method, &proto::Empty {}).unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (code::INVALID_ARGUMENT, "the request names no container")
        );
        // Field 2 as a number.
        let garbage = proto::ConfigureResponse { events: 1 };
        assert_eq!(runtime.ask(method, &garbage).unwrap_err().code, code::INVALID_ARGUMENT);
    }
    let good =
        Request { service: names::PLUGIN.into(), method: names::SHUTDOWN.into(), ..Default::default() };
    let mut code_of = |stream, flags, request: &Request| {
        let response = runtime.send(Frame { flags, ..Frame::request(stream, request) });
        response.status.map_or(code::OK, |status| status.code)
    };
    assert_eq!(code_of(100, 0, &good), code::INVALID_ARGUMENT, "even");
    assert_eq!(code_of(1, 0, &good), code::INVALID_ARGUMENT, "used before");
    assert_eq!(code_of(101, 0, &good), code::OK);
    assert_eq!(code_of(103, 2, &good), code::UNIMPLEMENTED, "a stream of many");
    let other = Request { service: names::RUNTIME.into(), ..good };
    assert_eq!(code_of(105, 0, &other), code::UNIMPLEMENTED, "another service");
    let unreadable = Frame { stream: 107, kind: Kind::Request, flags: 0, data: vec![0xff] };
    assert_eq!(runtime.send(unreadable).status.unwrap().code, code::INVALID_ARGUMENT);
    assert_eq!(told.0, ["configured containerd"]);
}

#[test]
fn what_answers_nothing_is_passed_over() {
    let mut told = Told::default();
    let mut exchange = Exchange::new(&mut told);
    let frame = |stream, kind| Frame { stream, kind, flags: 0, data: vec![] };
    for (connection, frame) in [
        (Connection::Plugin, frame(1, Kind::Response)),
        (Connection::Plugin, frame(1, Kind::Other(3))),
        (Connection::Runtime, frame(1, Kind::Request)),
        (Connection::Runtime, frame(3, Kind::Response)),
        (Connection::Runtime, frame(1, Kind::Response)),
    ] {
        assert_eq!(exchange.take(connection, frame), Ok(None));
    }
    let refused = Response { status: Some(Status { code: 2, message: "no".into() }), payload: vec![] };
    let refused = exchange.take(Connection::Runtime, Frame::response(1, &refused));
    assert_eq!(refused, Err(Broken::Refused { code: 2, message: "no".into() }));
    let garbage = exchange.take(Connection::Runtime, Frame { data: vec![0xff], ..frame(1, Kind::Response) });
    assert!(matches!(garbage, Err(Broken::Unreadable(_))), "{garbage:?}");
}

fn method() -> impl Strategy<Value = String> {
    let known = [
        names::CONFIGURE,
        names::SYNCHRONIZE,
        names::CREATE_CONTAINER,
        names::VALIDATE_CONTAINER_ADJUSTMENT,
        names::START_CONTAINER,
    ];
    prop_oneof![9 => prop::sample::select(known.map(String::from).to_vec()), 1 => ".*"]
}

proptest! {
    /// Every request has exactly one answer, whatever it is and in whatever order; nothing panics.
    #[test]
    fn every_request_is_answered(
        asked in prop::collection::vec(
            (method(), prop::collection::vec(prop_oneof![3 => 0_u8..20, 1 => any::<u8>()], 0..60), any::<u32>()),
            0..12,
        ),
    ) {
        let mut told = Told::default();
        let mut runtime = Runtimes::new(&mut told);
        for (method, payload, stream) in asked {
            let service = names::PLUGIN.into();
            let request = Request { service, method, payload, timeout_nano: 0 };
            runtime.send(Frame::request(stream, &request));
        }
    }
}
