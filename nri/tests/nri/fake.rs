//! A container runtime's side of NRI: as one that behaves does it, and in pieces for those that do not.

use std::collections::BTreeMap;
use std::time::Duration;

use gpu_handoff_nri::mux::{Connection, Demux, framed_by};
use gpu_handoff_nri::proto::nri as proto;
use gpu_handoff_nri::ttrpc::{Frame, Frames, Kind, Request, Response, Status};
use gpu_handoff_nri::{limits, names};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// How long anything may take here.
const DEADLINE: Duration = Duration::from_secs(30);

/// What comes in time.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("it comes in time")
}

/// A pod, and a container of it.
pub(crate) fn pod_and_container(pod: &str, container: &str) -> (proto::PodSandbox, proto::Container) {
    let of_it = proto::Container {
        id: format!("id-{container}"),
        pod_sandbox_id: pod.into(),
        name: container.into(),
        ..Default::default()
    };
    (proto::PodSandbox { id: pod.into(), uid: format!("uid-{pod}"), ..Default::default() }, of_it)
}

/// A runtime that one plugin is connected to.
#[derive(Debug)]
pub(crate) struct Runtime {
    stream: UnixStream,
    demux: Demux,
    frames: [Frames; 2],
    /// The plugin's own calls that nobody took yet.
    called: Vec<Frame>,
    answers: BTreeMap<u32, Frame>,
    next: u32,
    /// How long its frames are.
    pub(crate) cut: usize,
    /// What the plugin said of itself.
    pub(crate) name: String,
    pub(crate) index: String,
    pub(crate) events: i32,
}

impl Runtime {
    /// The next plugin that comes.
    pub(crate) async fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = within(listener.accept()).await.expect("it is accepted");
        Self {
            stream,
            demux: Demux::default(),
            frames: [Frames::default(), Frames::default()],
            called: Vec::new(),
            answers: BTreeMap::new(),
            next: 1,
            cut: limits::FRAME_BYTES_IN,
            name: String::new(),
            index: String::new(),
            events: 0,
        }
    }

    /// Does all that comes before the first event, with no container.
    pub(crate) async fn take_in(&mut self) {
        let registration = self.registration().await;
        self.registered(registration).await;
        self.configure().await;
        self.synchronize(vec![], vec![], false).await;
    }

    /// The plugin's registration: its stream.
    pub(crate) async fn registration(&mut self) -> u32 {
        while self.called.is_empty() {
            assert!(within(self.read()).await, "the plugin closed the connection");
        }
        let frame = self.called.remove(0);
        let request = Request::decode(frame.data.as_slice()).unwrap();
        assert_eq!(
            (request.service.as_str(), request.method.as_str()),
            (names::RUNTIME, names::REGISTER_PLUGIN)
        );
        let who = proto::RegisterPluginRequest::decode(request.payload.as_slice()).unwrap();
        (self.name, self.index) = (who.plugin_name, who.plugin_idx);
        frame.stream
    }

    pub(crate) async fn registered(&mut self, stream: u32) {
        self.send(Connection::Runtime, &Frame::response(stream, &Response::default())).await;
    }

    pub(crate) async fn refuse(&mut self, stream: u32, why: &str) {
        let status = Some(Status { code: 2, message: why.into() });
        self.send(Connection::Runtime, &Frame::response(stream, &Response { status, payload: vec![] })).await;
    }

    pub(crate) async fn configure(&mut self) {
        let who = proto::ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: "v2.4.2".into(),
            registration_timeout: 5_000,
            request_timeout: 2_000,
            nri_version: "v0.12.3".into(),
        };
        let answer = self.ask(names::CONFIGURE, &who).await.unwrap();
        self.events = proto::ConfigureResponse::decode(answer.as_slice()).unwrap().events;
    }

    pub(crate) async fn synchronize(
        &mut self,
        pods: Vec<proto::PodSandbox>,
        containers: Vec<proto::Container>,
        more: bool,
    ) {
        let part = proto::SynchronizeRequest { pods, containers, more };
        let answer = self.ask(names::SYNCHRONIZE, &part).await.unwrap();
        assert_eq!(proto::SynchronizeResponse::decode(answer.as_slice()).unwrap().more, more);
    }

    pub(crate) async fn create(&mut self, name: &str) -> Result<proto::CreateContainerResponse, Status> {
        let stream = self.ask_create(name).await;
        self.answer_to(stream).await
    }

    /// Asks without waiting for the answer: the stream.
    pub(crate) async fn ask_create(&mut self, name: &str) -> u32 {
        let (pod, container) = pod_and_container("p", name);
        let asked = proto::CreateContainerRequest { pod: Some(pod), container: Some(container) };
        self.question(names::CREATE_CONTAINER, &asked).await
    }

    pub(crate) async fn answer_to(&mut self, stream: u32) -> Result<proto::CreateContainerResponse, Status> {
        let answer = self.answer(stream).await?;
        Ok(proto::CreateContainerResponse::decode(answer.as_slice()).unwrap())
    }

    /// Asks and never reads; whether the plugin has gone.
    pub(crate) async fn ask_and_forget(&mut self, name: &str) -> bool {
        let (pod, container) = pod_and_container("p", name);
        let asked = proto::CreateContainerRequest { pod: Some(pod), container: Some(container) };
        let frame = self.frame(names::CREATE_CONTAINER, &asked);
        self.stream.write_all(&framed_by(Connection::Plugin, &frame, self.cut)).await.is_err()
    }

    pub(crate) async fn start(&mut self, name: &str) -> Result<(), Status> {
        let (pod, container) = pod_and_container("p", name);
        let asked = proto::StartContainerRequest { pod: Some(pod), container: Some(container) };
        self.ask(names::START_CONTAINER, &asked).await.map(drop)
    }

    /// Asks whether what these plugins made of a container is right.
    pub(crate) async fn validate(&mut self, plugins: &[(&str, &str)]) -> Result<(), String> {
        let (pod, container) = pod_and_container("p", "one");
        let instance = |(index, name): &(&str, &str)| proto::PluginInstance {
            name: (*name).into(),
            index: (*index).into(),
        };
        let asked = proto::ValidateContainerAdjustmentRequest {
            pod: Some(pod),
            container: Some(container),
            adjust: None,
            plugins: plugins.iter().map(instance).collect(),
        };
        let answer = self.ask(names::VALIDATE_CONTAINER_ADJUSTMENT, &asked).await.unwrap();
        let answer = proto::ValidateContainerAdjustmentResponse::decode(answer.as_slice()).unwrap();
        if answer.reject { Err(answer.reason) } else { Ok(()) }
    }

    /// Calls the plugin and waits for its answer.
    pub(crate) async fn ask(&mut self, method: &str, question: &impl Message) -> Result<Vec<u8>, Status> {
        let stream = self.question(method, question).await;
        self.answer(stream).await
    }

    async fn question(&mut self, method: &str, question: &impl Message) -> u32 {
        let stream = self.next;
        let frame = self.frame(method, question);
        within(self.stream.write_all(&framed_by(Connection::Plugin, &frame, self.cut)))
            .await
            .expect("the plugin reads");
        stream
    }

    fn frame(&mut self, method: &str, question: &impl Message) -> Vec<u8> {
        let request = Request {
            service: names::PLUGIN.into(),
            method: method.into(),
            payload: question.encode_to_vec(),
            timeout_nano: 2_000_000_000,
        };
        let frame = Frame::request(self.next, &request);
        self.next += 2;
        frame.encode().unwrap()
    }

    async fn answer(&mut self, stream: u32) -> Result<Vec<u8>, Status> {
        while !self.answers.contains_key(&stream) {
            assert!(within(self.read()).await, "the plugin closed the connection");
        }
        let frame = self.answers.remove(&stream).expect("it is there");
        let response = Response::decode(frame.data.as_slice()).unwrap();
        response.status.map_or(Ok(response.payload), Err)
    }

    async fn send(&mut self, connection: Connection, frame: &Frame) {
        let bytes = framed_by(connection, &frame.encode().unwrap(), self.cut);
        self.send_raw(&bytes).await;
    }

    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.expect("the plugin reads");
    }

    /// Waits until the plugin closes the connection.
    pub(crate) async fn ended(&mut self) {
        while self.read().await {}
    }

    /// Takes what comes; whether anything did.
    async fn read(&mut self) -> bool {
        let mut bytes = vec![0; 64 << 10];
        let count = self.stream.read(&mut bytes).await.unwrap_or(0);
        for piece in self.demux.feed(&bytes[..count]).expect("a plugin's frames are right") {
            assert!(piece.bytes.len() <= limits::FRAME_BYTES_OUT);
            let place = usize::from(piece.connection == Connection::Runtime);
            for frame in self.frames[place].feed(&piece.bytes).expect("a plugin's messages are right") {
                match frame.kind {
                    Kind::Response => drop(self.answers.insert(frame.stream, frame)),
                    Kind::Request => self.called.push(frame),
                    Kind::Other(other) => panic!("a frame of type {other}"),
                }
            }
        }
        count > 0
    }
}
